// weigh_finish: Root mean squares times the factor of the KV head, over the largest of the layer, floored; both channels of a pair get the same f16.
// Stage weigh of scheme shard-plus for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 PAIRS = 64;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 GROUP_SIZE = 4;  // query heads that share a KV head
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_QUERY_TOKENS = 9;  // in the record, queries that came with the prompt, of its last tokens
constexpr u32 AT_KEY_WEIGHTS = 27;  // in the record, first word of keyWeights: f16 [1024 channels], above 0: keys are coded times this
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 OBSERVED_QUERIES = 32;  // queries that are observed, at most: the last ones given

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 64, pairs = 64, interleaved = 0
// The first channel of a pair.
__device__ __forceinline__ u32 first_of_pair_64_64_0(u32 pair) {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 64, pairs = 64, interleaved = 0
// The second channel of a pair.
__device__ __forceinline__ u32 second_of_pair_64_64_0(u32 pair) {
  return pair + 64u;
}

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

// One block. `weights` holds root mean squares first, each written and read by the thread that owns the pair.
extern "C" __global__ void __launch_bounds__(256) weigh_finish(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ squares,  // [8 KV heads][64 pairs]
    const float* __restrict__ head_factors,  // [8 KV heads]
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    float* weights  // [1024], rounded to f16
) {
  __shared__ float scratch[THREADS];
  const u32 observed = min(sequence[AT_QUERY_TOKENS], OBSERVED_QUERIES);
  // Two squares a pair.
  const float count = static_cast<float>(GROUP_SIZE * 2) * static_cast<float>(observed > 0 ? observed : 1u);
  float largest = 0.0f;
  for (u32 i = threadIdx.x; i < KV_HEADS * PAIRS; i += THREADS) {
    const float root = sqrtf(squares[i] / count) * head_factors[i / PAIRS];
    weights[i / PAIRS * HEAD_DIM + first_of_pair_64_64_0(i % PAIRS)] = root;
    largest = fmaxf(largest, root);
  }
  largest = block_max(largest, scratch);

  for (u32 i = threadIdx.x; i < KV_HEADS * PAIRS; i += THREADS) {
    float* head = weights + i / PAIRS * HEAD_DIM;
    const float weight = pair_weight(head[first_of_pair_64_64_0(i % PAIRS)], largest);
    head[first_of_pair_64_64_0(i % PAIRS)] = weight;
    head[second_of_pair_64_64_0(i % PAIRS)] = weight;
  }
  __syncthreads();  // all weights are there: the two channels of a word may be of two pairs

  for (u32 word = threadIdx.x; word < WIDTH / 2; word += THREADS) {
    cache[sequence[AT_KEY_WEIGHTS] + word] = pack_half2(weights[word * 2], weights[word * 2 + 1]);
  }
}
