// tilt_products: Sums of y * y and of y * coded y of every channel over a tile of tokens.
// Stage codeValues of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 VALUE_LEVELS = 256;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile

// dsl/codecs/lloydMax.ts:65 nearestLevel, bits = 2
// Index of the level nearest to `x` (a channel over its norm), by bisection of the midpoints.
template <typename Levels>
__device__ __forceinline__ u32 nearest_level_2(float x, Levels levels) {
  u32 code = 0u;
  #pragma unroll
  for (u32 step = 0u; step < 2u; step++) {
    const u32 probe = code + (1u << (1u - step));
    if (x * 2.0f > levels(probe - 1u) + levels(probe)) {
      code = probe;
    }
  }
  return code;
}

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
template <typename Levels>
__device__ __forceinline__ float level_value(u32 code, Levels levels) {
  return levels(code);
}

// One tile of middle tokens of one KV head a block, one channel a thread.
extern "C" __global__ void __launch_bounds__(64) tilt_products(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][192], after Hadamard
    const float* __restrict__ norms,  // [middle tokens][3 KV heads], rounded to f16
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    float* partial_products  // [tiles][2: squares, products with the coded value][192]
) {
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 first = blockIdx.x * TILE_TOKENS;
  if (first >= middle || threadIdx.x >= HEAD_DIM) return;

  const u32 end = min(first + TILE_TOKENS, middle);
  const auto level_at = [&](u32 level) { return tables[VALUE_LEVELS + level]; };
  const u32 channel = blockIdx.y * HEAD_DIM + threadIdx.x;
  float squares = 0.0f;
  float products = 0.0f;
  for (u32 token = first; token < end; ++token) {
    const float value = plain[token * WIDTH + channel];
    const float norm = norms[token * KV_HEADS + blockIdx.y];
    const u32 code = nearest_level_2(norm > 0.0f ? value / norm : 0.0f, level_at);
    squares += value * value;
    products += value * (norm * level_value(code, level_at));
  }
  partial_products[blockIdx.x * 2 * WIDTH + channel] = squares;
  partial_products[(blockIdx.x * 2 + 1) * WIDTH + channel] = products;
}
