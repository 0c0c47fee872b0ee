// observe_scores: Scores of the observed queries and a tile of prompt tokens, for all query heads of a KV head.
// Stage observe of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 GROUP_SIZE = 3;  // query heads that share a KV head
constexpr u32 AT_PROMPT_TOKENS = 5;  // in the record, tokens of the prompt in the input of the encode stages
constexpr u32 AT_QUERY_TOKENS = 9;  // in the record, queries that came with the prompt, of its last tokens
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile
constexpr u32 TOKEN_STRIDE = 33;  // words from one token of a tile to the next; odd, to spread them over the banks
constexpr u32 OBSERVED_QUERIES = 32;  // queries that are observed, at most: the last ones given
constexpr float SCORE_SCALE = 0.180336878f;  // what q.k is multiplied with first

constexpr u32 HEAD_WORDS = HEAD_DIM / 2;

// The base-2 exponent of a token's weight, from its scaled score.
__device__ __forceinline__ float score_exponent(float scaled) { return scaled; }

// One tile of prompt tokens of one KV head a block: its keys are staged once for every query of every head.
extern "C" __global__ void __launch_bounds__(256) observe_scores(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ keys,  // f16 [3 KV heads][prompt tokens][64], after RoPE
    const u32* __restrict__ queries,  // f16 [9 heads][query tokens][64], the last of the prompt, after RoPE
    float* scores  // [9 heads][observed queries][prompt tokens], base-2 exponents
) {
  __shared__ u32 tile[TILE_TOKENS * TOKEN_STRIDE];
  const u32 prompt = sequence[AT_PROMPT_TOKENS];
  const u32 given = sequence[AT_QUERY_TOKENS];
  const u32 observed = min(given, OBSERVED_QUERIES);
  const u32 kv_head = blockIdx.y;
  const u32 first = blockIdx.x * TILE_TOKENS;
  if (first >= prompt) return;

  const u32 count = min(TILE_TOKENS, prompt - first);
  const u32* rows = keys + (kv_head * prompt + first) * HEAD_WORDS;
  for (u32 i = threadIdx.x; i < count * HEAD_WORDS; i += THREADS) {
    tile[i / HEAD_WORDS * TOKEN_STRIDE + i % HEAD_WORDS] = rows[i];
  }
  __syncthreads();  // the keys are staged

  for (u32 i = threadIdx.x; i < GROUP_SIZE * observed * TILE_TOKENS; i += THREADS) {
    const u32 token = i % TILE_TOKENS;
    const u32 head = kv_head * GROUP_SIZE + i / TILE_TOKENS / observed;
    const u32 index = i / TILE_TOKENS % observed;
    if (token >= count) continue;
    // The observed queries are the last of those that were given.
    const u32* query = queries + (head * given + given - observed + index) * HEAD_WORDS;
    float sum = 0.0f;
    for (u32 word = 0; word < HEAD_WORDS; ++word) {
      const float2 a = unpack_half2(query[word]);
      const float2 b = unpack_half2(tile[token * TOKEN_STRIDE + word]);
      sum += a.x * b.x + a.y * b.y;
    }
    scores[(head * observed + index) * prompt + first + token] = score_exponent(sum * SCORE_SCALE);
  }
}
