// scale_keys: One f16 scale a component from its magnitudes and its width.
// Stage project of scheme shard-plus for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 64

#include "prelude.cuh"

constexpr u32 RANK = 192;  // components of a key
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [192 components]
constexpr u32 AT_KEY_WIDTHS = 26;  // in the record, first word of keyWidths: u32 [12 groups of 16 components]: first bit in the row * 16 + bits a component
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 64;  // tokens of a tile

// dsl/codecs/midRise.ts:12 midRiseStep
// The step of a component, stored as f16 and saturated: its range over 2^bits levels.
__device__ __forceinline__ float mid_rise_step(float max_abs, float mean_abs, u32 bits) {
  float step = 0.0f;
  if (bits == 1u) {
    step = 2.0f * mean_abs;
  } else if (bits > 1u) {
    step = 2.0f * max_abs / float(1u << bits);
  }
  return round_to_half(fminf(step, 65504.0f));
}

// The step of a component, by the width that its group of 16 was given.
__device__ __forceinline__ float step_of(u32 width, float largest, float sum, u32 tokens) {
  return mid_rise_step(largest, sum / static_cast<float>(tokens > 0 ? tokens : 1u), width & 15u);
}

// Two components a thread: one word of the stored scales.
extern "C" __global__ void __launch_bounds__(64) scale_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_maxima,  // [tiles][192]
    const float* __restrict__ partial_magnitudes,  // [tiles][192], sums
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    float* scales  // [192], rounded to f16
) {
  const u32 word = blockIdx.x * THREADS + threadIdx.x;
  if (word >= RANK / 2) return;

  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 tiles = (middle + TILE_TOKENS - 1) / TILE_TOKENS;
  float sum_low = 0.0f;
  float sum_high = 0.0f;
  float largest_low = 0.0f;
  float largest_high = 0.0f;
#pragma unroll 8  // loads in flight together
  for (u32 tile = 0; tile < tiles; ++tile) {
    largest_low = fmaxf(largest_low, partial_maxima[tile * RANK + word * 2]);
    largest_high = fmaxf(largest_high, partial_maxima[tile * RANK + word * 2 + 1]);
    sum_low += partial_magnitudes[tile * RANK + word * 2];
    sum_high += partial_magnitudes[tile * RANK + word * 2 + 1];
  }
  const u32 width = cache[sequence[AT_KEY_WIDTHS] + word / 8];
  const float low = step_of(width, largest_low, sum_low, middle);
  const float high = step_of(width, largest_high, sum_high, middle);
  cache[sequence[AT_KEY_SCALES] + word] = pack_half2(low, high);
  scales[word * 2] = low;
  scales[word * 2 + 1] = high;
}
