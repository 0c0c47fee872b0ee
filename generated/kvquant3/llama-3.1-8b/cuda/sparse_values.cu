// sparse_values: The outliers of the values, largest residual first; one vector a thread.
// Stage codeValues of scheme kvquant3 for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, perChannel(nuq, 3 bits; a scale for 1 channel of the prompt without 0.005 of its numbers at each end), 2 outliers a token and KV head
// values: perToken(nuq, 3 bits; a scale for a head of 1 token without 0.01 of its numbers at each end), 2 outliers a token and KV head
// stream: lloydMax(3 bits); sinks 5, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 VALUE_HEAD_WORDS = 12;  // words of one head's value fields
constexpr u32 VALUE_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 VALUE_SCALE_CHANNELS = 128;  // channels of a head that share a scale
constexpr u32 VALUE_SCALE_ROW_WORDS = 4;  // words of a row of scales, two each
constexpr u32 VALUE_OUTLIER_CAP = 2;  // outliers of a token and KV head, at most
constexpr u32 VALUE_LEVELS = 16;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: 3-bit fields [middle][8 KV heads][128]
constexpr u32 AT_VALUE_SCALES = 29;  // in the record, first word of valueScales: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
constexpr u32 AT_VALUE_OFFSETS = 30;  // in the record, first word of valueOffsets: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
constexpr u32 AT_VALUE_OUTLIERS = 32;  // in the record, first word of valueOutliers: u32 [middle][8 KV heads][2 largest residuals first]: channel + f16 residual * 2^16; 0 for none
constexpr u32 THREADS = 256;  // threads of a block
constexpr float RANGE_LEAST = -1.0f;  // least number over its scale that is no outlier
constexpr float RANGE_GREATEST = 1.0f;  // greatest number over its scale that is no outlier

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
template <typename Levels>
__device__ __forceinline__ float level_value(u32 code, Levels levels) {
  return levels(code);
}

// dsl/packing.ts:32 unpackField, bits = 3
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
template <typename Words>
__device__ __forceinline__ u32 unpack_field_3(u32 index, Words words) {
  const u32 position = index * 3u;
  const u32 word = position / 32u;
  const u32 shift = position % 32u;
  u32 value = words(word) >> shift;
  if (shift + 3u > 32u) {
    value = value | (words(word + 1u) << (32u - shift));
  }
  return value & 7u;
}

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// Outliers of one token and KV head a thread: of the numbers beyond the range of their code those that it is farthest from.
extern "C" __global__ void __launch_bounds__(256) sparse_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][1024]
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    u32* clamped  // [middle tokens][8 KV heads], outliers past the cap
) {
  const u32 index = blockIdx.x * THREADS + threadIdx.x;
  if (index >= sequence[AT_MIDDLE_TOKENS] * KV_HEADS) return;

  const u32 head = index % KV_HEADS;
  const float* vector = plain + index * HEAD_DIM;
  const u32* codes = cache + sequence[AT_VALUE_CODES] + index * VALUE_HEAD_WORDS;
  const u32* scales = cache + sequence[AT_VALUE_SCALES];
  const u32* offsets = cache + sequence[AT_VALUE_OFFSETS];
  const u32 row = index / KV_HEADS / VALUE_SCALE_TOKENS * VALUE_SCALE_ROW_WORDS * 2;
  float sizes[VALUE_OUTLIER_CAP] = {};  // of the residuals kept, largest first
  u32 kept[VALUE_OUTLIER_CAP] = {};
  u32 found = 0;
  for (u32 channel = 0; channel < HEAD_DIM; ++channel) {
    const u32 place = (head * HEAD_DIM + channel) / VALUE_SCALE_CHANNELS + row;
    const float scale = half_at(scales, place);
    const float offset = half_at(offsets, place);
    const float difference = vector[channel] - offset;
    if (difference >= scale * RANGE_LEAST && difference <= scale * RANGE_GREATEST) continue;

    ++found;
    const u32 code = unpack_field_3(channel, [&](u32 word) { return codes[word]; });
    const float unit = level_value(code, [&](u32 level) { return tables[VALUE_LEVELS + level]; });
    const float residual = vector[channel] - (offset + scale * unit);
    const float stored = fminf(fmaxf(residual, -65504.0f), 65504.0f);
    float size = fabsf(residual);
    u32 entry = channel | static_cast<u32>(float_to_half(stored)) << 16;
    // Of residuals of one size the first channel's stays before the others.
    bool moves = false;
#pragma unroll
    for (u32 i = 0; i < VALUE_OUTLIER_CAP; ++i) {
      moves = moves || size > sizes[i];
      if (!moves) continue;
      const float smaller = sizes[i];
      const u32 next = kept[i];
      sizes[i] = size;
      kept[i] = entry;
      size = smaller;
      entry = next;
    }
  }
  u32* outliers = cache + sequence[AT_VALUE_OUTLIERS] + index * VALUE_OUTLIER_CAP;
#pragma unroll
  for (u32 i = 0; i < VALUE_OUTLIER_CAP; ++i) outliers[i] = kept[i];
  clamped[index] = found - min(found, VALUE_OUTLIER_CAP);
}
