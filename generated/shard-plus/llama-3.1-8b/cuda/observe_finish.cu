// observe_finish: Weights of tokens and values, and factors of KV heads, from the sums; one block.
// Stage observe of scheme shard-plus for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 256;  // threads of a block

// dsl/codecs/observedWeights.ts:12 tokenWeight
// The weight of a token in the fit of the key basis, from the root of its sensitivity and the mean of these roots.
__device__ __forceinline__ float token_weight(float root, float mean) {
  float weight = 1.0f;
  if (mean > 1.0e-15f) {
    weight = fmaxf(root / mean, 0.25f);
  }
  return weight;
}

// dsl/codecs/observedWeights.ts:22 valueWeight
// The weight of a (token, KV head) in the fit of the value codebook: half alike for all, half by attention.
__device__ __forceinline__ float value_weight(float mass, float mean) {
  float weight = 1.0f;
  if (mean > 1.0e-30f) {
    weight = 0.5f + 0.5f * mass / mean;
  }
  return weight;
}

// dsl/codecs/observedWeights.ts:32 headFactor
// What the weights of a KV head's channels are multiplied by: the root of its sensitivity over the largest of the layer.
__device__ __forceinline__ float head_factor(float sensitivity, float largest) {
  float factor = 1.0f;
  if (largest > 1.0e-30f) {
    factor = sqrtf(sensitivity / largest);
  }
  return factor;
}

// Sum and maximum over the threads of the block, in two strides of 16: the order of additions never varies. Every
// thread gets the result, and scratch may be reused at once.
__device__ __forceinline__ float block_sum(float value, float (&scratch)[THREADS]) {
  scratch[threadIdx.x] = value;
  __syncthreads();  // all values are in scratch
  if (threadIdx.x < 16) {
    for (u32 i = threadIdx.x + 16; i < THREADS; i += 16) value += scratch[i];
    scratch[threadIdx.x] = value;
  }
  __syncthreads();  // 16 sums are left
  float total = 0.0f;
  for (u32 i = 0; i < 16; ++i) total += scratch[i];
  __syncthreads();  // all have read them
  return total;
}

__device__ __forceinline__ float block_max(float value, float (&scratch)[THREADS]) {
  scratch[threadIdx.x] = value;
  __syncthreads();  // all values are in scratch
  if (threadIdx.x < 16) {
    for (u32 i = threadIdx.x + 16; i < THREADS; i += 16) value = fmaxf(value, scratch[i]);
    scratch[threadIdx.x] = value;
  }
  __syncthreads();  // 16 maxima are left
  float largest = scratch[0];
  for (u32 i = 1; i < 16; ++i) largest = fmaxf(largest, scratch[i]);
  __syncthreads();  // all have read them
  return largest;
}

// One block; every token of `token_weights` is written and read by one thread.
extern "C" __global__ void __launch_bounds__(256) observe_finish(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ sensitivities,  // [middle tokens][8 KV heads]
    const float* __restrict__ masses,  // [middle tokens][8 KV heads]
    float* token_weights,  // [middle tokens], above 0, their mean 1
    float* value_weights,  // [middle tokens][8 KV heads], at least 1/2
    float* head_factors  // [8 KV heads], at most 1
) {
  __shared__ float scratch[THREADS];
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const float count = static_cast<float>(middle > 0 ? middle : 1u);

  // Head by head: sums over all tokens. Thread 0 keeps the sums of sensitivities where the factors go.
  float largest = 0.0f;
  for (u32 head = 0; head < KV_HEADS; ++head) {
    float sensitivity = 0.0f;
    float mass = 0.0f;
    for (u32 token = threadIdx.x; token < middle; token += THREADS) {
      sensitivity += sensitivities[token * KV_HEADS + head];
      mass += masses[token * KV_HEADS + head];
    }
    sensitivity = block_sum(sensitivity, scratch);
    mass = block_sum(mass, scratch);
    largest = fmaxf(largest, sensitivity);
    if (threadIdx.x == 0) head_factors[head] = sensitivity;
    for (u32 token = threadIdx.x; token < middle; token += THREADS) {
      const u32 at = token * KV_HEADS + head;
      value_weights[at] = value_weight(masses[at], mass / count);
    }
  }
  if (threadIdx.x == 0) {
    for (u32 head = 0; head < KV_HEADS; ++head) head_factors[head] = head_factor(head_factors[head], largest);
  }

  // A row holds the keys of all heads, so a token has one weight for them: first the roots, then over their mean.
  float roots = 0.0f;
  for (u32 token = threadIdx.x; token < middle; token += THREADS) {
    float sensitivity = 0.0f;
    for (u32 head = 0; head < KV_HEADS; ++head) sensitivity += sensitivities[token * KV_HEADS + head];
    const float root = sqrtf(sensitivity);
    token_weights[token] = root;
    roots += root;
  }
  roots = block_sum(roots, scratch);
  float weights = 0.0f;
  for (u32 token = threadIdx.x; token < middle; token += THREADS) {
    const float weight = token_weight(token_weights[token], roots / count);
    token_weights[token] = weight;
    weights += weight;
  }
  // The least weight has raised the mean.
  weights = block_sum(weights, scratch);
  for (u32 token = threadIdx.x; token < middle; token += THREADS) token_weights[token] *= count / weights;
}
