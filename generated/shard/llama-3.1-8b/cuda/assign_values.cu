// assign_values: The index of the nearest stored f16 entry for every vector; four indices, one word, a thread.
// Stage codebook of scheme shard for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 1024

#include "prelude.cuh"

constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 VALUE_ROW_WORDS = 64;  // words of one token's value indices, four each
constexpr u32 AT_MIDDLE_TOKENS = 1;  // record: compressed tokens of the prompt
constexpr u32 AT_VALUE_CODES = 17;  // record: where u8 [middle][256 vectors] begins
constexpr u32 AT_CODEBOOK = 18;  // record: where f16 [256 entries][4] begins
constexpr u32 THREADS = 128;  // threads of a block

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

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
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

// Four neighbouring vectors a thread: one word of indices.
extern "C" __global__ void __launch_bounds__(128) assign_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ rotated,  // [middle tokens][1024], after Hadamard
    const float* __restrict__ channel_scales,  // [1024]
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ float entries[ENTRIES * CHANNELS];  // as stored, rounded to f16
  const u32* stored = cache + sequence[AT_CODEBOOK];
  for (u32 i = threadIdx.x; i < ENTRIES * CHANNELS; i += THREADS) entries[i] = half_at(stored, i);
  __syncthreads();  // the codebook is in shared memory

  const u32 word = blockIdx.x * THREADS + threadIdx.x;
  if (word >= sequence[AT_MIDDLE_TOKENS] * VALUE_ROW_WORDS) return;
  u32 packed = 0;
  for (u32 i = 0; i < 4; ++i) {
    __threadfence_block();  // or a small codebook would be kept in registers for all four, more than there are
    float point[CHANNELS];
    load_point(point, word * 4 + i, rotated, channel_scales);
    packed |= nearest_centroid_4_256(point, [&](u32 at) { return entries[at]; }) << (i * 8);
  }
  cache[sequence[AT_VALUE_CODES] + word] = packed;
}
