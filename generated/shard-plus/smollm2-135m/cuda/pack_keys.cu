// pack_keys: Quantises the coefficients and packs their fields; one word of one token a thread.
// Stage project of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 64

#include "prelude.cuh"

constexpr u32 RANK = 32;  // components of a key
constexpr u32 ALLOCATED_GROUPS = 2;  // groups of 16 components with widths of their own
constexpr u32 KEY_ROW_WORDS = 4;  // words of one token's key fields
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 0- to 8-bit fields [middle][32 components]
constexpr u32 AT_KEY_WIDTHS = 26;  // in the record, first word of keyWidths: u32 [2 groups of 16 components]: first bit in the row * 16 + bits a component
constexpr u32 THREADS = 128;  // threads of a block

// dsl/codecs/midRise.ts:24 midRiseField
// The code of a coefficient as an unsigned field: floor(coefficient / step), clamped, plus 2^(bits-1).
__device__ __forceinline__ u32 mid_rise_field(float coefficient, float step, u32 bits) {
  const int half_ = 1 << (bits - 1u);
  float code = 0.0f;
  if (step > 0.0f) {
    code = fminf(fmaxf(floorf(coefficient / step), -float(half_)), float(half_ - 1));
  }
  return u32(int(code) + half_);
}

// dsl/packing.ts:65 packBits, count = 16
// The part of a row's 32-bit word that belongs to one group of fields: `count` of them, `bits` bits each (1 to 8, known when the kernel runs), from bit `first` of the row on.
template <typename Fields>
__device__ __forceinline__ u32 pack_bits_16(u32 word, u32 first, u32 bits, Fields fields) {
  const u32 begin = word * 32u;
  u32 packed = 0u;
  #pragma unroll
  for (u32 i = 0u; i < 16u; i++) {
    const u32 position = first + i * bits;
    if (position < begin + 32u && position + bits > begin) {
      const u32 value = fields(i);
      if (position >= begin) {
        packed = packed | (value << (position - begin));
      } else {
        packed = packed | (value >> (begin - position));
      }
    }
  }
  return packed;
}

// One word of one token a thread. A word may hold the end of one group, whole groups and the start of another.
extern "C" __global__ void __launch_bounds__(128) pack_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ coefficients,  // [middle tokens][32]
    const float* __restrict__ scales,  // [32]
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ u32 widths[ALLOCATED_GROUPS];
  for (u32 i = threadIdx.x; i < ALLOCATED_GROUPS; i += THREADS) widths[i] = cache[sequence[AT_KEY_WIDTHS] + i];
  __syncthreads();  // every group's place is known

  // Blocks lie side by side: one dimension of a grid may have no room for those of a long prompt.
  const u32 index = (blockIdx.y * KEY_ROW_WORDS + blockIdx.x) * THREADS + threadIdx.x;
  if (index >= sequence[AT_MIDDLE_TOKENS] * KEY_ROW_WORDS) return;

  const u32 word = index % KEY_ROW_WORDS;
  const float* row = coefficients + index / KEY_ROW_WORDS * RANK;
  u32 packed = 0;
  for (u32 group = 0; group < ALLOCATED_GROUPS; ++group) {
    const u32 bits = widths[group] & 15u;
    const u32 first = widths[group] >> 4;
    if (bits == 0 || first >= word * 32 + 32 || first + bits * 16 <= word * 32) continue;
    packed |= pack_bits_16(word, first, bits, [&](u32 field) {
      const u32 component = group * 16 + field;
      return mid_rise_field(row[component], scales[component], bits);
    });
  }
  cache[sequence[AT_KEY_CODES] + index] = packed;
}
