// codebook_seed: k-means++ over a strided sample of at most 4096 points, one block.
// Stage codebook of scheme shard for qwen2.5-7b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 96, bits 4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 1024

#include "prelude.cuh"

constexpr u32 WIDTH = 512;  // KV_HEADS * HEAD_DIM
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 SEED = 1;  // of the random start
constexpr u32 SAMPLE = 4096;  // points of the k-means++ sample, at most

// dsl/random.ts:4 hashBits
// A hash of 32 bits with full avalanche (the PCG RXS-M-XS permutation; O'Neill 2014, section 6.3.4).
__device__ __forceinline__ u32 hash_bits(u32 seed) {
  const u32 state = seed * 0x2c9277b5u + 0xac564b05u;
  const u32 word = ((state >> ((state >> 28u) + 4u)) ^ state) * 0x108ef2d9u;
  return (word >> 22u) ^ word;
}

// dsl/random.ts:12 uniformRandom
// A uniform number in [0, 1) from 24 bits of the hash of `seed` and `index`, equal on every target.
__device__ __forceinline__ float uniform_random(u32 seed, u32 index) {
  return float(hash_bits(hash_bits(seed) ^ index) >> 8u) * 5.9604645e-8f;
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

// Point of the sample to the point of the sequence: `count` of `points`, evenly spread.
__device__ __forceinline__ u32 point_of(u32 sample, u32 count, u32 points) {
  const u32 stride = points / count;
  // A stride that is a multiple of a token's vectors would meet one place of every token only: shift within the stride.
  return sample * stride + sample * (points % count) / count + sample % stride;
}

// One block. Each thread keeps the distances of a run of neighbouring sample points, so that adding the threads' sums
// in order walks through the sample in order.
extern "C" __global__ void __launch_bounds__(256) codebook_seed(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ rotated,  // [middle tokens][512], after Hadamard
    const float* __restrict__ channel_scales,  // [512]
    float* centroids,  // [256][4]
    float* distances  // [4096], scratch: squared distance to the nearest chosen point
) {
  __shared__ float sums[THREADS];      // squared distances, summed over each thread's run
  __shared__ float newest[CHANNELS];   // the centroid chosen last
  __shared__ u32 chosen;               // its sample point; `count` when the sample is used up
  const u32 points = sequence[AT_MIDDLE_TOKENS] * (WIDTH / CHANNELS);
  const u32 count = min(points, SAMPLE);
  const u32 run = (count + THREADS - 1) / THREADS;
  const u32 first = min(threadIdx.x * run, count);
  const u32 end = min(first + run, count);

  if (threadIdx.x < CHANNELS) newest[threadIdx.x] = 0.0f;
  if (threadIdx.x == 0) {
    const u32 drawn = static_cast<u32>(uniform_random(SEED, 0) * static_cast<float>(count));
    chosen = count == 0 ? 0 : min(drawn, count - 1);
  }
  __syncthreads();  // the first choice is known

  for (u32 entry = 0; entry < ENTRIES; ++entry) {
    // Past the end of the sample there is nothing new: `newest` stays, and the entry repeats it (zero for no points).
    if (threadIdx.x == 0) {
      if (chosen < count) {
        float point[CHANNELS];
        load_point(point, point_of(chosen, count, points), rotated, channel_scales);
        for (u32 k = 0; k < CHANNELS; ++k) newest[k] = point[k];
      }
      for (u32 k = 0; k < CHANNELS; ++k) centroids[entry * CHANNELS + k] = newest[k];
    }
    __syncthreads();  // the newest centroid is known

    float sum = 0.0f;
    for (u32 sample = first; sample < end; ++sample) {
      float point[CHANNELS];
      load_point(point, point_of(sample, count, points), rotated, channel_scales);
      float distance = 0.0f;
      for (u32 k = 0; k < CHANNELS; ++k) distance += (point[k] - newest[k]) * (point[k] - newest[k]);
      if (entry > 0) distance = fminf(distance, distances[sample]);
      distances[sample] = distance;
      sum += distance;
    }
    sums[threadIdx.x] = sum;
    __syncthreads();  // all distances to the chosen points are known

    // One thread draws: the prefix sum in point order has one rounding, whatever the schedule.
    if (threadIdx.x == 0) {
      float total = 0.0f;
      for (u32 thread = 0; thread < THREADS; ++thread) total += sums[thread];
      const float target = uniform_random(SEED, entry + 1) * total;
      u32 next = min(entry + 1, count);  // every point has been chosen, or equals one: the next in order
      float before = 0.0f;
      for (u32 thread = 0; thread < THREADS; ++thread) {
        const float after = before + sums[thread];
        if (after > target) {
          const u32 run_end = min((thread + 1) * run, count);
          for (u32 sample = thread * run; sample < run_end; ++sample) {
            if (distances[sample] > 0.0f) next = sample;
            before += distances[sample];
            if (before > target) break;
          }
          break;
        }
        before = after;
      }
      chosen = next;
    }
    __syncthreads();  // the next choice is known
  }
}
