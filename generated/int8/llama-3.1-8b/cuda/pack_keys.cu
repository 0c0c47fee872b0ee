// pack_keys: Quantises the keys and packs their codes; one word of one vector a thread.
// Stage codeKeys of scheme int8 for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   perToken(symmetric, 8 bits; a scale for a head of 1 token)
// values: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 KEY_ROW_WORDS = 256;  // words of one token's key fields
constexpr u32 KEY_HEAD_WORDS = 32;  // words of one head's key fields
constexpr u32 KEY_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 KEY_SCALE_CHANNELS = 128;  // channels of a head that share a scale
constexpr u32 KEY_SCALE_ROW_WORDS = 4;  // words of a row of scales, two each
constexpr u32 KEY_LEVELS = 256;  // offset in the tables: values of the codes of keys, over their scales
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 8-bit fields [middle][8 KV heads][128]
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
constexpr u32 THREADS = 256;  // threads of a block

// dsl/codecs/uniform.ts:78 symmetricCode, bits = 8
// The nearest of the codes 1 to 2^bits - 1, whose middle stands for zero.
template <typename ULevels>
__device__ __forceinline__ u32 symmetric_code_8(float x, ULevels u_levels) {
  return u32(int(fminf(fmaxf(rintf(x * 127.0f), -127.0f), 127.0f)) + 128);
}

// dsl/packing.ts:11 packWord, bits = 8
// Builds one 32-bit word of a little-endian bit-field row: field `i` occupies bits `[i*bits, (i+1)*bits)` of the row.
template <typename Fields>
__device__ __forceinline__ u32 pack_word_8(u32 word, u32 count, Fields fields) {
  const u32 first_bit = word * 32u;
  const u32 first = first_bit / 8u;
  u32 packed = 0u;
  #pragma unroll
  for (u32 i = 0u; i < 5u; i++) {
    const u32 field = first + i;
    const u32 position = field * 8u;
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
    const float* __restrict__ plain,  // [middle tokens][1024]
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
  const u32 packed = pack_word_8(index % KEY_HEAD_WORDS, HEAD_DIM, [&](u32 channel) {
    const u32 place = (head * HEAD_DIM + channel) / KEY_SCALE_CHANNELS +
                      token / KEY_SCALE_TOKENS * KEY_SCALE_ROW_WORDS * 2;
    const float scale = half_at(scales, place);
    const float difference = vector[channel];
    // Where all numbers of a block are its offset, or nearly, the scale is zero.
    const float unit = scale > 0.0f ? difference / scale : 0.0f;
    return symmetric_code_8(unit, [&](u32 level) { return tables[KEY_LEVELS + level]; });
  });
  cache[sequence[AT_KEY_CODES] + index] = packed;
}
