// gram_finish: Adds the slices in order; both halves of the matrix are written.
// Stage gram of scheme shard for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: perThread = 4

#include "prelude.cuh"

constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 SLICES = 8;  // threads, or blocks, that share one sum

// One 16 x 16 tile on or above the diagonal a block, one entry a thread; both halves are written.
extern "C" __global__ void __launch_bounds__(256) gram_finish(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_gram,  // [8 slices of the tokens][1024][1024], sums; on and above the diagonal
    float* gram  // [1024][1024], divided by the middle tokens; zero for an empty middle
) {
  const u32 row = blockIdx.y * 16 + threadIdx.x / 16;
  const u32 column = blockIdx.x * 16 + threadIdx.x % 16;
  if (row > column) return;

  float total = 0.0f;
#pragma unroll
  for (u32 slice = 0; slice < SLICES; ++slice) total += partial_gram[(slice * WIDTH + row) * WIDTH + column];
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const float moment = total / static_cast<float>(middle > 0 ? middle : 1u);
  gram[row * WIDTH + column] = moment;
  gram[column * WIDTH + row] = moment;
}
