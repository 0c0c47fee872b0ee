// codebook_update: New centroids from the sums, always in the same order; an empty cell keeps its centroid.
// Stage codebook of scheme shard for gemma-2-9b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 384, bits 4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

#include "prelude.cuh"

constexpr u32 WIDTH = 2048;  // KV_HEADS * HEAD_DIM
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 POINTS_PER_BLOCK = 2048;  // points that a block assigns

constexpr u32 cell_words = CHANNELS + 1;

// One entry a block: the mean of its members over all chunks. Thread t adds chunks t, t + THREADS, ..., and the threads
// are added in pairs: the same order on every run.
extern "C" __global__ void __launch_bounds__(128) codebook_update(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ partial_cells,  // [blocks][256][5]: sums, then the count
    float* centroids  // [256][4]
) {
  __shared__ float sums[THREADS / 32][cell_words];
  const u32 points = sequence[AT_MIDDLE_TOKENS] * (WIDTH / CHANNELS);
  const u32 chunks = (points + POINTS_PER_BLOCK - 1) / POINTS_PER_BLOCK;
  float sum[cell_words] = {};
  for (u32 chunk = threadIdx.x; chunk < chunks; chunk += THREADS) {
    const float* cell = partial_cells + (chunk * ENTRIES + blockIdx.x) * cell_words;
#pragma unroll
    for (u32 k = 0; k < cell_words; ++k) sum[k] += cell[k];
  }
#pragma unroll
  for (u32 k = 0; k < cell_words; ++k) {
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], distance);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][k] = sum[k];
  }
  __syncthreads();  // every warp's sums are there

  float members = 0.0f;
  for (u32 warp = 0; warp < THREADS / 32; ++warp) members += sums[warp][CHANNELS];
  if (threadIdx.x >= CHANNELS || members == 0.0f) return;  // an empty cell keeps its centroid
  float total = 0.0f;
  for (u32 warp = 0; warp < THREADS / 32; ++warp) total += sums[warp][threadIdx.x];
  centroids[blockIdx.x * CHANNELS + threadIdx.x] = total / members;
}
