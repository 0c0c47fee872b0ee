// observe_tokens: Sensitivity and attention of a tile of middle tokens, summed over queries and heads of a KV head.
// Stage observe of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 GROUP_SIZE = 3;  // query heads that share a KV head
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_PROMPT_TOKENS = 5;  // in the record, tokens of the prompt in the input of the encode stages
constexpr u32 AT_QUERY_TOKENS = 9;  // in the record, queries that came with the prompt, of its last tokens
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile
constexpr u32 TOKEN_STRIDE = 33;  // words from one token of a tile to the next; odd, to spread them over the banks
constexpr u32 OBSERVED_QUERIES = 32;  // queries that are observed, at most: the last ones given
constexpr u32 SLICES = 8;  // threads, or blocks, that share one sum

constexpr u32 HEAD_WORDS = HEAD_DIM / 2;

// One tile of middle tokens of one KV head a block. A thread takes one token and every SLICES-th of the rows, which are
// the observed queries of all query heads of the group.
extern "C" __global__ void __launch_bounds__(256) observe_tokens(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ values,  // f16 [3 KV heads][prompt tokens][64]
    const float* __restrict__ probabilities,  // [9 heads][observed queries][prompt tokens], 0 for tokens out of sight
    const float* __restrict__ outputs,  // [9 heads][observed queries][64]
    float* sensitivities,  // [middle tokens][3 KV heads]: sums of (probability * |value - output|)^2
    float* masses  // [middle tokens][3 KV heads]: sums of probabilities
) {
  __shared__ u32 tile[TILE_TOKENS * TOKEN_STRIDE];
  __shared__ float2 parts[THREADS];  // sensitivity and mass over a slice of the rows
  const u32 prompt = sequence[AT_PROMPT_TOKENS];
  const u32 sinks = sequence[AT_SINK_TOKENS];
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 rows = GROUP_SIZE * min(sequence[AT_QUERY_TOKENS], OBSERVED_QUERIES);
  const u32 kv_head = blockIdx.y;
  const u32 first = blockIdx.x * TILE_TOKENS;
  if (first >= middle) return;

  const u32 count = min(TILE_TOKENS, middle - first);
  const u32* source = values + (kv_head * prompt + sinks + first) * HEAD_WORDS;
  for (u32 i = threadIdx.x; i < count * HEAD_WORDS; i += THREADS) {
    tile[i / HEAD_WORDS * TOKEN_STRIDE + i % HEAD_WORDS] = source[i];
  }
  __syncthreads();  // the values are staged

  const u32 token = threadIdx.x % TILE_TOKENS;
  float sensitivity = 0.0f;
  float mass = 0.0f;
  if (token < count) {
    for (u32 row = kv_head * rows + threadIdx.x / TILE_TOKENS; row < (kv_head + 1) * rows; row += SLICES) {
      // An error of the token's score moves the output by the probability times what sets the value apart from it.
      const float* output = outputs + row * HEAD_DIM;
      float distance = 0.0f;
      for (u32 word = 0; word < HEAD_WORDS; ++word) {
        const float2 value = unpack_half2(tile[token * TOKEN_STRIDE + word]);
        const float x = value.x - output[word * 2];
        const float y = value.y - output[word * 2 + 1];
        distance += x * x + y * y;
      }
      const float probability = probabilities[row * prompt + sinks + first + token];
      sensitivity += probability * probability * distance;
      mass += probability;
    }
  }
  parts[threadIdx.x] = make_float2(sensitivity, mass);
  __syncthreads();  // every slice of the rows is summed

  if (threadIdx.x >= count) return;
  for (u32 slice = 1; slice < SLICES; ++slice) {
    sensitivity += parts[slice * TILE_TOKENS + token].x;
    mass += parts[slice * TILE_TOKENS + token].y;
  }
  sensitivities[(first + token) * KV_HEADS + kv_head] = sensitivity;
  masses[(first + token) * KV_HEADS + kv_head] = mass;
}
