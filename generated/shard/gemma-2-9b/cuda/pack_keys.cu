// pack_keys: Quantises the coefficients and packs their fields; one word of one token a thread.
// Stage project of scheme shard for gemma-2-9b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 384, bits 4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 64

#include "prelude.cuh"

constexpr u32 RANK = 384;  // components of a key
constexpr u32 KEY_ROW_WORDS = 48;  // words of one token's key fields
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 4-bit fields [middle][384 components]
constexpr u32 THREADS = 128;  // threads of a block

// dsl/codecs/pca.ts:125 coefficientField, bits = 4
// The code of a coefficient as an unsigned field (offset binary): code + 2^(bits-1), code in [-limit, limit].
__device__ __forceinline__ u32 coefficient_field_4(float coefficient, float scale) {
  float code = 0.0f;
  if (scale > 0.0f) {
    code = fminf(fmaxf(rintf(coefficient / scale), -7.0f), 7.0f);
  }
  return u32(int(code) + 8);
}

// dsl/packing.ts:11 packWord, bits = 4
// Builds one 32-bit word of a little-endian bit-field row: field `i` occupies bits `[i*bits, (i+1)*bits)` of the row.
template <typename Fields>
__device__ __forceinline__ u32 pack_word_4(u32 word, u32 count, Fields fields) {
  const u32 first_bit = word * 32u;
  const u32 first = first_bit / 4u;
  u32 packed = 0u;
  #pragma unroll
  for (u32 i = 0u; i < 9u; i++) {
    const u32 field = first + i;
    const u32 position = field * 4u;
    if (field < count && position < first_bit + 32u) {
      const u32 value = fields(field);
      if (position >= first_bit) {
        packed = packed | (value << (position - first_bit));
      } else {
        packed = packed | (value >> (first_bit - position));
      }
    }
  }
  return packed;
}

// One word of one group of one token a thread. `coefficients` and `scales` are rows of RANK components. A word
// below a group wraps around in the difference, to far above the group's size.
extern "C" __global__ void __launch_bounds__(128) pack_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ coefficients,  // [middle tokens][384]
    const float* __restrict__ scales,  // [384]
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  // Blocks lie side by side: one dimension of a grid may have no room for those of a long prompt.
  const u32 index = (blockIdx.y * KEY_ROW_WORDS + blockIdx.x) * THREADS + threadIdx.x;
  if (index >= sequence[AT_MIDDLE_TOKENS] * KEY_ROW_WORDS) return;

  const u32 word = index % KEY_ROW_WORDS;
  const float* row = coefficients + index / KEY_ROW_WORDS * RANK;
  u32 packed = 0;
  // Group 0: components 0 on, 4 bits each.
  if (word - 0u < 8u) {
    packed = pack_word_4(word - 0u, 64u, [&](u32 field) {
      const u32 component = 0u + field;
      return coefficient_field_4(row[component], scales[component]);
    });
  }
  // Group 1: components 64 on, 4 bits each.
  if (word - 8u < 8u) {
    packed = pack_word_4(word - 8u, 64u, [&](u32 field) {
      const u32 component = 64u + field;
      return coefficient_field_4(row[component], scales[component]);
    });
  }
  // Group 2: components 128 on, 4 bits each.
  if (word - 16u < 8u) {
    packed = pack_word_4(word - 16u, 64u, [&](u32 field) {
      const u32 component = 128u + field;
      return coefficient_field_4(row[component], scales[component]);
    });
  }
  // Group 3: components 192 on, 4 bits each.
  if (word - 24u < 8u) {
    packed = pack_word_4(word - 24u, 64u, [&](u32 field) {
      const u32 component = 192u + field;
      return coefficient_field_4(row[component], scales[component]);
    });
  }
  // Group 4: components 256 on, 4 bits each.
  if (word - 32u < 8u) {
    packed = pack_word_4(word - 32u, 64u, [&](u32 field) {
      const u32 component = 256u + field;
      return coefficient_field_4(row[component], scales[component]);
    });
  }
  // Group 5: components 320 on, 4 bits each.
  if (word - 40u < 8u) {
    packed = pack_word_4(word - 40u, 64u, [&](u32 field) {
      const u32 component = 320u + field;
      return coefficient_field_4(row[component], scales[component]);
    });
  }
  cache[sequence[AT_KEY_CODES] + index] = packed;
}
