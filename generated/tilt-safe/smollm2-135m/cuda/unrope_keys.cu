// unrope_keys: Un-rotates the keys of the middle and sums every channel, over a tile of tokens.
// Stage unrope of scheme tilt-safe for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 PAIRS = 32;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 ANGLE_TILE = 64;  // rows of the fine angle table
constexpr u32 FINE_ANGLES = 264;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
constexpr u32 COARSE_ANGLES = 8456;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_PROMPT_TOKENS = 5;  // in the record, tokens of the prompt in the input of the encode stages
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile

// dsl/codecs/unrope.ts:22 unrotatePair
// Undoes `rotatePair`.
__device__ __forceinline__ float2 unrotate_pair(float a, float b, float2 angle) {
  return make_float2(a * angle.x + b * angle.y, b * angle.x - a * angle.y);
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

// The rotary angle of one pair at a position, as (cosine, sine).
__device__ __forceinline__ float2 angle_at(const float* __restrict__ tables, u32 position, u32 pair) {
  const float* coarse = tables + COARSE_ANGLES + (position / ANGLE_TILE * PAIRS + pair) * 2;
  const float* fine = tables + FINE_ANGLES + (position % ANGLE_TILE * PAIRS + pair) * 2;
  return add_angles(make_float2(coarse[0], coarse[1]), make_float2(fine[0], fine[1]));
}

// One tile of middle tokens of one KV head a block, one rotary pair a thread.
extern "C" __global__ void __launch_bounds__(32) unrope_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ keys,  // f16 [3 KV heads][prompt tokens][64], after RoPE
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    float* plain,  // [middle tokens][192], before RoPE
    float* partial_sums  // [tiles][192]
) {
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 sinks = sequence[AT_SINK_TOKENS];
  const u32 prompt = sequence[AT_PROMPT_TOKENS];
  const u32 head = blockIdx.y;
  const u32 pair = threadIdx.x;
  const u32 first = blockIdx.x * TILE_TOKENS;
  if (first >= middle || pair >= PAIRS) return;

  const u32 end = min(first + TILE_TOKENS, middle);
  const u32 first_channel = first_of_pair_32_32_0(pair);
  const u32 second_channel = second_of_pair_32_32_0(pair);
  float first_sum = 0.0f;
  float second_sum = 0.0f;
  for (u32 token = first; token < end; ++token) {
    // Sinks come before the middle, so a middle token's place in the prompt is also its position.
    const u32 position = sinks + token;
    const u32* key = keys + (head * prompt + position) * (HEAD_DIM / 2);
    const float2 angle = angle_at(tables, position, pair);
    const float2 unturned = unrotate_pair(half_at(key, first_channel), half_at(key, second_channel), angle);
    float* row = plain + token * WIDTH + head * HEAD_DIM;  // in the order of pairs
    row[pair] = unturned.x;
    row[PAIRS + pair] = unturned.y;
    first_sum += unturned.x;
    second_sum += unturned.y;
  }

  float* sums = partial_sums + blockIdx.x * WIDTH + head * HEAD_DIM;
  sums[pair] = first_sum;
  sums[PAIRS + pair] = second_sum;
}
