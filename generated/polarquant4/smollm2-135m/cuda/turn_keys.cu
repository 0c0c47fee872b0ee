// turn_keys: The middle keys as float32, radius and angle / pi: a tile of tokens of one KV head a block.
// Stage codeKeys of scheme polarquant4 for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   polar, perChannel(midRise, 4 bits; a scale for 1 channel of 128 tokens)
// values: perToken(asymmetric, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 0, window 128
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 PAIRS = 32;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_PROMPT_TOKENS = 5;  // in the record, tokens of the prompt in the input of the encode stages
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile

// dsl/codecs/polar.ts:25 arctangent
// The arctangent of a slope from 0 to 1, over pi; 1.6e-8 of it is the polynomial's error.
__device__ __forceinline__ float arctangent(float slope) {
  const float square = slope * slope;
  float sum = 0.0009071472f;
  sum = sum * square - 0.005114799f;
  sum = sum * square + 0.013589124f;
  sum = sum * square - 0.023886902f;
  sum = sum * square + 0.03387114f;
  sum = sum * square - 0.045211603f;
  sum = sum * square + 0.063638484f;
  sum = sum * square - 0.10610247f;
  sum = sum * square + 0.31830988f;
  return slope * sum;
}

// dsl/codecs/polar.ts:41 toPolar
// The radius of the point (a, b) and its angle over pi, from -1 to 1: 0 for the origin, and 1 for (-1, -0) as for (-1, 0).
__device__ __forceinline__ float2 to_polar(float a, float b) {
  const float longer = fmaxf(fabsf(a), fabsf(b));
  const float shorter = fminf(fabsf(a), fabsf(b));
  float angle = 0.0f;
  if (longer > 0.0f) {
    angle = arctangent(shorter / longer);
  }
  if (fabsf(b) > fabsf(a)) {
    angle = 0.5f - angle;
  }
  if (a < 0.0f) {
    angle = 1.0f - angle;
  }
  return make_float2(sqrtf(a * a + b * b), b < 0.0f ? -angle : angle);
}

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
__device__ __forceinline__ float2 add_angles(float2 coarse, float2 fine) {
  return make_float2(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 32, pairs = 32, interleaved = 0
// The first channel of a pair.
__device__ __forceinline__ u32 first_of_pair_32_32_0(u32 pair) {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 32, pairs = 32, interleaved = 0
// The second channel of a pair.
__device__ __forceinline__ u32 second_of_pair_32_32_0(u32 pair) {
  return pair + 32u;
}

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// One tile of middle tokens of one KV head a block, one rotary pair a thread.
extern "C" __global__ void __launch_bounds__(32) turn_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ vectors,  // f16 [3 KV heads][prompt tokens][64], after RoPE
    float* plain  // [middle tokens][192], radius and angle / pi
) {
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 sinks = sequence[AT_SINK_TOKENS];
  const u32 prompt = sequence[AT_PROMPT_TOKENS];
  const u32 head = blockIdx.y;
  const u32 first = blockIdx.x * TILE_TOKENS;
  const u32 end = min(first + TILE_TOKENS, middle);
  const u32 pair = threadIdx.x;
  if (pair >= PAIRS) return;
  const u32 first_channel = first_of_pair_32_32_0(pair);
  const u32 second_channel = second_of_pair_32_32_0(pair);
  for (u32 token = first; token < end; ++token) {
    // Sinks come before the middle, so a middle token's place in the prompt is also its position.
    const u32 position = sinks + token;
    const u32* vector = vectors + (head * prompt + position) * (HEAD_DIM / 2);
    float* row = plain + token * WIDTH + head * HEAD_DIM;
    const float2 coded = to_polar(half_at(vector, first_channel), half_at(vector, second_channel));
    row[first_channel] = coded.x;
    row[second_channel] = coded.y;
  }
}
