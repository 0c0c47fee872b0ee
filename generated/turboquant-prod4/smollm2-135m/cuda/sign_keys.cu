// sign_keys: What the codes of keys leave: the signs of its random projection, and its length; one channel a thread.
// Stage codeKeys of scheme turboquant-prod4 for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   hadamard, perToken(lloydMax, 3 bits; a scale for a head of 1 token)
// values: hadamard, perToken(lloydMax, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 KEY_HEAD_WORDS = 6;  // words of one head's key fields
constexpr u32 KEY_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 KEY_SCALE_CHANNELS = 64;  // channels of a head that share a scale
constexpr u32 KEY_SCALE_ROW_WORDS = 2;  // words of a row of scales, two each
constexpr u32 HADAMARD_BLOCK = 64;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.125f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 NORM_WORDS = 2;  // words of one stream token's norms, two each
constexpr u32 KEY_LEVELS = 16;  // offset in the tables: values of the codes of keys, over their scales
constexpr u32 PROJECTION_SIGNS = 40;  // offset in the tables: signs of channels before the projection of residuals
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 3-bit fields [middle][3 KV heads][64], after Hadamard
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
constexpr u32 AT_RESIDUAL_SIGNS = 47;  // in the record, first word of residualSigns: bits [middle][3 KV heads][64]: 1 where the projection of what the codes leave is not below zero
constexpr u32 AT_RESIDUAL_NORMS = 48;  // in the record, first word of residualNorms: f16 [middle][3 KV heads]: length of what the codes leave
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile

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

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
__device__ __forceinline__ float2 butterfly(float a, float b) {
  return make_float2(a + b, a - b);
}

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// Hadamard transform (Sylvester order) of `count` channels in shared memory, one head or several, in place, in blocks of
// HADAMARD_BLOCK channels. Not yet scaled by HADAMARD_SCALE. Barriers on entry and exit: stores before and loads after
// need none of their own.
__device__ __forceinline__ void hadamard(float* channels, u32 count = HEAD_DIM) {
  for (u32 stride = 1; stride < HADAMARD_BLOCK; stride *= 2) {
    __syncthreads();  // the caller's stores, then the stores of the previous stride, are complete
    for (u32 i = threadIdx.x; i < count / 2; i += THREADS) {
      const u32 low = i / stride * stride * 2 + i % stride;
      const float2 turned = butterfly(channels[low], channels[low + stride]);
      channels[low] = turned.x;
      channels[low + stride] = turned.y;
    }
  }
  __syncthreads();  // the last stride is complete
}

// Where the middle keys of a sequence lie.
struct MiddleKeys {
  const u32* codes;
  const u32* scales;
};

__device__ __forceinline__ MiddleKeys find_keys(const u32* record, const u32* cache) {
  return {
      cache + record[AT_KEY_CODES],
      cache + record[AT_KEY_SCALES],
  };
}

// One channel of one head of the middle keys, as it was coded: scale times the value of its code.
__device__ __forceinline__ float key_channel(
    const MiddleKeys& parts, const float* __restrict__ tables, u32 token, u32 head, u32 channel) {
  const u32* row = parts.codes + (token * KV_HEADS + head) * KEY_HEAD_WORDS;
  const u32 code = unpack_field_3(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[KEY_LEVELS + level]; });
  const u32 scale = (head * HEAD_DIM + channel) / KEY_SCALE_CHANNELS +
                    token / KEY_SCALE_TOKENS * KEY_SCALE_ROW_WORDS * 2;
  return half_at(parts.scales, scale) * unit;
}

// A tile of middle tokens of two KV heads, whose lengths share a word.
extern "C" __global__ void __launch_bounds__(64) sign_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][192], after Hadamard
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ float channels[HEAD_DIM];
  __shared__ float squares[HEAD_DIM / 32];
  const MiddleKeys keys = find_keys(sequence, cache);
  const u32 channel = threadIdx.x;
  const u32 first = blockIdx.x * TILE_TOKENS;
  const u32 end = min(first + TILE_TOKENS, sequence[AT_MIDDLE_TOKENS]);
  for (u32 token = first; token < end; ++token) {
    float lengths[2] = {};
#pragma unroll
    for (u32 side = 0; side < 2; ++side) {
      const u32 head = blockIdx.y * 2 + side;
      if (head >= KV_HEADS) break;
      const u32 vector = token * KV_HEADS + head;
      const float residual = plain[vector * HEAD_DIM + channel] - key_channel(keys, tables, token, head, channel);
      channels[channel] = residual * tables[PROJECTION_SIGNS + channel];
      hadamard(channels);
      // Signs come 32 to a word; the length of a vector is that of its projection.
      if (channel < HEAD_DIM / 32) {
        u32 signs = 0;
        float sum = 0.0f;
        for (u32 i = 0; i < 32; ++i) {
          const float x = channels[channel * 32 + i] * HADAMARD_SCALE;
          signs |= (x < 0.0f ? 0u : 1u) << i;
          sum += x * x;
        }
        cache[sequence[AT_RESIDUAL_SIGNS] + vector * (HEAD_DIM / 32) + channel] = signs;
        squares[channel] = sum;
      }
      __syncthreads();  // the squares are summed up, and the channels have been read
      float square = 0.0f;
      for (u32 i = 0; i < HEAD_DIM / 32; ++i) square += squares[i];
      lengths[side] = fminf(sqrtf(square), 65504.0f);
    }
    if (channel == 0) cache[sequence[AT_RESIDUAL_NORMS] + token * NORM_WORDS + blockIdx.y] = pack_half2(lengths[0], lengths[1]);
  }
}
