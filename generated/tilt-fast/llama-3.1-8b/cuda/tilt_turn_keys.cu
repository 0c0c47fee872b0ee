// tilt_turn_keys: plain = weights * R(place in the tile) * (plain - mean), a tile of tokens of one KV head a block.
// Stage turnKeys of scheme tilt-fast for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 PAIRS = 64;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 TILE = 64;  // positions of a tile, whose keys are rotated together
constexpr u32 TILE_ANGLES = 8452;  // offset in the tables: [TILE][PAIRS](cosine, sine) of the place in a tile, position % TILE - (TILE - 1) / 2
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile

// dsl/codecs/unrope.ts:16 rotatePair
// Turns the pair (a, b) by the angle whose cosine and sine are given.
__device__ __forceinline__ float2 rotate_pair(float a, float b, float2 angle) {
  return make_float2(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
__device__ __forceinline__ float2 add_angles(float2 coarse, float2 fine) {
  return make_float2(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

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

// One tile of middle tokens of one KV head a block, one pair a thread.
extern "C" __global__ void __launch_bounds__(64) tilt_turn_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    const float* __restrict__ mean,  // [1024]
    const float* __restrict__ weights,  // [1024], both channels of a pair alike
    float* plain  // [middle tokens][1024], before RoPE; tile-rotated and weighted afterwards
) {
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 pair = threadIdx.x;
  if (pair >= PAIRS) return;

  const u32 first_channel = blockIdx.y * HEAD_DIM + pair;
  const u32 second_channel = first_channel + PAIRS;
  const float first_mean = mean[first_channel];
  const float second_mean = mean[second_channel];
  const float weight = weights[first_channel];  // that of both
  const u32 end = min((blockIdx.x + 1) * TILE_TOKENS, middle);
  for (u32 token = blockIdx.x * TILE_TOKENS; token < end; ++token) {
    const u32 place = (sequence[AT_SINK_TOKENS] + token) % TILE;
    const float* angle = tables + TILE_ANGLES + (place * PAIRS + pair) * 2;
    float* row = plain + token * WIDTH;
    const float2 turned = rotate_pair(
        row[first_channel] - first_mean, row[second_channel] - second_mean, make_float2(angle[0], angle[1]));
    row[first_channel] = weight * turned.x;
    row[second_channel] = weight * turned.y;
  }
}
