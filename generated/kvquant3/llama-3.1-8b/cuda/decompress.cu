// decompress: One tile of tokens of one KV head a block, in the order sinks, middle, stream, window; f16 output saturates.
// Stage decompress of scheme kvquant3 for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, perChannel(nuq, 3 bits; a scale for 1 channel of the prompt without 0.005 of its numbers at each end), 2 outliers a token and KV head
// values: perToken(nuq, 3 bits; a scale for a head of 1 token without 0.01 of its numbers at each end), 2 outliers a token and KV head
// stream: lloydMax(3 bits); sinks 5, window 64
// tunables: tileTokens = 8

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 PAIRS = 64;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 KEY_HEAD_WORDS = 12;  // words of one head's key fields
constexpr u32 KEY_SCALE_CHANNELS = 1;  // channels of a head that share a scale
constexpr u32 KEY_OUTLIER_CAP = 2;  // outliers of a token and KV head, at most
constexpr u32 HADAMARD_BLOCK = 128;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.0883883461f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 VALUE_HEAD_WORDS = 12;  // words of one head's value fields
constexpr u32 VALUE_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 VALUE_SCALE_CHANNELS = 128;  // channels of a head that share a scale
constexpr u32 VALUE_SCALE_ROW_WORDS = 4;  // words of a row of scales, two each
constexpr u32 VALUE_OUTLIER_CAP = 2;  // outliers of a token and KV head, at most
constexpr u32 STREAM_WORDS = 12;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 4;  // words of one stream token's norms, two each
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 ANGLE_TILE = 64;  // rows of the fine angle table
constexpr u32 KEY_LEVELS = 8;  // offset in the tables: values of the codes of keys, over their scales
constexpr u32 VALUE_LEVELS = 16;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 FINE_ANGLES = 24;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
constexpr u32 COARSE_ANGLES = 8216;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][8 KV heads][128], after RoPE
constexpr u32 AT_SINK_VALUES = 11;  // in the record, first word of sinkValues: f16 [sinks][8 KV heads][128]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][8 KV heads][128], after RoPE
constexpr u32 AT_WINDOW_VALUES = 13;  // in the record, first word of windowValues: f16 ring [window][8 KV heads][128]
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 3-bit fields [middle][8 KV heads][128], before RoPE
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [8 KV heads][128 of 1 channels]
constexpr u32 AT_KEY_OFFSETS = 28;  // in the record, first word of keyOffsets: f16 [8 KV heads][128 of 1 channels]
constexpr u32 AT_KEY_OUTLIERS = 31;  // in the record, first word of keyOutliers: u32 [middle][8 KV heads][2 largest residuals first]: channel + f16 residual * 2^16, before RoPE; 0 for none
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: 3-bit fields [middle][8 KV heads][128]
constexpr u32 AT_VALUE_SCALES = 29;  // in the record, first word of valueScales: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
constexpr u32 AT_VALUE_OFFSETS = 30;  // in the record, first word of valueOffsets: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
constexpr u32 AT_VALUE_OUTLIERS = 32;  // in the record, first word of valueOutliers: u32 [middle][8 KV heads][2 largest residuals first]: channel + f16 residual * 2^16; 0 for none
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 3-bit fields [stream][8 KV heads][128], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][8 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 3-bit fields [stream][8 KV heads][128], after Hadamard
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

// dsl/codecs/unrope.ts:16 rotatePair
// Turns the pair (a, b) by the angle whose cosine and sine are given.
__device__ __forceinline__ float2 rotate_pair(float a, float b, float2 angle) {
  return make_float2(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
__device__ __forceinline__ float2 add_angles(float2 coarse, float2 fine) {
  return make_float2(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 64, pairs = 64, interleaved = 0
// The first channel of a pair.
__device__ __forceinline__ u32 first_of_pair_64_64_0(u32 pair) {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 64, pairs = 64, interleaved = 0
// The second channel of a pair.
__device__ __forceinline__ u32 second_of_pair_64_64_0(u32 pair) {
  return pair + 64u;
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

// The rotary angle of one pair at a position, as (cosine, sine).
__device__ __forceinline__ float2 angle_at(const float* __restrict__ tables, u32 position, u32 pair) {
  const float* coarse = tables + COARSE_ANGLES + (position / ANGLE_TILE * PAIRS + pair) * 2;
  const float* fine = tables + FINE_ANGLES + (position % ANGLE_TILE * PAIRS + pair) * 2;
  return add_angles(make_float2(coarse[0], coarse[1]), make_float2(fine[0], fine[1]));
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
  const u32* offsets;
  const u32* outliers;
};

__device__ __forceinline__ MiddleKeys find_keys(const u32* record, const u32* cache) {
  return {
      cache + record[AT_KEY_CODES],
      cache + record[AT_KEY_SCALES],
      cache + record[AT_KEY_OFFSETS],
      cache + record[AT_KEY_OUTLIERS],
  };
}

// One channel of one head of the middle keys, as it was coded: offset plus scale times the value of its code, plus the residual of an outlier.
__device__ __forceinline__ float key_channel(
    const MiddleKeys& parts, const float* __restrict__ tables, u32 token, u32 head, u32 channel) {
  const u32* row = parts.codes + (token * KV_HEADS + head) * KEY_HEAD_WORDS;
  const u32 code = unpack_field_3(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[KEY_LEVELS + level]; });
  const u32 scale = (head * HEAD_DIM + channel) / KEY_SCALE_CHANNELS;
  float x = half_at(parts.offsets, scale) + half_at(parts.scales, scale) * unit;
  const u32* outliers = parts.outliers + (token * KV_HEADS + head) * KEY_OUTLIER_CAP;
#pragma unroll
  for (u32 i = 0; i < KEY_OUTLIER_CAP; ++i) {
    const u32 entry = outliers[i];
    if ((entry & 0xffffu) == channel) x += half_to_float(static_cast<u16>(entry >> 16));
  }
  return x;
}

// Where the middle values of a sequence lie.
struct MiddleValues {
  const u32* codes;
  const u32* scales;
  const u32* offsets;
  const u32* outliers;
};

__device__ __forceinline__ MiddleValues find_values(const u32* record, const u32* cache) {
  return {
      cache + record[AT_VALUE_CODES],
      cache + record[AT_VALUE_SCALES],
      cache + record[AT_VALUE_OFFSETS],
      cache + record[AT_VALUE_OUTLIERS],
  };
}

// One channel of one head of the middle values, as it was coded: offset plus scale times the value of its code, plus the residual of an outlier.
__device__ __forceinline__ float value_channel(
    const MiddleValues& parts, const float* __restrict__ tables, u32 token, u32 head, u32 channel) {
  const u32* row = parts.codes + (token * KV_HEADS + head) * VALUE_HEAD_WORDS;
  const u32 code = unpack_field_3(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[VALUE_LEVELS + level]; });
  const u32 scale = (head * HEAD_DIM + channel) / VALUE_SCALE_CHANNELS +
                    token / VALUE_SCALE_TOKENS * VALUE_SCALE_ROW_WORDS * 2;
  float x = half_at(parts.offsets, scale) + half_at(parts.scales, scale) * unit;
  const u32* outliers = parts.outliers + (token * KV_HEADS + head) * VALUE_OUTLIER_CAP;
#pragma unroll
  for (u32 i = 0; i < VALUE_OUTLIER_CAP; ++i) {
    const u32 entry = outliers[i];
    if ((entry & 0xffffu) == channel) x += half_to_float(static_cast<u16>(entry >> 16));
  }
  return x;
}

// Where the segments of the sequence end, in tokens. Sinks start at 0.
struct Segments {
  u32 sinks, middle, stream, window;
};

// One channel of one head of a stream token, key or value, before the inverse transform.
__device__ __forceinline__ float stream_value(
    const u32* codes, const u32* norms, const float* __restrict__ tables, u32 token, u32 head, u32 channel) {
  const u32* row = codes + (token * KV_HEADS + head) * STREAM_WORDS;
  const u32 code = unpack_field_3(channel, [&](u32 word) { return row[word]; });
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
      if (channel < PAIRS) {
        const u32 first_channel = first_of_pair_64_64_0(channel);
        const u32 second_channel = second_of_pair_64_64_0(channel);
        const float first_key = key_channel(middle_keys, tables, row, head, first_channel);
        const float second_key = key_channel(middle_keys, tables, row, head, second_channel);
        const float2 pair = rotate_pair(first_key, second_key, angle_at(tables, token, channel));
        channels[first_channel] = pair.x;
        channels[second_channel] = pair.y;
      }
      __syncthreads();  // both channels of every word are there
      for (u32 word = channel; word < head_words; word += THREADS) {
        key[word] = saturated_pair(channels[word * 2], channels[word * 2 + 1]);
      }
      __syncthreads();  // all channels have been read before the next ones take their place
      for (u32 word = channel; word < head_words; word += THREADS) {
        value[word] = saturated_pair(value_channel(middle_values, tables, row, head, word * 2),
                                     value_channel(middle_values, tables, row, head, word * 2 + 1));
      }
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
