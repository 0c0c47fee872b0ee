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
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: u8 [middle][256 vectors]
constexpr u32 AT_CODEBOOK = 20;  // in the record, first word of codebook: f16 [256 entries][4]
constexpr u32 THREADS = 128;  // threads of a block

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

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
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
  const u32 words = sequence[AT_MIDDLE_TOKENS] * VALUE_ROW_WORDS;
  if (word >= words) return;
  float4 four[CHANNELS];
  load_points(four, word * 4, words * 4 - 1, rotated, channel_scales);
  const uint4 found = nearest_centroids_4_256(four, [&](u32 at) { return entries[at]; });
  cache[sequence[AT_VALUE_CODES] + word] = found.x | found.y << 8 | found.z << 16 | found.w << 24;
}
