// mean_keys: Finishes the mean; the f16 value that is stored is the one every later stage subtracts.
// Stage unrope of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_MEAN = 18;  // in the record, first word of keyMean: f16 [3 KV heads][64] channels, in the order of pairs, before RoPE
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile

// Two channels as one word of f16; what f16 cannot hold becomes its largest value, never infinity.
__device__ __forceinline__ u32 saturated_pair(float low, float high) {
  return static_cast<u32>(float_to_half_saturated(low)) | static_cast<u32>(float_to_half_saturated(high)) << 16;
}

// Two channels a thread: one word of the stored mean.
extern "C" __global__ void __launch_bounds__(64) mean_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_sums,  // [tiles][192]
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    float* mean  // [192], rounded to f16
) {
  const u32 word = blockIdx.x * THREADS + threadIdx.x;
  if (word >= WIDTH / 2) return;

  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 tiles = (middle + TILE_TOKENS - 1) / TILE_TOKENS;
  float sum_low = 0.0f;
  float sum_high = 0.0f;
#pragma unroll 8  // loads in flight together
  for (u32 tile = 0; tile < tiles; ++tile) {
    sum_low += partial_sums[tile * WIDTH + word * 2];
    sum_high += partial_sums[tile * WIDTH + word * 2 + 1];
  }
  const float count = static_cast<float>(middle > 0 ? middle : 1u);
  const u32 stored = saturated_pair(sum_low / count, sum_high / count);
  cache[sequence[AT_KEY_MEAN] + word] = stored;

  // Later stages subtract what is stored, so that the rounding to f16 is not lost.
  const float2 rounded = unpack_half2(stored);
  mean[word * 2] = rounded.x;
  mean[word * 2 + 1] = rounded.y;
}
