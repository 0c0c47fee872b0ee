// weigh_queries: Sums of squares of every pair, over a tile of query tokens and all query heads of the KV head.
// Stage weigh of scheme shard-plus for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 PAIRS = 64;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 GROUP_SIZE = 4;  // query heads that share a KV head
constexpr u32 AT_QUERY_TOKENS = 9;  // record: queries that came with the prompt, of its last tokens
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 64, pairs = 64, interleaved = 0
// The first channel of a pair.
__device__ __forceinline__ u32 first_of_pair_64_64_0(u32 pair) {
  u32 channel = pair;
  return channel;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 64, pairs = 64, interleaved = 0
// The second channel of a pair.
__device__ __forceinline__ u32 second_of_pair_64_64_0(u32 pair) {
  u32 channel = pair + 64u;
  return channel;
}

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// One tile of query tokens of one KV head a block, one pair a thread.
extern "C" __global__ void __launch_bounds__(64) weigh_queries(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ queries,  // f16 [32 heads][query tokens][128], before or after RoPE
    float* partial_squares  // [tiles][8 KV heads][64 pairs]
) {
  const u32 tokens = sequence[AT_QUERY_TOKENS];
  const u32 pair = threadIdx.x;
  const u32 first = blockIdx.x * TILE_TOKENS;
  if (first >= tokens || pair >= PAIRS) return;

  const u32 end = min(first + TILE_TOKENS, tokens);
  float sum = 0.0f;
  for (u32 head = blockIdx.y * GROUP_SIZE; head < (blockIdx.y + 1) * GROUP_SIZE; ++head) {
    for (u32 token = first; token < end; ++token) {
      const u32* query = queries + (head * tokens + token) * (HEAD_DIM / 2);
      const float a = half_at(query, first_of_pair_64_64_0(pair));
      const float b = half_at(query, second_of_pair_64_64_0(pair));
      sum += a * a + b * b;
    }
  }
  partial_squares[(blockIdx.x * KV_HEADS + blockIdx.y) * PAIRS + pair] = sum;
}
