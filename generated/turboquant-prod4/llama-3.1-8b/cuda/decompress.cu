// decompress: One tile of tokens of one KV head a block, in the order sinks, middle, stream, window; f16 output saturates.
// Stage decompress of scheme turboquant-prod4 for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   hadamard, perToken(lloydMax, 3 bits; a scale for a head of 1 token)
// values: hadamard, perToken(lloydMax, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 4, window 64
// tunables: tileTokens = 8

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 KEY_HEAD_WORDS = 12;  // words of one head's key fields
constexpr u32 KEY_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 KEY_SCALE_CHANNELS = 128;  // channels of a head that share a scale
constexpr u32 KEY_SCALE_ROW_WORDS = 4;  // words of a row of scales, two each
constexpr float RESIDUAL_SCALE = 0.0097915167f;  // sqrt(pi / 2) / HEAD_DIM: what signs count, times the length of what they are of
constexpr u32 HADAMARD_BLOCK = 128;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.0883883461f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 VALUE_HEAD_WORDS = 16;  // words of one head's value fields
constexpr u32 VALUE_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 VALUE_SCALE_CHANNELS = 128;  // channels of a head that share a scale
constexpr u32 VALUE_SCALE_ROW_WORDS = 4;  // words of a row of scales, two each
constexpr u32 STREAM_WORDS = 16;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 4;  // words of one stream token's norms, two each
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 KEY_LEVELS = 16;  // offset in the tables: values of the codes of keys, over their scales
constexpr u32 VALUE_LEVELS = 24;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 PROJECTION_SIGNS = 40;  // offset in the tables: signs of channels before the projection of residuals
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][8 KV heads][128], after RoPE
constexpr u32 AT_SINK_VALUES = 11;  // in the record, first word of sinkValues: f16 [sinks][8 KV heads][128]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][8 KV heads][128], after RoPE
constexpr u32 AT_WINDOW_VALUES = 13;  // in the record, first word of windowValues: f16 ring [window][8 KV heads][128]
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 3-bit fields [middle][8 KV heads][128], after Hadamard
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: 4-bit fields [middle][8 KV heads][128], after Hadamard
constexpr u32 AT_VALUE_SCALES = 29;  // in the record, first word of valueScales: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
constexpr u32 AT_RESIDUAL_SIGNS = 47;  // in the record, first word of residualSigns: bits [middle][8 KV heads][128]: 1 where the projection of what the codes leave is not below zero
constexpr u32 AT_RESIDUAL_NORMS = 48;  // in the record, first word of residualNorms: f16 [middle][8 KV heads]: length of what the codes leave
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 4-bit fields [stream][8 KV heads][128], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][8 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 4-bit fields [stream][8 KV heads][128], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][8 KV heads]
constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 TILE_TOKENS = 8;  // tokens of a tile

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

// dsl/packing.ts:32 unpackField, bits = 4
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
template <typename Words>
__device__ __forceinline__ u32 unpack_field_4(u32 index, Words words) {
  const u32 position = index * 4u;
  const u32 word = position / 32u;
  const u32 shift = position % 32u;
  u32 value = words(word) >> shift;
  return value & 15u;
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

// Two channels as one word of f16; what f16 cannot hold becomes its largest value, never infinity.
__device__ __forceinline__ u32 saturated_pair(float low, float high) {
  return static_cast<u32>(float_to_half_saturated(low)) | static_cast<u32>(float_to_half_saturated(high)) << 16;
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

// Where the middle values of a sequence lie.
struct MiddleValues {
  const u32* codes;
  const u32* scales;
};

__device__ __forceinline__ MiddleValues find_values(const u32* record, const u32* cache) {
  return {
      cache + record[AT_VALUE_CODES],
      cache + record[AT_VALUE_SCALES],
  };
}

// One channel of one head of the middle values, as it was coded: scale times the value of its code.
__device__ __forceinline__ float value_channel(
    const MiddleValues& parts, const float* __restrict__ tables, u32 token, u32 head, u32 channel) {
  const u32* row = parts.codes + (token * KV_HEADS + head) * VALUE_HEAD_WORDS;
  const u32 code = unpack_field_4(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[VALUE_LEVELS + level]; });
  const u32 scale = (head * HEAD_DIM + channel) / VALUE_SCALE_CHANNELS +
                    token / VALUE_SCALE_TOKENS * VALUE_SCALE_ROW_WORDS * 2;
  return half_at(parts.scales, scale) * unit;
}

// One channel of the projection of what the codes of a middle key leave: its sign, as the length of all of it counts.
__device__ __forceinline__ float residual_sign(const u32* record, const u32* cache, u32 token, u32 head, u32 channel) {
  const u32* signs = cache + record[AT_RESIDUAL_SIGNS] + (token * KV_HEADS + head) * (HEAD_DIM / 32);
  const float length = half_at(cache + record[AT_RESIDUAL_NORMS] + token * NORM_WORDS, head);
  return (signs[channel / 32] >> (channel % 32) & 1u) != 0 ? length * RESIDUAL_SCALE : length * -RESIDUAL_SCALE;
}

// Where the segments of the sequence end, in tokens. Sinks start at 0.
struct Segments {
  u32 sinks, middle, stream, window;
};

// One channel of one head of a stream token, key or value, before the inverse transform.
__device__ __forceinline__ float stream_value(
    const u32* codes, const u32* norms, const float* __restrict__ tables, u32 token, u32 head, u32 channel) {
  const u32* row = codes + (token * KV_HEADS + head) * STREAM_WORDS;
  const u32 code = unpack_field_4(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[level]; });
  return unit * half_at(norms + token * NORM_WORDS, head);
}

// Turns the head in `channels` back and stores it.
__device__ __forceinline__ void store_turned(float (&channels)[HEAD_DIM], u32* target) {
  hadamard(channels);
  for (u32 word = threadIdx.x; word < HEAD_DIM / 2; word += THREADS) {
    target[word] = saturated_pair(channels[word * 2] * HADAMARD_SCALE, channels[word * 2 + 1] * HADAMARD_SCALE);
  }
  __syncthreads();  // all channels have been read before the next head takes their place
}

// One tile of tokens of one KV head a block, one channel a thread. A tile may lie in several segments.
extern "C" __global__ void __launch_bounds__(128) decompress(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* keys,  // f16 [8 KV heads][tokens][128], after RoPE
    u32* values  // f16 [8 KV heads][tokens][128]
) {
  __shared__ float channels[HEAD_DIM];
  Segments end;
  end.sinks = sequence[AT_SINK_TOKENS];
  end.middle = end.sinks + sequence[AT_MIDDLE_TOKENS];
  end.stream = end.middle + sequence[AT_STREAM_TOKENS];
  end.window = end.stream + sequence[AT_WINDOW_TOKENS];
  constexpr u32 head_words = HEAD_DIM / 2;
  const u32 head = blockIdx.y;
  const u32 channel = threadIdx.x;
  const u32 first = blockIdx.x * TILE_TOKENS;
  const u32 last = min(first + TILE_TOKENS, end.window);
  u32* head_keys = keys + head * end.window * head_words;
  u32* head_values = values + head * end.window * head_words;
  const MiddleKeys middle_keys = find_keys(sequence, cache);
  const MiddleValues middle_values = find_values(sequence, cache);

  for (u32 token = first; token < last; ++token) {
    u32* key = head_keys + token * head_words;
    u32* value = head_values + token * head_words;
    if (token < end.sinks || token >= end.stream) {
      // Exact: copied as it is. The window is a ring.
      const bool sink = token < end.sinks;
      const u32 slot = sink ? token : (sequence[AT_WINDOW_START] + token - end.stream) % WINDOW;
      const u32 source = slot * (WIDTH / 2) + head * head_words;
      const u32* exact_key = cache + sequence[sink ? AT_SINK_KEYS : AT_WINDOW_KEYS] + source;
      const u32* exact_value = cache + sequence[sink ? AT_SINK_VALUES : AT_WINDOW_VALUES] + source;
      for (u32 word = channel; word < head_words; word += THREADS) {
        key[word] = exact_key[word];
        value[word] = exact_value[word];
      }
    } else if (token < end.middle) {
      const u32 row = token - end.sinks;
      if (channel < HEAD_DIM) channels[channel] = residual_sign(sequence, cache, row, head, channel);
      hadamard(channels);
      if (channel < HEAD_DIM) {
        const float residual = tables[PROJECTION_SIGNS + channel] * channels[channel];
        channels[channel] = key_channel(middle_keys, tables, row, head, channel) + residual;
      }
      store_turned(channels, key);
      if (channel < HEAD_DIM) channels[channel] = value_channel(middle_values, tables, row, head, channel);
      store_turned(channels, value);
    } else {
      const u32 row = token - end.middle;
      if (channel < HEAD_DIM) {
        channels[channel] = stream_value(cache + sequence[AT_STREAM_KEY_CODES], cache + sequence[AT_STREAM_KEY_NORMS],
                                         tables, row, head, channel);
      }
      store_turned(channels, key);
      if (channel < HEAD_DIM) {
        channels[channel] = stream_value(cache + sequence[AT_STREAM_VALUE_CODES], cache + sequence[AT_STREAM_VALUE_NORMS],
                                         tables, row, head, channel);
      }
      store_turned(channels, value);
    }
  }
}
