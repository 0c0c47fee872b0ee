// codebook_assign: Assigns a chunk of points and sums them by entry, each entry in point order by one thread: no float atomics.
// Stage codebook of scheme shard for phi-3-mini. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 576, bits 4/4/4/4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 1024

#include "prelude.cuh"

constexpr u32 WIDTH = 3072;  // KV_HEADS * HEAD_DIM
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 POINTS_PER_BLOCK = 1024;  // points that a block assigns

__device__ __forceinline__ float vector_dot(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }
__device__ __forceinline__ float2 vector_add(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ float2 vector_subtract(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
__device__ __forceinline__ float2 vector_multiply(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }
__device__ __forceinline__ float2 vector_scale(float2 a, float factor) { return make_float2(a.x * factor, a.y * factor); }
__device__ __forceinline__ float vector_dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ __forceinline__ float3 vector_add(float3 a, float3 b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }
__device__ __forceinline__ float3 vector_subtract(float3 a, float3 b) { return make_float3(a.x - b.x, a.y - b.y, a.z - b.z); }
__device__ __forceinline__ float3 vector_multiply(float3 a, float3 b) { return make_float3(a.x * b.x, a.y * b.y, a.z * b.z); }
__device__ __forceinline__ float3 vector_scale(float3 a, float factor) { return make_float3(a.x * factor, a.y * factor, a.z * factor); }
__device__ __forceinline__ float vector_dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__device__ __forceinline__ float4 vector_add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float4 vector_subtract(float4 a, float4 b) { return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w); }
__device__ __forceinline__ float4 vector_multiply(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
__device__ __forceinline__ float4 vector_scale(float4 a, float factor) { return make_float4(a.x * factor, a.y * factor, a.z * factor, a.w * factor); }

// dsl/codecs/vq.ts:57 centroidDistances, channels = 4
// Squared distances between four points (channel k of all four in `points[k]`) and one codebook entry.
template <typename Centroids>
__device__ __forceinline__ float4 centroid_distances_4(float4 (&points)[4], u32 entry, Centroids centroids) {
  float4 distances = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  #pragma unroll
  for (u32 k = 0u; k < 4u; k++) {
    const float centroid = centroids(entry * 4u + k);
    const float4 differences = vector_subtract(points[k], make_float4(centroid, centroid, centroid, centroid));
    distances = vector_add(distances, vector_multiply(differences, differences));
  }
  return distances;
}

// dsl/codecs/vq.ts:77 nearestCentroids, channels = 4, entries = 256
// Indices of the nearest codebook entries of four points; the lowest on ties.
template <typename Centroids>
__device__ __forceinline__ uint4 nearest_centroids_4_256(float4 (&points)[4], Centroids centroids) {
  uint4 best = make_uint4(0u, 0u, 0u, 0u);
  float4 least = centroid_distances_4(points, 0u, centroids);
  for (u32 entry = 1u; entry < 256u; entry++) {
    const float4 distances = centroid_distances_4(points, entry, centroids);
    best = make_uint4(distances.x < least.x ? entry : best.x, distances.y < least.y ? entry : best.y, distances.z < least.z ? entry : best.z, distances.w < least.w ? entry : best.w);
    least = make_float4(fminf(distances.x, least.x), fminf(distances.y, least.y), fminf(distances.z, least.z), fminf(distances.w, least.w));
  }
  return best;
}

// Four neighbouring vectors of the middle values, channel k of all four in points[k], each channel over its scale.
// Vectors lie in the order [token][vector of the row]; places past the last vector repeat it.
__device__ __forceinline__ void load_points(
    float4 (&points)[CHANNELS], u32 first, u32 last, const float* __restrict__ rotated, const float* __restrict__ channel_scales) {
  const auto channel = [&](u32 vector, u32 k) {
    const u32 at = min(vector, last) * CHANNELS + k;
    return rotated[at] / channel_scales[at % WIDTH];
  };
#pragma unroll
  for (u32 k = 0; k < CHANNELS; ++k) {
    points[k] = make_float4(channel(first, k), channel(first + 1, k), channel(first + 2, k), channel(first + 3, k));
  }
}

// One chunk of points a block: first four points a thread, then an entry a thread.
extern "C" __global__ void __launch_bounds__(256) codebook_assign(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ rotated,  // [middle tokens][3072], after Hadamard
    const float* __restrict__ channel_scales,  // [3072]
    const float* __restrict__ centroids,  // [256][4]
    float* partial_cells  // [blocks][256][5]: sums, then the count
) {
  __shared__ float entries[ENTRIES * CHANNELS];
  __shared__ u32 nearest[POINTS_PER_BLOCK / 4];  // the entry of every point of the chunk, four a word
  const u32 points = sequence[AT_MIDDLE_TOKENS] * (WIDTH / CHANNELS);
  const u32 first = blockIdx.x * POINTS_PER_BLOCK;
  if (first >= points) return;

  const u32 count = min(POINTS_PER_BLOCK, points - first);
  for (u32 i = threadIdx.x; i < ENTRIES * CHANNELS; i += THREADS) entries[i] = centroids[i];
  __syncthreads();  // the codebook is in shared memory

  for (u32 word = threadIdx.x; word < (count + 3) / 4; word += THREADS) {
    __threadfence_block();  // or a small codebook would be kept in registers for all points, more than there are
    float4 four[CHANNELS];
    load_points(four, first + word * 4, points - 1, rotated, channel_scales);
    const uint4 found = nearest_centroids_4_256(four, [&](u32 at) { return entries[at]; });
    nearest[word] = found.x | found.y << 8 | found.z << 16 | found.w << 24;
  }
  __syncthreads();  // every point of the chunk has its entry

  // Each entry is summed by one thread in point order: the same sum on every run, without float atomics.
  if (threadIdx.x >= ENTRIES) return;
  float sum[CHANNELS] = {};
  u32 members = 0;
  for (u32 word = 0; word < (count + 3) / 4; ++word) {
    const u32 differs = nearest[word] ^ (threadIdx.x * 0x01010101u);
    // A word without a zero byte holds no point of this entry; most words are passed over here.
    if (((differs - 0x01010101u) & ~differs & 0x80808080u) == 0) continue;
    for (u32 i = 0; i < 4; ++i) {
      const u32 index = word * 4 + i;
      if (((differs >> (i * 8)) & 0xffu) != 0 || index >= count) continue;
#pragma unroll
      for (u32 k = 0; k < CHANNELS; ++k) {
        const u32 at = (first + index) * CHANNELS + k;
        sum[k] += rotated[at] / channel_scales[at % WIDTH];
      }
      ++members;
    }
  }
  float* cell = partial_cells + (blockIdx.x * ENTRIES + threadIdx.x) * (CHANNELS + 1);
#pragma unroll
  for (u32 k = 0; k < CHANNELS; ++k) cell[k] = sum[k];
  cell[CHANNELS] = static_cast<float>(members);
}
