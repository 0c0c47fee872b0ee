// tilt_weigh: Root mean squares over the largest of the layer, floored; both channels of a pair get the same f16.
// Stage weigh of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 PAIRS = 32;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 GROUP_SIZE = 3;  // query heads that share a KV head
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_QUERY_TOKENS = 9;  // in the record, queries that came with the prompt, of its last tokens
constexpr u32 AT_KEY_WEIGHTS = 27;  // in the record, first word of keyWeights: f16 [192 channels], above 0: keys are coded times this
constexpr u32 THREADS = 256;  // threads of a block

// dsl/codecs/pca.ts:109 pairWeight
// The weight of a pair of channels: the root mean square that queries have there, over the largest of the layer.
__device__ __forceinline__ float pair_weight(float root_mean_square, float largest) {
  float weight = 1.0f;
  if (largest > 0.0f) {
    weight = fmaxf(root_mean_square / largest, 0.001f);
  }
  return round_to_half(weight);
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

// One block. Channels lie in the order of pairs: the first ones of all pairs, then the second ones.
extern "C" __global__ void __launch_bounds__(256) tilt_weigh(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ squares,  // [3 KV heads][32 pairs]
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    float* weights  // [192], rounded to f16
) {
  __shared__ float scratch[THREADS];
  const u32 given = sequence[AT_QUERY_TOKENS];
  // Two squares a pair.
  const float count = static_cast<float>(GROUP_SIZE * 2) * static_cast<float>(given > 0 ? given : 1u);
  float largest = 0.0f;
  for (u32 i = threadIdx.x; i < KV_HEADS * PAIRS; i += THREADS) largest = fmaxf(largest, sqrtf(squares[i] / count));
  largest = block_max(largest, scratch);

  for (u32 i = threadIdx.x; i < KV_HEADS * PAIRS; i += THREADS) {
    const float weight = pair_weight(sqrtf(squares[i] / count), largest);
    float* pair = weights + i / PAIRS * HEAD_DIM + i % PAIRS;
    pair[0] = weight;
    pair[PAIRS] = weight;
  }
  __syncthreads();  // all weights are there: the two channels of a word are of two pairs

  for (u32 word = threadIdx.x; word < WIDTH / 2; word += THREADS) {
    cache[sequence[AT_KEY_WEIGHTS] + word] = pack_half2(weights[word * 2], weights[word * 2 + 1]);
  }
}
