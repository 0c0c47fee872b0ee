// allocate_bits: Exact dynamic programming over the budget in units of 16 bits, a thread a unit; one block.
// Stage allocate of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 ALLOCATED_GROUPS = 2;  // groups of 16 components with widths of their own
constexpr u32 AT_KEY_WIDTHS = 26;  // in the record, first word of keyWidths: u32 [2 groups of 16 components]: first bit in the row * 16 + bits a component
constexpr u32 THREADS = 32;  // threads of a block
constexpr u32 UNITS = 8;  // units of 16 bits in the budget of a token
constexpr u32 WIDTH_CHOICES = 8;  // widths that a group of components may have

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

// One block. best[u]: least error of the groups so far that spends at most u units of 16 bits. A group takes the fewest
// bits among equals, so that of two tables with the same error the one found gives later groups less.
extern "C" __global__ void __launch_bounds__(32) allocate_bits(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ values,  // [32] eigenvalues: the variances of the components
    u32* choices,  // [2 groups][9], scratch: the width that a group gets
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ float best[2][UNITS + 1];  // without the group at hand, and with it
  __shared__ u32 widths[ALLOCATED_GROUPS];
  // Errors count in units of the largest group's variance: small keys need no small floats. Eigenvalues descend.
  float unit = 0.0f;
  for (u32 i = 0; i < 16; ++i) unit += fmaxf(values[i], 0.0f);
  const float inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
  for (u32 spent = threadIdx.x; spent <= UNITS; spent += THREADS) best[0][spent] = 0.0f;

  for (u32 group = 0; group < ALLOCATED_GROUPS; ++group) {
    __syncthreads();  // the group before is complete
    const float* before = best[group % 2];
    float* after = best[(group + 1) % 2];
    float variance = 0.0f;
    // Rounding leaves eigenvalues of a singular matrix a little below zero.
    for (u32 i = 0; i < 16; ++i) variance += fmaxf(values[group * 16 + i], 0.0f) * inverse;
    for (u32 spent = threadIdx.x; spent <= UNITS; spent += THREADS) {
      float least = before[spent] + variance;
      u32 chosen = 0;
      for (u32 choice = 1; choice < WIDTH_CHOICES; ++choice) {
        const u32 bits = mid_rise_width(choice);
        if (bits > spent) break;
        const float error = before[spent - bits] + variance * mid_rise_distortion(bits);
        if (error < least) {
          least = error;
          chosen = bits;
        }
      }
      after[spent] = least;
      choices[group * (UNITS + 1) + spent] = chosen;
    }
  }
  __syncthreads();  // all choices are known
  if (threadIdx.x > 0) return;

  // Two short walks by one thread: from the last group back, as each choice depends on what later groups spent, and on
  // again, as each place depends on what earlier ones take.
  u32 left = UNITS;
  for (u32 group = ALLOCATED_GROUPS; group-- > 0;) {
    widths[group] = choices[group * (UNITS + 1) + left];
    left -= widths[group];
  }
  u32 first = 0;
  for (u32 group = 0; group < ALLOCATED_GROUPS; ++group) {
    cache[sequence[AT_KEY_WIDTHS] + group] = first * 16 + widths[group];
    first += widths[group] * 16;
  }
}
