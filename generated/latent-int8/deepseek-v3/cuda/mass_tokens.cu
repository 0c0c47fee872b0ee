// mass_tokens: Softmax of every row of scores, summed over the query tokens and heads of a KV head; one block each.
// Stage mass of scheme latent-int8 for deepseek-v3. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// latent: perToken(symmetric, 8 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 GROUP_SIZE = 128;  // query heads that share a KV head
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_SLIDING_WINDOW = 8;  // in the record, tokens that a query sees, itself included; 0 for all
constexpr u32 THREADS = 256;  // threads of a block

// Tokens that the sequence holds, in all its segments.
__device__ __forceinline__ u32 held_tokens(const u32* sequence) {
  return sequence[AT_SINK_TOKENS] + sequence[AT_MIDDLE_TOKENS] + sequence[AT_STREAM_TOKENS] +
         sequence[AT_WINDOW_TOKENS];
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

// One KV head a block, row after row. A thread comes back to the same tokens in every row, so that it alone adds to them,
// in the same order each time; a block for every row would have to add atomically.
extern "C" __global__ void __launch_bounds__(256) mass_tokens(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ call,  // [query tokens, tokens held after the last of them]
    const float* __restrict__ scores,  // [128 heads][query tokens][tokens], base-2 exponents
    float* masses  // [1 KV heads][tokens]
) {
  __shared__ float scratch[THREADS];
  const u32 tokens = held_tokens(sequence);
  const u32 sliding = sequence[AT_SLIDING_WINDOW];
  const u32 queries = call[0];
  const u32 after = call[1];
  const float* row = scores + blockIdx.x * GROUP_SIZE * queries * tokens;
  float* own = masses + blockIdx.x * tokens;
  for (u32 token = threadIdx.x; token < tokens; token += THREADS) own[token] = 0.0f;

  for (u32 i = 0; i < GROUP_SIZE * queries; ++i, row += tokens) {
    // A query sees the tokens up to its own, and of those no more than the sliding window.
    const u32 later = after + queries - 1 - i % queries;
    const u32 end = tokens - min(later, tokens);
    const u32 begin = sliding == 0 ? 0 : end - min(sliding, end);
    if (begin == end) continue;

    float largest = -INFINITY;
    for (u32 token = threadIdx.x; token < end; token += THREADS) {
      if (token >= begin) largest = fmaxf(largest, row[token]);
    }
    largest = block_max(largest, scratch);
    float sum = 0.0f;
    for (u32 token = threadIdx.x; token < end; token += THREADS) {
      if (token >= begin) sum += exp2f(row[token] - largest);
    }
    sum = block_sum(sum, scratch);
    for (u32 token = threadIdx.x; token < end; token += THREADS) {
      if (token >= begin) own[token] += exp2f(row[token] - largest) / sum;
    }
  }
}
