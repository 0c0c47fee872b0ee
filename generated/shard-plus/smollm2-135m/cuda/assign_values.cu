// assign_values: The index of the nearest stored f16 entry for every vector; four indices are a word.
// Stage codebook of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 VALUE_ROW_WORDS = 12;  // words of one token's value indices, four each
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: u8 [middle][48 vectors]
constexpr u32 AT_CODEBOOK = 20;  // in the record, first word of codebook: f16 [256 entries][4]
constexpr u32 THREADS = 128;  // threads of a block

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

constexpr u32 thread_points = CHANNELS == 8 ? 4 : 8;

// Four neighbouring vectors a word of indices, one word or two a thread.
extern "C" __global__ void __launch_bounds__(128) assign_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ rotated,  // [middle tokens][192], after Hadamard
    const float* __restrict__ channel_scales,  // [192]
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ __align__(16) float entries[entry_words];  // as stored, rounded to f16
  __shared__ float half_norms[ENTRIES];
  __shared__ u32 largest_norm;
  const u32* stored = cache + sequence[AT_CODEBOOK];
  for (u32 i = threadIdx.x; i < ENTRIES * CHANNELS; i += THREADS) {
    entries[entry_at(i / CHANNELS) + i % CHANNELS] = half_at(stored, i);
  }
  if (threadIdx.x == 0) largest_norm = 0;
  __syncthreads();  // the codebook is in shared memory
  measure_entries(entries, half_norms, &largest_norm);
  __syncthreads();  // the entries are measured

  const u32 words = sequence[AT_MIDDLE_TOKENS] * VALUE_ROW_WORDS;
  // Blocks lie side by side: one dimension of a grid may have no room for those of a long prompt.
  const u32 block = blockIdx.y * VALUE_ROW_WORDS + blockIdx.x;
  const u32 first = block * (THREADS * thread_points / 4) + threadIdx.x;  // then THREADS words further
  float point[thread_points][CHANNELS];
#pragma unroll
  for (u32 i = 0; i < thread_points; ++i) {
    const u32 word = first + i / 4 * THREADS;
    load_point(point[i], min(word * 4 + i % 4, words * 4 - 1), rotated, channel_scales);
  }
  u32 found[thread_points];
  nearest_entries(found, point, entries, half_norms, __uint_as_float(largest_norm));
#pragma unroll
  for (u32 i = 0; i < thread_points; i += 4) {
    const u32 word = first + i / 4 * THREADS;
    if (word >= words) continue;
    cache[sequence[AT_VALUE_CODES] + word] = found[i] | found[i + 1] << 8 | found[i + 2] << 16 | found[i + 3] << 24;
  }
}
