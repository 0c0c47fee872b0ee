// decompress: One tile of tokens of one KV head a block, in the order sinks, middle, stream, window; f16 output saturates.
// Stage decompress of scheme tilt-safe for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 8

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 PAIRS = 32;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 TILE = 64;  // positions of a tile, whose keys are rotated together
constexpr u32 RANGE_BLOCK = 512;  // positions that share the steps of components; 0 for all
constexpr u32 GROUP_COMPONENTS = 8;  // components that share a width
constexpr u32 GROUPS = 8;  // groups of components of a KV head
constexpr u32 FIELD_WORDS = 10;  // words that describe the fields of a KV head's key codes
constexpr u32 ROW_POSITIONS = 64;  // positions of a row of codes
constexpr u32 TILE_ROW_WORDS = 768;  // words of a row of codes, all KV heads
constexpr u32 VALUE_HEAD_WORDS = 6;  // words of one head's value fields
constexpr u32 VALUE_SCALE_TOKENS = 1;  // middle tokens that share a scale
constexpr u32 VALUE_SCALE_CHANNELS = 64;  // channels of a head that share a scale
constexpr u32 VALUE_SCALE_ROW_WORDS = 2;  // words of a row of scales, two each
constexpr u32 HADAMARD_BLOCK = 64;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.125f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 STREAM_WORDS = 16;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 2;  // words of one stream token's norms, two each
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 ANGLE_TILE = 64;  // rows of the fine angle table
constexpr u32 VALUE_LEVELS = 256;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 FINE_ANGLES = 264;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
constexpr u32 TILE_ANGLES = 4360;  // offset in the tables: [TILE][PAIRS](cosine, sine) of the place in a tile, position % TILE - (TILE - 1) / 2
constexpr u32 COARSE_ANGLES = 8456;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][3 KV heads][64], after RoPE
constexpr u32 AT_SINK_VALUES = 11;  // in the record, first word of sinkValues: f16 [sinks][3 KV heads][64]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][3 KV heads][64], after RoPE
constexpr u32 AT_WINDOW_VALUES = 13;  // in the record, first word of windowValues: f16 ring [window][3 KV heads][64]
constexpr u32 AT_TILE_CODES = 43;  // in the record, first word of tileCodes: [rows of 64 positions][3 KV heads]: planes of key fields
constexpr u32 AT_KEY_STEPS = 44;  // in the record, first word of keySteps: f16 [range blocks][3 KV heads][64] components, 128 times step and scale of the basis column
constexpr u32 AT_KEY_BASIS = 16;  // in the record, first word of keyBasis: i8 [3 KV heads][64] components[64 channels, in the order of pairs]
constexpr u32 AT_KEY_MEAN = 18;  // in the record, first word of keyMean: f16 [3 KV heads][64] channels, in the order of pairs, before RoPE
constexpr u32 AT_KEY_FIELDS = 45;  // in the record, first word of keyFields: u32 [3 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: 3-bit fields [middle][3 KV heads][64], after Hadamard
constexpr u32 AT_VALUE_SCALES = 29;  // in the record, first word of valueScales: f16 [middle][3 KV heads][1 of 64 channels]
constexpr u32 AT_VALUE_OFFSETS = 30;  // in the record, first word of valueOffsets: f16 [middle][3 KV heads][1 of 64 channels]
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][3 KV heads][64], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][3 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 8-bit fields [stream][3 KV heads][64], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][3 KV heads]
constexpr u32 AT_KEY_WEIGHTS = 27;  // in the record, first word of keyWeights: f16 [192 channels], above 0: keys are coded times this
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 8;  // tokens of a tile

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
__device__ __forceinline__ float2 add_angles(float2 coarse, float2 fine) {
  return make_float2(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 32, pairs = 32, interleaved = 0
// The first channel of a pair.
__device__ __forceinline__ u32 first_of_pair_32_32_0(u32 pair) {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 32, pairs = 32, interleaved = 0
// The second channel of a pair.
__device__ __forceinline__ u32 second_of_pair_32_32_0(u32 pair) {
  return pair + 32u;
}

// dsl/codecs/unrope.ts:16 rotatePair
// Turns the pair (a, b) by the angle whose cosine and sine are given.
__device__ __forceinline__ float2 rotate_pair(float a, float b, float2 angle) {
  return make_float2(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}

// dsl/codecs/unrope.ts:22 unrotatePair
// Undoes `rotatePair`.
__device__ __forceinline__ float2 unrotate_pair(float a, float b, float2 angle) {
  return make_float2(a * angle.x + b * angle.y, b * angle.x - a * angle.y);
}

// dsl/codecs/pca.ts:158 signedByte
// Byte `lane` (0 to 3) of a word as a signed integer.
__device__ __forceinline__ float signed_byte(u32 word, u32 lane) {
  const int byte = int((word >> (lane * 8u)) & 255u);
  return float(byte > 127 ? byte - 256 : byte);
}

// dsl/codecs/midRise.ts:35 midRiseValue
// What a field stands for, in steps.
__device__ __forceinline__ float mid_rise_value(u32 field, u32 bits) {
  return float(int(field) - (1 << (bits - 1u))) + 0.5f;
}

// dsl/codecs/tileRows.ts:9 planeByte, components = 8
// Byte of a byte plane that holds the fields of a component of its group.
__device__ __forceinline__ u32 plane_byte_8(u32 position, u32 component) {
  const u32 in_half = position % 32u;
  const u32 row = position / 32u * 8u + in_half % 8u;
  const u32 word = (row * 2u + component / 4u) * 4u + in_half / 8u;
  return word * 4u + component % 4u;
}

// dsl/codecs/tileRows.ts:18 nibbleByte, components = 8
// Byte of a nibble plane; positions 0 to 31 of the row have its low nibble, the others its high one.
__device__ __forceinline__ u32 nibble_byte_8(u32 position, u32 component) {
  const u32 in_half = position % 32u;
  const u32 word = (in_half % 8u * 2u + component / 4u) * 4u + in_half / 8u;
  return word * 4u + component % 4u;
}

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

// dsl/packing.ts:32 unpackField, bits = 8
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
template <typename Words>
__device__ __forceinline__ u32 unpack_field_8(u32 index, Words words) {
  const u32 position = index * 8u;
  const u32 word = position / 32u;
  const u32 shift = position % 32u;
  u32 value = words(word) >> shift;
  return value & 255u;
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

// The rows of codes of one KV head, and where its fields lie in them.
struct HeadCodes {
  const u32* rows;    // of the head in row 0
  const u32* fields;  // of every group: bits + 16 * bit + 65536 * slot
  u32 nibbles;        // of all fields: two a byte plane, the last odd one a nibble plane
};

__device__ __forceinline__ HeadCodes find_codes(const u32* record, const u32* cache, u32 head) {
  // Without a middle nothing was fitted, and nothing is written there.
  if (record[AT_MIDDLE_TOKENS] == 0) return {cache, cache, 0};

  const u32* fields = cache + record[AT_KEY_FIELDS] + head * FIELD_WORDS;
  return {cache + record[AT_TILE_CODES] + fields[GROUPS + 1], fields, fields[GROUPS]};
}

// A component of the key at a position, in steps; zero where its group has no bits.
__device__ __forceinline__ float key_component(const HeadCodes& codes, u32 position, u32 component) {
  const u32 field = codes.fields[component / GROUP_COMPONENTS];
  const u32 bits = field & 15u;
  if (bits == 0) return 0.0f;

  const u32 bit = field >> 4 & 0xfffu;
  const u32 plane = bit / 8;
  const u32 in_row = position % ROW_POSITIONS;
  const u32 in_group = component % GROUP_COMPONENTS;
  const bool in_nibbles = codes.nibbles % 2 == 1 && plane == codes.nibbles / 2;
  const u32 byte = in_nibbles ? nibble_byte_8(in_row, in_group) : plane_byte_8(in_row, in_group);
  const u32 shift = byte % 4 * 8 + bit % 8 + (in_nibbles ? in_row / 32 * 4 : 0);
  const u32* row = codes.rows + position / ROW_POSITIONS * TILE_ROW_WORDS;
  const u32 word = row[plane * ROW_POSITIONS * GROUP_COMPONENTS / 4 + byte / 4];
  return mid_rise_value(word >> shift & ((1u << bits) - 1u), bits);
}

// The step of a component at a position, times the scale of its column of the basis.
__device__ __forceinline__ float step_at(const u32* record, const u32* cache, u32 position, u32 head, u32 component) {
  const u32 block = position / RANGE_BLOCK;
  return half_at(cache + record[AT_KEY_STEPS], (block * KV_HEADS + head) * HEAD_DIM + component) / 128.0f;
}

// Where the middle values of a sequence lie.
struct MiddleValues {
  const u32* codes;
  const u32* scales;
  const u32* offsets;
};

__device__ __forceinline__ MiddleValues find_values(const u32* record, const u32* cache) {
  return {
      cache + record[AT_VALUE_CODES],
      cache + record[AT_VALUE_SCALES],
      cache + record[AT_VALUE_OFFSETS],
  };
}

// One channel of one head of the middle values, as it was coded: offset plus scale times the value of its code.
__device__ __forceinline__ float value_channel(
    const MiddleValues& parts, const float* __restrict__ tables, u32 token, u32 head, u32 channel) {
  const u32* row = parts.codes + (token * KV_HEADS + head) * VALUE_HEAD_WORDS;
  const u32 code = unpack_field_3(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[VALUE_LEVELS + level]; });
  const u32 scale = (head * HEAD_DIM + channel) / VALUE_SCALE_CHANNELS +
                    token / VALUE_SCALE_TOKENS * VALUE_SCALE_ROW_WORDS * 2;
  return half_at(parts.offsets, scale) + half_at(parts.scales, scale) * unit;
}

// Where the segments of the sequence end, in tokens. Sinks start at 0.
struct Segments {
  u32 sinks, middle, stream, window;
};

// One channel of one head of a stream token, key or value, before the inverse transform.
__device__ __forceinline__ float stream_value(
    const u32* codes, const u32* norms, const float* __restrict__ tables, u32 token, u32 head, u32 channel) {
  const u32* row = codes + (token * KV_HEADS + head) * STREAM_WORDS;
  const u32 code = unpack_field_8(channel, [&](u32 word) { return row[word]; });
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
extern "C" __global__ void __launch_bounds__(64) decompress(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* keys,  // f16 [3 KV heads][tokens][64], after RoPE
    u32* values  // f16 [3 KV heads][tokens][64]
) {
  __shared__ float channels[HEAD_DIM];
  __shared__ float components[HEAD_DIM];
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
  const HeadCodes codes = find_codes(sequence, cache, head);
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
      // A middle token's place in the sequence is its position.
      if (channel < HEAD_DIM) {
        const float code = key_component(codes, token, channel);
        components[channel] = code != 0.0f ? code * step_at(sequence, cache, token, head, channel) : 0.0f;
      }
      __syncthreads();  // the components of the key are there
      if (channel < HEAD_DIM) {
        const u32* basis = cache + sequence[AT_KEY_BASIS] + head * HEAD_DIM * (HEAD_DIM / 4);
        float sum = 0.0f;
        for (u32 r = 0; r < HEAD_DIM; ++r) {
          if (components[r] == 0.0f) continue;
          sum += components[r] * signed_byte(basis[r * (HEAD_DIM / 4) + channel / 4], channel % 4);
        }
        channels[channel] = sum / half_at(cache + sequence[AT_KEY_WEIGHTS], head * HEAD_DIM + channel);
      }
      __syncthreads();  // the key about its mean is there, its channels in the order of pairs
      float2 turned = make_float2(0.0f, 0.0f);
      if (channel < PAIRS) {
        const u32* mean = cache + sequence[AT_KEY_MEAN];
        const float* place = tables + TILE_ANGLES + (token % TILE * PAIRS + channel) * 2;
        const float2 centred = unrotate_pair(channels[channel], channels[PAIRS + channel], make_float2(place[0], place[1]));
        turned = rotate_pair(centred.x + half_at(mean, head * HEAD_DIM + channel),
                             centred.y + half_at(mean, head * HEAD_DIM + PAIRS + channel), angle_at(tables, token, channel));
      }
      __syncthreads();  // all pairs have been read before they are put where the model has them
      if (channel < PAIRS) {
        channels[first_of_pair_32_32_0(channel)] = turned.x;
        channels[second_of_pair_32_32_0(channel)] = turned.y;
      }
      __syncthreads();  // both channels of every word are there
      for (u32 word = channel; word < head_words; word += THREADS) {
        key[word] = saturated_pair(channels[word * 2], channels[word * 2 + 1]);
      }
      __syncthreads();  // all channels have been read before the value takes their place
      if (channel < HEAD_DIM) {
        const float coded = value_channel(middle_values, tables, token - end.sinks, head, channel);
        channels[channel] = coded;
      }
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
