// codebook_assign: Assigns a chunk of points and sums them by entry, each entry in point order by one thread: no float atomics.
// Stage codebook of scheme shard for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 1024

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 AT_MIDDLE_TOKENS = 1;  // record: compressed tokens of the prompt
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 POINTS_PER_BLOCK = 1024;  // of this schedule

// dsl/codecs/vq.ts:29 centroidDistance, channels = 4
// Squared distance between a point and one codebook entry.
template <typename Centroids>
__device__ __forceinline__ float centroid_distance_4(float (&point)[4], u32 entry, Centroids centroids) {
  float distance = 0.0f;
  #pragma unroll
  for (u32 k = 0u; k < 4u; k++) {
    const float difference = point[k] - centroids(entry * 4u + k);
    distance += difference * difference;
  }
  return distance;
}

// dsl/codecs/vq.ts:45 nearestCentroid, channels = 4, entries = 256
// Index of the nearest codebook entry; the lowest on ties.
template <typename Centroids>
__device__ __forceinline__ u32 nearest_centroid_4_256(float (&point)[4], Centroids centroids) {
  u32 best = 0u;
  float best_distance = centroid_distance_4(point, 0u, centroids);
  for (u32 entry = 1u; entry < 256u; entry++) {
    const float distance = centroid_distance_4(point, entry, centroids);
    if (distance < best_distance) {
      best = entry;
      best_distance = distance;
    }
  }
  return best;
}

// Vector `index` of the middle values, each channel over its scale. Vectors lie in the order [token][vector of the
// row], so that `index` counts CHANNELS channels at a time through the whole array.
__device__ __forceinline__ void load_point(
    float (&point)[CHANNELS], u32 index, const float* __restrict__ rotated, const float* __restrict__ channel_scales) {
#pragma unroll
  for (u32 k = 0; k < CHANNELS; ++k) {
    const u32 at = index * CHANNELS + k;
    point[k] = rotated[at] / channel_scales[at % WIDTH];
  }
}

// One chunk of points a block: first a point a thread, then an entry a thread.
extern "C" __global__ void __launch_bounds__(256) codebook_assign(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ rotated,  // [middle tokens][192], after Hadamard
    const float* __restrict__ channel_scales,  // [192]
    const float* __restrict__ centroids,  // [256][4]
    float* partial_cells  // [blocks][256][5]: sums, then the count
) {
  __shared__ float entries[ENTRIES * CHANNELS];
  __shared__ u8 nearest[POINTS_PER_BLOCK];
  const u32 points = sequence[AT_MIDDLE_TOKENS] * (WIDTH / CHANNELS);
  const u32 first = blockIdx.x * POINTS_PER_BLOCK;
  if (first >= points) return;

  const u32 count = min(POINTS_PER_BLOCK, points - first);
  for (u32 i = threadIdx.x; i < ENTRIES * CHANNELS; i += THREADS) entries[i] = centroids[i];
  __syncthreads();  // the codebook is in shared memory

  for (u32 i = threadIdx.x; i < count; i += THREADS) {
    __threadfence_block();  // or a small codebook would be kept in registers for all points, more than there are
    float point[CHANNELS];
    load_point(point, first + i, rotated, channel_scales);
    nearest[i] = static_cast<u8>(nearest_centroid_4_256(point, [&](u32 at) { return entries[at]; }));
  }
  __syncthreads();  // every point of the chunk has its entry

  // Each entry is summed by one thread in point order: the same sum on every run, without float atomics.
  if (threadIdx.x >= ENTRIES) return;
  float sum[CHANNELS] = {};
  u32 members = 0;
  for (u32 i = 0; i < count; ++i) {
    if (nearest[i] != threadIdx.x) continue;
    float point[CHANNELS];
    load_point(point, first + i, rotated, channel_scales);
#pragma unroll
    for (u32 k = 0; k < CHANNELS; ++k) sum[k] += point[k];
    ++members;
  }
  float* cell = partial_cells + (blockIdx.x * ENTRIES + threadIdx.x) * (CHANNELS + 1);
#pragma unroll
  for (u32 k = 0; k < CHANNELS; ++k) cell[k] = sum[k];
  cell[CHANNELS] = static_cast<float>(members);
}
