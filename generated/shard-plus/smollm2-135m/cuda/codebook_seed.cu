// codebook_seed: k-means++ over a strided sample of at most 4096 points, one block.
// Stage codebook of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
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

constexpr u32 warps = THREADS / 32;
constexpr u32 thread_samples = SAMPLE / THREADS;  // neighbours in the sample, in registers

// Point of the sample to the point of the sequence: `count` of `points`, evenly spread.
__device__ __forceinline__ u32 point_of(u32 sample, u32 count, u32 points) {
  const u32 stride = points / count;
  // A stride that is a multiple of a token's vectors would meet one place of every token only: shift within the stride.
  return sample * stride + sample * (points % count) / count + sample % stride;
}

// The first place at which `before` plus the sums up to it passes the target; where rounding leaves all of them beneath,
// the last sum above zero. `before` becomes what lies before the place. `count` if all sums are zero.
template <u32 count>
__device__ __forceinline__ u32 place_of(float& before, float target, const float* sums) {
  float own[count];  // loaded at once, not one after the other
#pragma unroll
  for (u32 i = 0; i < count; ++i) own[i] = sums[i];
  u32 place = count;
  float start = before;
  bool passed = false;
#pragma unroll
  for (u32 i = 0; i < count; ++i) {
    const bool open = !passed && own[i] > 0.0f;
    place = open ? i : place;
    start = open ? before : start;
    before = open ? before + own[i] : before;
    passed = before > target;
  }
  before = start;
  return place;
}

// One block. Each thread keeps the distances of neighbouring sample points, so that adding the threads' sums in order
// walks through the sample in order: over warps, then over the lanes of one, then over the samples of a lane.
extern "C" __global__ void __launch_bounds__(256) codebook_seed(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ rotated,  // [middle tokens][192], after Hadamard
    const float* __restrict__ channel_scales,  // [192]
    float* centroids  // [256][4]
) {
  __shared__ float sums[warps][32];   // squared distances, summed over each thread's samples
  __shared__ float warp_sums[warps];  // and over each warp's
  __shared__ float newest[CHANNELS];  // the centroid chosen last
  const u32 points = sequence[AT_MIDDLE_TOKENS] * (WIDTH / CHANNELS);
  const u32 count = min(points, SAMPLE);
  const u32 first = threadIdx.x * thread_samples;
  const u32 lane = threadIdx.x % 32;
  const u32 warp = threadIdx.x / 32;

  float point[thread_samples][CHANNELS] = {};
  float distances[thread_samples];
#pragma unroll
  for (u32 i = 0; i < thread_samples; ++i) {
    // Past the end of the sample there are points at no distance, which are never chosen.
    distances[i] = first + i < count ? INFINITY : 0.0f;
    if (first + i < count) load_point(point[i], point_of(first + i, count, points), rotated, channel_scales);
  }
  const auto choose = [&](u32 sample) {
#pragma unroll
    for (u32 i = 0; i < thread_samples; ++i) {
      if (first + i != sample || sample >= count) continue;
#pragma unroll
      for (u32 k = 0; k < CHANNELS; ++k) newest[k] = point[i][k];
    }
  };
  if (count > 0) {
    choose(min(static_cast<u32>(uniform_random(SEED, 0) * static_cast<float>(count)), count - 1));
  } else if (threadIdx.x < CHANNELS) {
    newest[threadIdx.x] = 0.0f;
  }

  for (u32 entry = 0; entry < ENTRIES; ++entry) {
    __syncthreads();  // the newest centroid is known
    if (threadIdx.x < CHANNELS) centroids[entry * CHANNELS + threadIdx.x] = newest[threadIdx.x];
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < thread_samples; ++i) {
      float distance = 0.0f;
#pragma unroll
      for (u32 k = 0; k < CHANNELS; ++k) distance += (point[i][k] - newest[k]) * (point[i][k] - newest[k]);
      distances[i] = fminf(distances[i], distance);
      sum += distances[i];
    }
    sums[warp][lane] = sum;
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane == 0) warp_sums[warp] = sum;
    __syncthreads();  // all distances to the chosen points are known, and the newest centroid has been read

    float total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < warps; ++i) total += warp_sums[i];
    const float target = uniform_random(SEED, entry + 1) * total;
    float before = 0.0f;
    const u32 chosen_warp = place_of<warps>(before, target, warp_sums);
    // With all distances zero, every point equals a chosen one: `newest` stays, and the entries to come repeat it.
    if (warp == chosen_warp) {
      const u32 chosen_lane = place_of<32>(before, target, sums[warp]);
      if (lane == chosen_lane) choose(first + place_of<thread_samples>(before, target, distances));
    }
  }
}
