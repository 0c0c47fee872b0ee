// weigh_queries: Sums of squares of every pair, over the observed queries of all query heads of the KV head.
// Stage weigh of scheme tilt-fast for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 PAIRS = 64;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 GROUP_SIZE = 4;  // query heads that share a KV head
constexpr u32 AT_QUERY_TOKENS = 9;  // in the record, queries that came with the prompt, of its last tokens
constexpr u32 OBSERVED_QUERIES = 4294967295;  // queries that are observed, at most: the last ones given

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

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// One KV head a block, one pair a thread.
extern "C" __global__ void __launch_bounds__(64) weigh_queries(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ queries,  // f16 [32 heads][query tokens][128], the last of the prompt, after RoPE
    float* squares  // [8 KV heads][64 pairs]
) {
  const u32 given = sequence[AT_QUERY_TOKENS];
  const u32 observed = min(given, OBSERVED_QUERIES);
  const u32 pair = threadIdx.x;
  if (pair >= PAIRS) return;

  float sum = 0.0f;
  for (u32 head = blockIdx.x * GROUP_SIZE; head < (blockIdx.x + 1) * GROUP_SIZE; ++head) {
    // The observed queries are the last of those that were given.
    for (u32 token = given - observed; token < given; ++token) {
      const u32* query = queries + (head * given + token) * (HEAD_DIM / 2);
      const float a = half_at(query, first_of_pair_64_64_0(pair));
      const float b = half_at(query, second_of_pair_64_64_0(pair));
      sum += a * a + b * b;
    }
  }
  squares[blockIdx.x * PAIRS + pair] = sum;
}
