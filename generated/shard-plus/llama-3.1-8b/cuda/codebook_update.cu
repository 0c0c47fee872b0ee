// codebook_update: New centroids from the sums, block by block in order; an empty cell keeps its centroid.
// Stage codebook of scheme shard-plus for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 1024

#include "prelude.cuh"

constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 POINTS_PER_BLOCK = 1024;  // points that a block assigns

// One entry a thread: the mean of its members over all blocks, block by block in order.
extern "C" __global__ void __launch_bounds__(64) codebook_update(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_cells,  // [blocks][256][5]: sums, then the weight
    float* centroids  // [256][4]
) {
  const u32 entry = blockIdx.x * THREADS + threadIdx.x;
  if (entry >= ENTRIES) return;

  const u32 points = sequence[AT_MIDDLE_TOKENS] * (WIDTH / CHANNELS);
  const u32 blocks = (points + POINTS_PER_BLOCK - 1) / POINTS_PER_BLOCK;
  float sum[CHANNELS] = {};
  float members = 0.0f;
  for (u32 block = 0; block < blocks; ++block) {
    const float* cell = partial_cells + (block * ENTRIES + entry) * (CHANNELS + 1);
#pragma unroll
    for (u32 k = 0; k < CHANNELS; ++k) sum[k] += cell[k];
    members += cell[CHANNELS];
  }
  if (members == 0.0f) return;  // an empty cell keeps its centroid
#pragma unroll
  for (u32 k = 0; k < CHANNELS; ++k) centroids[entry * CHANNELS + k] = sum[k] / members;
}
