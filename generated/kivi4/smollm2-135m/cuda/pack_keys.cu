// pack_keys: Quantises the keys and packs their codes; one word of one vector a thread.
// Stage codeKeys of scheme kivi4 for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   perChannel(asymmetric, 4 bits; a scale for 1 channel of 32 tokens)
// values: perToken(asymmetric, 4 bits; a scale for 32 channels of 1 token)
// stream: lloydMax(4 bits); sinks 0, window 128
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 KEY_ROW_WORDS = 24;  // words of one token's key fields
constexpr u32 KEY_HEAD_WORDS = 8;  // words of one head's key fields
constexpr u32 KEY_SCALE_TOKENS = 32;  // middle tokens that share a scale; 0 for all of them
constexpr u32 KEY_SCALE_CHANNELS = 1;  // channels of a head that share a scale
constexpr u32 KEY_SCALE_ROW_WORDS = 96;  // words of a row of scales, two each
constexpr u32 KEY_LEVELS = 16;  // offset in the tables: values of the codes of keys, over their scales
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 4-bit fields [middle][3 KV heads][64]
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [middle, 32 a row][3 KV heads][64 of 1 channels]
constexpr u32 AT_KEY_OFFSETS = 28;  // in the record, first word of keyOffsets: f16 [middle, 32 a row][3 KV heads][64 of 1 channels]
constexpr u32 THREADS = 256;  // threads of a block

// dsl/codecs/uniform.ts:85 asymmetricCode, bits = 4
// The nearest of the codes 0 to 2^bits - 1, the first for zero and the last for one.
template <typename ULevels>
__device__ __forceinline__ u32 asymmetric_code_4(float x, ULevels u_levels) {
  return u32(fminf(fmaxf(rintf(x * 15.0f), 0.0f), 15.0f));
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

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// One word of the codes of one token and KV head a thread.
extern "C" __global__ void __launch_bounds__(256) pack_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][192]
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  // Blocks of THREADS tokens lie side by side: one dimension of a grid may have no room for those of a long prompt.
  const u32 index = (blockIdx.y * KEY_ROW_WORDS + blockIdx.x) * THREADS + threadIdx.x;
  if (index >= sequence[AT_MIDDLE_TOKENS] * KEY_ROW_WORDS) return;

  const u32 token = index / KEY_ROW_WORDS;
  const u32 head = index % KEY_ROW_WORDS / KEY_HEAD_WORDS;
  const float* vector = plain + token * WIDTH + head * HEAD_DIM;
  const u32* scales = cache + sequence[AT_KEY_SCALES];
  const u32* offsets = cache + sequence[AT_KEY_OFFSETS];
  const u32 packed = pack_word_4(index % KEY_HEAD_WORDS, HEAD_DIM, [&](u32 channel) {
    const u32 place = (head * HEAD_DIM + channel) / KEY_SCALE_CHANNELS +
                      token / KEY_SCALE_TOKENS * KEY_SCALE_ROW_WORDS * 2;
    const float scale = half_at(scales, place);
    const float difference = vector[channel] - half_at(offsets, place);
    // Where all numbers of a block are its offset, or nearly, the scale is zero.
    const float unit = scale > 0.0f ? difference / scale : 0.0f;
    return asymmetric_code_4(unit, [&](u32 level) { return tables[KEY_LEVELS + level]; });
  });
  cache[sequence[AT_KEY_CODES] + index] = packed;
}
