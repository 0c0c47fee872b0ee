// mass_scores: Scores of the query tokens and a tile of decoded tokens, for all query heads of a KV head.
// Stage mass of scheme tilt-safe for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 HEADS = 9;  // query heads
constexpr u32 GROUP_SIZE = 3;  // query heads that share a KV head
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile
constexpr u32 TOKEN_STRIDE = 33;  // words from one token of a tile to the next; odd, to spread them over the banks
constexpr float SCORE_SCALE = 0.180336878f;  // what q.k is multiplied with first

constexpr u32 HEAD_WORDS = HEAD_DIM / 2;

// Tokens that the sequence holds, in all its segments.
__device__ __forceinline__ u32 held_tokens(const u32* sequence) {
  return sequence[AT_SINK_TOKENS] + sequence[AT_MIDDLE_TOKENS] + sequence[AT_STREAM_TOKENS] +
         sequence[AT_WINDOW_TOKENS];
}

// The base-2 exponent of a token's weight, from its scaled score.
__device__ __forceinline__ float score_exponent(float scaled) { return scaled; }

// One tile of tokens of one KV head a block: its keys are staged once for every query token of every head. Scores of
// tokens that a query does not see are written too, and left out when the row is summed.
extern "C" __global__ void __launch_bounds__(256) mass_scores(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ call,  // [query tokens, tokens held after the last of them]
    const u32* __restrict__ keys,  // f16 [3 KV heads][tokens][64], after RoPE
    const u32* __restrict__ query,  // f16 [query tokens][9 heads][64], after RoPE
    float* scores  // [9 heads][query tokens][tokens], base-2 exponents
) {
  __shared__ u32 tile[TILE_TOKENS * TOKEN_STRIDE];
  const u32 tokens = held_tokens(sequence);
  const u32 queries = call[0];
  const u32 kv_head = blockIdx.y;
  const u32 first = blockIdx.x * TILE_TOKENS;
  if (first >= tokens) return;

  const u32 count = min(TILE_TOKENS, tokens - first);
  const u32* rows = keys + (kv_head * tokens + first) * HEAD_WORDS;
  for (u32 i = threadIdx.x; i < count * HEAD_WORDS; i += THREADS) {
    tile[i / HEAD_WORDS * TOKEN_STRIDE + i % HEAD_WORDS] = rows[i];
  }
  __syncthreads();  // the keys are staged

  for (u32 i = threadIdx.x; i < GROUP_SIZE * queries * TILE_TOKENS; i += THREADS) {
    const u32 token = i % TILE_TOKENS;
    const u32 head = kv_head * GROUP_SIZE + i / TILE_TOKENS / queries;
    const u32 index = i / TILE_TOKENS % queries;
    if (token >= count) continue;
    const u32* row = query + (index * HEADS + head) * HEAD_WORDS;
    float sum = 0.0f;
    for (u32 word = 0; word < HEAD_WORDS; ++word) {
      const float2 a = unpack_half2(row[word]);
      const float2 b = unpack_half2(tile[token * TOKEN_STRIDE + word]);
      sum += a.x * b.x + a.y * b.y;
    }
    scores[(head * queries + index) * tokens + first + token] = score_exponent(sum * SCORE_SCALE);
  }
}
