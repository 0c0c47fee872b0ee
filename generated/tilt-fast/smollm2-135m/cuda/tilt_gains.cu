// tilt_gains: The gain of every channel.
// Stage codeValues of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_VALUE_GAINS = 46;  // in the record, first word of valueGains: f16 [3 KV heads][64], after Hadamard
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile

// dsl/codecs/vq.ts:47 unbiasedGain
// The factor that makes a channel's code unbiased: sum(y^2) over sum(y * coded y); 1 where that says nothing.
__device__ __forceinline__ float unbiased_gain(float squares, float products) {
  float gain = 1.0f;
  if (products > 0.0f) {
    gain = squares / products;
  }
  return fminf(fmaxf(gain, 0.25f), 4.0f);
}

// Two channels a thread: one word of the stored gains.
extern "C" __global__ void __launch_bounds__(64) tilt_gains(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_products,  // [tiles][2: squares, products with the coded value][192]
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  const u32 word = blockIdx.x * THREADS + threadIdx.x;
  if (word >= WIDTH / 2) return;

  const u32 tiles = (sequence[AT_MIDDLE_TOKENS] + TILE_TOKENS - 1) / TILE_TOKENS;
  const auto gain = [&](u32 channel) {
    float squares = 0.0f;
    float products = 0.0f;
    for (u32 tile = 0; tile < tiles; ++tile) {
      squares += partial_products[tile * 2 * WIDTH + channel];
      products += partial_products[(tile * 2 + 1) * WIDTH + channel];
    }
    return unbiased_gain(squares, products);
  };
  cache[sequence[AT_VALUE_GAINS] + word] = pack_half2(gain(word * 2), gain(word * 2 + 1));
}
