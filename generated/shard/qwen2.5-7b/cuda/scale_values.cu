// scale_values: The f16 scale of every (head, channel).
// Stage values of scheme shard for qwen2.5-7b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 96, bits 4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 WIDTH = 512;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_CHANNEL_MAX = 21;  // in the record, first word of channelMax: f16 [4 KV heads][128], after Hadamard
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile

// dsl/codecs/channelMax.ts:20 clampToHalf
__device__ __forceinline__ float clamp_to_half(float max_abs) {
  return fminf(fmaxf(max_abs, 1.1920929e-7f), 65504.0f);
}

// dsl/codecs/channelMax.ts:15 channelScale
// The stored f16 scale of a channel: never zero (the floor is 2^-23), never infinite.
__device__ __forceinline__ float channel_scale(float max_abs) {
  return round_to_half(clamp_to_half(max_abs));
}

// Two channels a thread: one word of the stored scales.
extern "C" __global__ void __launch_bounds__(64) scale_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_maxima,  // [tiles][512]
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    float* channel_scales  // [512], rounded to f16, never zero
) {
  const u32 word = blockIdx.x * THREADS + threadIdx.x;
  if (word >= WIDTH / 2) return;

  const u32 tiles = (sequence[AT_MIDDLE_TOKENS] + TILE_TOKENS - 1) / TILE_TOKENS;
  float largest_low = 0.0f;
  float largest_high = 0.0f;
#pragma unroll 8  // loads in flight together
  for (u32 tile = 0; tile < tiles; ++tile) {
    largest_low = fmaxf(largest_low, partial_maxima[tile * WIDTH + word * 2]);
    largest_high = fmaxf(largest_high, partial_maxima[tile * WIDTH + word * 2 + 1]);
  }
  const float low = channel_scale(largest_low);
  const float high = channel_scale(largest_high);
  cache[sequence[AT_CHANNEL_MAX] + word] = pack_half2(low, high);
  channel_scales[word * 2] = low;
  channel_scales[word * 2 + 1] = high;
}
