// codebook_assign: Assigns a chunk of points and sums them by entry, always in the same order: no float atomics.
// Stage codebook of scheme shard for phi-3-mini. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 576, bits 4/4/4/4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

#include "prelude.cuh"

constexpr u32 WIDTH = 3072;  // KV_HEADS * HEAD_DIM
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 POINTS_PER_BLOCK = 2048;  // points that a block assigns
constexpr u32 WARPS = 8;  // warps of a block

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

constexpr u32 group_entries = 8;  // entries whose smallest distance is found before it is compared with the best

constexpr u32 group_words = group_entries * CHANNELS + 4;  // not a multiple of 32: lanes read groups of their own
constexpr u32 entry_words = ENTRIES / group_entries * group_words;

// Where an entry lies in shared memory.
__device__ __forceinline__ u32 entry_at(u32 entry) {
  return entry / group_entries * group_words + entry % group_entries * CHANNELS;
}

// Takes an entry of a group for the nearest if it is nearer; distances from the differences, exact to float32.
__device__ __forceinline__ void look_at_group(
    u32& nearest, float& least, const float (&point)[CHANNELS], const float* entries, u32 group) {
#pragma unroll
  for (u32 j = 0; j < group_entries; ++j) {
    const float* entry = entries + group * group_words + j * CHANNELS;
    float distance = 0.0f;
#pragma unroll
    for (u32 k = 0; k < CHANNELS; ++k) distance += (point[k] - entry[k]) * (point[k] - entry[k]);
    if (distance < least) nearest = group * group_entries + j;
    least = fminf(least, distance);
  }
}

// Half of the squared length of every entry, and over all the largest, whose bits the caller has set to zero. Needs a
// barrier before and after.
__device__ __forceinline__ void measure_entries(const float* entries, float* half_norms, u32* largest_norm) {
  for (u32 entry = threadIdx.x; entry < ENTRIES; entry += THREADS) {
    float sum = 0.0f;
#pragma unroll
    for (u32 k = 0; k < CHANNELS; ++k) sum += entries[entry_at(entry) + k] * entries[entry_at(entry) + k];
    half_norms[entry] = 0.5f * sum;
    atomicMax(largest_norm, __float_as_uint(0.5f * sum));  // bits of numbers from zero on are in their order
  }
}

// The nearest entry of every point. half |c|^2 - x.c orders entries as the distance does and costs half as much, but
// cancels: it only chooses a group of entries, and where a second group comes within its rounding, all are looked at.
template <u32 count>
__device__ __forceinline__ void nearest_entries(
    u32 (&found)[count], const float (&points)[count][CHANNELS], const float* entries, const float* half_norms,
    float largest_norm) {
  float least[count];
  float second[count];  // of the other groups
#pragma unroll
  for (u32 i = 0; i < count; ++i) {
    least[i] = INFINITY;
    second[i] = INFINITY;
    found[i] = 0;
  }
#pragma unroll 1
  for (u32 group = 0; group < ENTRIES / group_entries; ++group) {
    float smallest[count];
#pragma unroll
    for (u32 i = 0; i < count; ++i) smallest[i] = INFINITY;
#pragma unroll
    for (u32 j = 0; j < group_entries; ++j) {
      const float* entry = entries + group * group_words + j * CHANNELS;
      float channel[CHANNELS];
#pragma unroll
      for (u32 k = 0; k < CHANNELS; ++k) channel[k] = entry[k];
      const float half_norm = half_norms[group * group_entries + j];
#pragma unroll
      for (u32 i = 0; i < count; ++i) {
        float value = half_norm;
#pragma unroll
        for (u32 k = 0; k < CHANNELS; ++k) value -= points[i][k] * channel[k];
        smallest[i] = fminf(smallest[i], value);
      }
    }
#pragma unroll
    for (u32 i = 0; i < count; ++i) {
      if (smallest[i] < least[i]) found[i] = group;
      second[i] = fminf(second[i], fmaxf(least[i], smallest[i]));
      least[i] = fminf(least[i], smallest[i]);
    }
  }
#pragma unroll
  for (u32 i = 0; i < count; ++i) {
    float norm = 0.0f;
#pragma unroll
    for (u32 k = 0; k < CHANNELS; ++k) norm += points[i][k] * points[i][k];
    // Each value is off by less than CHANNELS + 2 roundings of at most norm + largest_norm.
    const float margin = 1e-6f * (norm + largest_norm);
    const bool sure = second[i] - least[i] > margin;
    u32 nearest = 0;
    float distance = INFINITY;
    if (sure) {
      look_at_group(nearest, distance, points[i], entries, found[i]);
    } else {
#pragma unroll 1
      for (u32 group = 0; group < ENTRIES / group_entries; ++group) {
        look_at_group(nearest, distance, points[i], entries, group);
      }
    }
    found[i] = nearest;
  }
}

constexpr u32 cell_words = CHANNELS + 1;  // odd, so that entries spread over the banks
constexpr u32 thread_points = 16 / CHANNELS;  // more would leave fewer blocks a multiprocessor

// Adds a point and its weight to the cell of its entry, all points of a warp, in the order of the lanes where they meet
// in a cell: the same sum on every run, without float atomics.
__device__ __forceinline__ void add_to_cells(
    float* cells, u32 entry, bool counts, const float (&point)[CHANNELS], float weight) {
  u32 same = __ballot_sync(0xffffffffu, counts);  // lanes with the same entry
#pragma unroll
  for (u32 bit = 1; bit < ENTRIES; bit *= 2) {
    const u32 set = __ballot_sync(0xffffffffu, (entry & bit) != 0);
    same &= (entry & bit) != 0 ? set : ~set;
  }
  const u32 before = static_cast<u32>(__popc(same & ((1u << (threadIdx.x % 32)) - 1u)));
  for (u32 turn = 0; __any_sync(0xffffffffu, counts && before >= turn); ++turn) {
    if (counts && before == turn) {
#pragma unroll
      for (u32 k = 0; k < CHANNELS; ++k) cells[entry * cell_words + k] += weight * point[k];
      cells[entry * cell_words + CHANNELS] += weight;
    }
    __syncwarp();  // the cells are up to date for the next lane
  }
}

// One chunk of points a block; every warp adds up its own points, and the block its warps.
extern "C" __global__ void __launch_bounds__(256) codebook_assign(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ rotated,  // [middle tokens][3072], after Hadamard
    const float* __restrict__ channel_scales,  // [3072]
    const float* __restrict__ centroids,  // [256][4]
    float* partial_cells  // [blocks][256][5]: sums, then the count
) {
  __shared__ __align__(16) float entries[entry_words];
  __shared__ float half_norms[ENTRIES];
  __shared__ u32 largest_norm;
  __shared__ float cells[WARPS][ENTRIES * cell_words];
  const u32 points = sequence[AT_MIDDLE_TOKENS] * (WIDTH / CHANNELS);
  const u32 first = blockIdx.x * POINTS_PER_BLOCK;
  if (first >= points) return;

  const u32 end = min(first + POINTS_PER_BLOCK, points);
  for (u32 i = threadIdx.x; i < ENTRIES * CHANNELS; i += THREADS) entries[entry_at(i / CHANNELS) + i % CHANNELS] = centroids[i];
  for (u32 i = threadIdx.x; i < ENTRIES * cell_words; i += THREADS) {
#pragma unroll
    for (u32 warp = 0; warp < WARPS; ++warp) cells[warp][i] = 0.0f;
  }
  if (threadIdx.x == 0) largest_norm = 0;
  __syncthreads();  // the codebook is in shared memory, the cells are empty
  measure_entries(entries, half_norms, &largest_norm);
  __syncthreads();  // the entries are measured
  const float largest = __uint_as_float(largest_norm);

  float* own = cells[threadIdx.x / 32];
  for (u32 start = first; start < end; start += THREADS * thread_points) {
    float point[thread_points][CHANNELS];
#pragma unroll
    for (u32 i = 0; i < thread_points; ++i) {
      load_point(point[i], min(start + i * THREADS + threadIdx.x, points - 1), rotated, channel_scales);
    }
    u32 found[thread_points];
    nearest_entries(found, point, entries, half_norms, largest);
#pragma unroll
    for (u32 i = 0; i < thread_points; ++i) {
      const u32 index = start + i * THREADS + threadIdx.x;
      const bool counts = index < end;
      const float weight = 1.0f;
      add_to_cells(own, found[i], counts, point[i], weight);
    }
  }
  __syncthreads();  // every warp's cells are complete

  float* chunk = partial_cells + blockIdx.x * ENTRIES * cell_words;
  for (u32 i = threadIdx.x; i < ENTRIES * cell_words; i += THREADS) {
    float sum = 0.0f;
#pragma unroll
    for (u32 warp = 0; warp < WARPS; ++warp) sum += cells[warp][i];
    chunk[i] = sum;
  }
}
