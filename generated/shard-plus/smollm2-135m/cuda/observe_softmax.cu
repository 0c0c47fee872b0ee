// observe_softmax: Turns the scores of one query of one head into probabilities, in place, and takes its output.
// Stage observe of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 GROUP_SIZE = 3;  // query heads that share a KV head
constexpr u32 AT_PROMPT_TOKENS = 5;  // in the record, tokens of the prompt in the input of the encode stages
constexpr u32 AT_SLIDING_WINDOW = 8;  // in the record, tokens that a query sees, itself included; 0 for all
constexpr u32 AT_QUERY_TOKENS = 9;  // in the record, queries that came with the prompt, of its last tokens
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 OBSERVED_QUERIES = 32;  // queries that are observed, at most: the last ones given
constexpr u32 SLICES = 8;  // threads, or blocks, that share one sum

constexpr u32 HEAD_WORDS = HEAD_DIM / 2;

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

// One observed query of one query head a block.
extern "C" __global__ void __launch_bounds__(256) observe_softmax(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ values,  // f16 [3 KV heads][prompt tokens][64]
    float* probabilities,  // [9 heads][observed queries][prompt tokens], scores at first
    float* outputs  // [9 heads][observed queries][64]
) {
  __shared__ float scratch[THREADS];
  __shared__ float2 parts[SLICES * HEAD_WORDS];  // two channels of the output over every SLICES-th token
  const u32 prompt = sequence[AT_PROMPT_TOKENS];
  const u32 observed = min(sequence[AT_QUERY_TOKENS], OBSERVED_QUERIES);
  const u32 index = blockIdx.x;
  if (index >= observed) return;

  const u32 row = blockIdx.y * observed + index;
  float* own = probabilities + row * prompt;
  // The queries are those of the last tokens; each sees the tokens up to its own.
  const u32 end = prompt - observed + index + 1;
  const u32 sliding = sequence[AT_SLIDING_WINDOW];
  const u32 begin = sliding == 0 ? 0 : end - min(sliding, end);

  float largest = -INFINITY;
  for (u32 token = begin + threadIdx.x; token < end; token += THREADS) largest = fmaxf(largest, own[token]);
  largest = block_max(largest, scratch);
  float sum = 0.0f;
  for (u32 token = begin + threadIdx.x; token < end; token += THREADS) sum += exp2f(own[token] - largest);
  sum = block_sum(sum, scratch);
  for (u32 token = threadIdx.x; token < prompt; token += THREADS) {
    own[token] = token >= begin && token < end ? exp2f(own[token] - largest) / sum : 0.0f;
  }
  __syncthreads();  // the probabilities of all tokens are there

  const u32 word = threadIdx.x % HEAD_WORDS;
  const u32 slice = threadIdx.x / HEAD_WORDS;
  if (slice < SLICES) {
    const u32* rows = values + blockIdx.y / GROUP_SIZE * prompt * HEAD_WORDS;
    float2 part = make_float2(0.0f, 0.0f);
    for (u32 token = begin + slice; token < end; token += SLICES) {
      const float2 value = unpack_half2(rows[token * HEAD_WORDS + word]);
      part.x += own[token] * value.x;
      part.y += own[token] * value.y;
    }
    parts[threadIdx.x] = part;
  }
  __syncthreads();  // every slice of the tokens is summed

  if (threadIdx.x >= HEAD_WORDS) return;
  float2 output = make_float2(0.0f, 0.0f);
  for (u32 i = 0; i < SLICES; ++i) {
    output.x += parts[i * HEAD_WORDS + threadIdx.x].x;
    output.y += parts[i * HEAD_WORDS + threadIdx.x].y;
  }
  outputs[row * HEAD_DIM + threadIdx.x * 2] = output.x;
  outputs[row * HEAD_DIM + threadIdx.x * 2 + 1] = output.y;
}
