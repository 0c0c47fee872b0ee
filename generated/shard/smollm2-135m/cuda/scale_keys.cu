// scale_keys: One f16 scale a component from its magnitudes and its width.
// Stage project of scheme shard for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 64

#include "prelude.cuh"

constexpr u32 RANK = 32;  // components of a key
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [32 components]
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 64;  // tokens of a tile

// dsl/codecs/pca.ts:119 coefficientScale, bits = 4
// The scale that maps a component's largest magnitude to the largest code; stored as f16, saturated.
__device__ __forceinline__ float coefficient_scale_4(float max_abs) {
  return round_to_half(fminf(max_abs / 7.0f, 65504.0f));
}

// The scale of a component, by the width of its group; a group without bits stores nothing.
// Differences wrap: a component below the group is far above its size.
__device__ __forceinline__ float scale_of(u32 component, float largest) {
  if (component - 0u < 32u) return coefficient_scale_4(largest);
  return 0.0f;
}

// Two components a thread: one word of the stored scales.
extern "C" __global__ void __launch_bounds__(64) scale_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_maxima,  // [tiles][32]
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    float* scales  // [32], rounded to f16
) {
  const u32 word = blockIdx.x * THREADS + threadIdx.x;
  if (word >= RANK / 2) return;

  const u32 tiles = (sequence[AT_MIDDLE_TOKENS] + TILE_TOKENS - 1) / TILE_TOKENS;
  float largest_low = 0.0f;
  float largest_high = 0.0f;
#pragma unroll 8  // loads in flight together
  for (u32 tile = 0; tile < tiles; ++tile) {
    largest_low = fmaxf(largest_low, partial_maxima[tile * RANK + word * 2]);
    largest_high = fmaxf(largest_high, partial_maxima[tile * RANK + word * 2 + 1]);
  }
  const float low = scale_of(word * 2, largest_low);
  const float high = scale_of(word * 2 + 1, largest_high);
  cache[sequence[AT_KEY_SCALES] + word] = pack_half2(low, high);
  scales[word * 2] = low;
  scales[word * 2 + 1] = high;
}
