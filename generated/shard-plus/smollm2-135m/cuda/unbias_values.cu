// unbias_values: Multiplies the scale of every channel by its gain.
// Stage unbias of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_CHANNEL_MAX = 21;  // in the record, first word of channelMax: f16 [3 KV heads][64], after Hadamard
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile

// dsl/codecs/vq.ts:47 unbiasedGain
// The factor that makes a channel's code unbiased: sum(y^2) over sum(y * coded y); 1 where that says nothing.
__device__ __forceinline__ float unbiased_gain(float squares, float products) {
  float gain = 1.0f;
  if (products > 0.0f) {
    gain = squares / products;
  }
  return fminf(fmaxf(gain, 0.25f), 4.0f);
}

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
extern "C" __global__ void __launch_bounds__(64) unbias_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_products,  // [tiles][2: squares, products with the coded value][192]
    const float* __restrict__ channel_scales,  // [192], as the codes were chosen with
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  const u32 word = blockIdx.x * THREADS + threadIdx.x;
  if (word >= WIDTH / 2) return;

  const u32 tiles = (sequence[AT_MIDDLE_TOKENS] + TILE_TOKENS - 1) / TILE_TOKENS;
  const auto unbiased_scale = [&](u32 channel) {
    float squares = 0.0f;
    float products = 0.0f;
    for (u32 tile = 0; tile < tiles; ++tile) {
      squares += partial_products[tile * 2 * WIDTH + channel];
      products += partial_products[(tile * 2 + 1) * WIDTH + channel];
    }
    return channel_scale(channel_scales[channel] * unbiased_gain(squares, products));
  };
  cache[sequence[AT_CHANNEL_MAX] + word] = pack_half2(unbiased_scale(word * 2), unbiased_scale(word * 2 + 1));
}
