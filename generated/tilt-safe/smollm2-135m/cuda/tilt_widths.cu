// tilt_widths: Least expected error of every KV head for every number of nibbles, by trying all widths; a head a block.
// Stage fit of scheme tilt-safe for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 GROUP_COMPONENTS = 8;  // components that share a width
constexpr u32 GROUPS = 8;  // groups of components of a KV head
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 WIDTH_CHOICES = 8;  // widths that a group of components may have
constexpr u32 CANDIDATES = 6435;  // lists of widths of a KV head that are tried

// dsl/codecs/midRise.ts:41 midRiseWidth
// The widths that bits are allocated from, as `choice` goes from 0 to 7: every one to 6 bits, then 8.
__device__ __forceinline__ u32 mid_rise_width(u32 choice) {
  return choice < 7u ? choice : 8u;
}

// dsl/codecs/midRise.ts:52 midRiseDistortion
// The share of a component's variance that is left as error at a width, for normal coefficients; 7 bits are never given.
__device__ __forceinline__ float mid_rise_distortion(u32 bits) {
  float left = 1.0f;
  if (bits == 1u) {
    left = 0.3633802f;
  } else if (bits > 1u) {
    const float step = 7.4f / float(1u << bits);
    left = step * step / 12.0f;
  }
  return left;
}

// Nibbles that the planes of one head's fields take: every field in the first plane with room, in the order of groups, whose
// widths do not ascend; the last plane of 4 bits or fewer is a nibble plane. Calls place(group, bit) for those with bits.
template <typename Place>
__device__ __forceinline__ u32 place_fields(const u32 (&widths)[GROUPS], Place place) {
  u32 used[GROUPS] = {};  // bits of every plane
  u32 planes = 0;
  for (u32 group = 0; group < GROUPS; ++group) {
    const u32 bits = widths[group];
    if (bits == 0) break;
    u32 plane = 0;
    while (plane < planes && used[plane] + bits > 8) ++plane;
    planes = max(planes, plane + 1);
    place(group, plane * 8 + used[plane]);
    used[plane] += bits;
  }
  return planes * 2 - (planes > 0 && used[planes - 1] <= 4 ? 1 : 0);
}

// Lists of `groups` widths that do not ascend, from so many choices: binomial(groups + choices - 1, groups).
__device__ __forceinline__ u32 lists_of(u32 groups, u32 choices) {
  u32 count = 1;
  for (u32 i = 1; i <= groups; ++i) count = count * (choices - 1 + i) / i;
  return count;
}

// The widths of a candidate. All lists that do not ascend are numbered from the widest on.
__device__ __forceinline__ void widths_of(u32 candidate, u32 (&widths)[GROUPS]) {
  u32 choice = 0;  // from the widest on
  for (u32 group = 0; group < GROUPS; ++group) {
    for (;; ++choice) {
      const u32 lists = lists_of(GROUPS - 1 - group, WIDTH_CHOICES - choice);
      if (candidate < lists) break;
      candidate -= lists;
    }
    widths[group] = mid_rise_width(WIDTH_CHOICES - 1 - choice);
  }
}

constexpr u32 most_nibbles = 2 * GROUPS;

// One KV head a block: for every number of nibbles the least expected error of widths whose fields take as many, by trying
// all that do not ascend, as variances descend.
extern "C" __global__ void __launch_bounds__(256) tilt_widths(
    const float* __restrict__ values,  // [3 KV heads][64] eigenvalues: the variances of the components
    float* head_errors,  // [3 KV heads][17 numbers of nibbles], over the largest variance of a group
    u32* head_candidates  // [3 KV heads][17 numbers of nibbles]: the number of the widths that leave it
) {
  __shared__ float errors[THREADS][most_nibbles + 1];
  __shared__ u32 found[THREADS][most_nibbles + 1];
  // Errors count in units of the largest group's variance in the layer: small keys need no small floats.
  float unit = 0.0f;
  float variances[GROUPS];
  for (u32 head = 0; head < KV_HEADS; ++head) {
    for (u32 group = 0; group < GROUPS; ++group) {
      float variance = 0.0f;
      // Rounding leaves eigenvalues of a singular matrix a little below zero.
      for (u32 i = 0; i < GROUP_COMPONENTS; ++i) {
        variance += fmaxf(values[(head * GROUPS + group) * GROUP_COMPONENTS + i], 0.0f);
      }
      unit = fmaxf(unit, variance);
      if (head == blockIdx.x) variances[group] = variance;
    }
  }
  const float inverse = unit > 0.0f ? 1.0f / unit : 0.0f;

  for (u32 n = 0; n <= most_nibbles; ++n) errors[threadIdx.x][n] = INFINITY;
  for (u32 candidate = threadIdx.x; candidate < CANDIDATES; candidate += THREADS) {
    u32 widths[GROUPS];
    widths_of(candidate, widths);
    float error = 0.0f;
    for (u32 group = 0; group < GROUPS; ++group) error += variances[group] * inverse * mid_rise_distortion(widths[group]);
    const u32 nibbles = place_fields(widths, [](u32, u32) {});
    if (error < errors[threadIdx.x][nibbles]) {
      errors[threadIdx.x][nibbles] = error;
      found[threadIdx.x][nibbles] = candidate;
    }
  }
  __syncthreads();  // every thread has tried its candidates
  for (u32 n = threadIdx.x; n <= most_nibbles; n += THREADS) {
    float least = errors[0][n];
    u32 best = least < INFINITY ? found[0][n] : CANDIDATES;
    for (u32 i = 1; i < THREADS; ++i) {
      if (errors[i][n] < least) {
        least = errors[i][n];
        best = found[i][n];
      }
    }
    head_errors[blockIdx.x * (most_nibbles + 1) + n] = least;
    head_candidates[blockIdx.x * (most_nibbles + 1) + n] = best;
  }
}
