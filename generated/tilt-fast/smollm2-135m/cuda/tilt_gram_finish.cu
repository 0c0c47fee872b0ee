// tilt_gram_finish: Adds the slices in order.
// Stage fit of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 SLICES = 8;  // threads, or blocks, that share one sum

// One entry of the matrices a thread.
extern "C" __global__ void __launch_bounds__(256) tilt_gram_finish(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_gram,  // [8 slices of the tokens][3 KV heads][64][64], sums
    float* small  // [3 KV heads][64][64], second moments
) {
  const u32 entry = blockIdx.x * THREADS + threadIdx.x;
  if (entry >= WIDTH * HEAD_DIM) return;

  float total = 0.0f;
#pragma unroll
  for (u32 slice = 0; slice < SLICES; ++slice) total += partial_gram[slice * WIDTH * HEAD_DIM + entry];
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  small[entry] = total / static_cast<float>(middle > 0 ? middle : 1u);
}
