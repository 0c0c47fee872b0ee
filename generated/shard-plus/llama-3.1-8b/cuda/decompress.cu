// decompress: One tile of tokens of one KV head a block, in the order sinks, middle, stream, window; f16 output saturates.
// Stage decompress of scheme shard-plus for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 8

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 PAIRS = 64;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK_WORDS = 48;  // words of a basis row, four int8 columns each
constexpr u32 ALLOCATED_GROUPS = 12;  // groups of 16 components with widths of their own
constexpr u32 KEY_ROW_WORDS = 24;  // words of one token's key fields
constexpr u32 HADAMARD_BLOCK = 128;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.0883883461f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 VALUE_ROW_WORDS = 64;  // words of one token's value indices, four each
constexpr u32 STREAM_WORDS = 32;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 4;  // words of one stream token's norms, two each
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 ANGLE_TILE = 64;  // rows of the fine angle table
constexpr u32 FINE_ANGLES = 256;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
constexpr u32 COARSE_ANGLES = 9472;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][8 KV heads][128], after RoPE
constexpr u32 AT_SINK_VALUES = 11;  // in the record, first word of sinkValues: f16 [sinks][8 KV heads][128]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][8 KV heads][128], after RoPE
constexpr u32 AT_WINDOW_VALUES = 13;  // in the record, first word of windowValues: f16 ring [window][8 KV heads][128]
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 0- to 8-bit fields [middle][192 components]
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [192 components]
constexpr u32 AT_KEY_BASIS = 16;  // in the record, first word of keyBasis: i8 [1024 channels][192 components]
constexpr u32 AT_KEY_BASIS_SCALES = 17;  // in the record, first word of keyBasisScales: f16 [192 components]
constexpr u32 AT_KEY_MEAN = 18;  // in the record, first word of keyMean: f16 [1024 channels], before RoPE
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: u8 [middle][256 vectors]
constexpr u32 AT_CODEBOOK = 20;  // in the record, first word of codebook: f16 [256 entries][4]
constexpr u32 AT_CHANNEL_MAX = 21;  // in the record, first word of channelMax: f16 [8 KV heads][128], after Hadamard
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][8 KV heads][128], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][8 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 8-bit fields [stream][8 KV heads][128], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][8 KV heads]
constexpr u32 AT_KEY_WIDTHS = 26;  // in the record, first word of keyWidths: u32 [12 groups of 16 components]: first bit in the row * 16 + bits a component
constexpr u32 AT_KEY_WEIGHTS = 27;  // in the record, first word of keyWeights: f16 [1024 channels], above 0: keys are coded times this
constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 TILE_TOKENS = 8;  // tokens of a tile
constexpr u32 GROUP_COMPONENTS = 16;  // most components whose codes are unpacked together

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

// dsl/codecs/pca.ts:158 signedByte
// Byte `lane` (0 to 3) of a word as a signed integer.
__device__ __forceinline__ float signed_byte(u32 word, u32 lane) {
  const int byte = int((word >> (lane * 8u)) & 255u);
  return float(byte > 127 ? byte - 256 : byte);
}

// dsl/packing.ts:50 unpackBits
// Reads `bits` bits (1 to 32, known when the kernel runs) from bit `position` of a row on; touches the second word only when the field straddles.
template <typename Words>
__device__ __forceinline__ u32 unpack_bits(u32 position, u32 bits, Words words) {
  const u32 word = position / 32u;
  const u32 shift = position % 32u;
  u32 value = words(word) >> shift;
  if (shift + bits > 32u) {
    value = value | (words(word + 1u) << (32u - shift));
  }
  return value & (0xffffffffu >> (32u - bits));
}

// dsl/codecs/midRise.ts:35 midRiseValue
// What a field stands for, in steps.
__device__ __forceinline__ float mid_rise_value(u32 field, u32 bits) {
  return float(int(field) - (1 << (bits - 1u))) + 0.5f;
}

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
__device__ __forceinline__ float2 butterfly(float a, float b) {
  return make_float2(a + b, a - b);
}

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
template <typename Levels>
__device__ __forceinline__ float level_value(u32 code, Levels levels) {
  return levels(code);
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

// Key codes lie in groups of 16 components, whose width every prompt decides: word `group` of the widths is the first
// bit of the group in a token's row, times 16, plus the bits of a component. Groups with 0 bits store nothing.
constexpr u32 KEY_GROUPS = ALLOCATED_GROUPS;

__device__ __forceinline__ u32 stored_components(const u32* record, const u32* cache, u32 group) {
  return cache[record[AT_KEY_WIDTHS] + group] % 16 == 0 ? 0 : 16;
}

__device__ __forceinline__ u32 first_component(u32 group) { return group * 16; }

// Code of component `i` of a group, from the row of a token.
__device__ __forceinline__ float key_code(const u32* record, const u32* cache, u32 group, const u32* row, u32 i) {
  const u32 width = cache[record[AT_KEY_WIDTHS] + group];
  const u32 bits = width % 16;
  return mid_rise_value(unpack_bits(width / 16 + i * bits, bits, [&](u32 word) { return row[word]; }), bits);
}

// Where the segments of the sequence end, in tokens. Sinks start at 0.
struct Segments {
  u32 sinks, middle, stream, window;
};

// The middle keys of a tile before RoPE, less their mean and still times their weights: one channel a thread,
// all tokens of the tile at once.
__device__ __forceinline__ void multiply_basis(
    const u32* __restrict__ sequence, const u32* __restrict__ cache, const Segments& end, u32 first, u32 row,
    float (&coefficients)[TILE_TOKENS][GROUP_COMPONENTS], float (&key)[TILE_TOKENS]) {
  const u32* key_scales = cache + sequence[AT_KEY_SCALES];
  const u32* basis_scales = cache + sequence[AT_KEY_BASIS_SCALES];
  const u32* basis_row = cache + sequence[AT_KEY_BASIS] + row * RANK_WORDS;
  for (u32 group = 0; group < KEY_GROUPS; ++group) {
    const u32 components = stored_components(sequence, cache, group);
    const u32 group_first = first_component(group);
    for (u32 i = threadIdx.x; i < TILE_TOKENS * components; i += THREADS) {
      const u32 slot = i / components;
      const u32 field = i % components;
      const u32 token = first + slot;
      float coefficient = 0.0f;  // of a token of another segment
      if (token >= end.sinks && token < end.middle) {
        const u32* codes = cache + sequence[AT_KEY_CODES] + (token - end.sinks) * KEY_ROW_WORDS;
        coefficient = key_code(sequence, cache, group, codes, field) * half_at(key_scales, group_first + field) *
                      half_at(basis_scales, group_first + field);
      }
      coefficients[slot][field] = coefficient;
    }
    __syncthreads();  // the group's coefficients are there
    if (threadIdx.x < HEAD_DIM) {
      for (u32 field = 0; field < components; ++field) {
        const u32 component = group_first + field;
        const float entry = signed_byte(basis_row[component / 4], component % 4);
#pragma unroll
        for (u32 slot = 0; slot < TILE_TOKENS; ++slot) key[slot] += coefficients[slot][field] * entry;
      }
    }
    __syncthreads();  // they have been used before the next group's take their place
  }
}

// One channel of a middle value, before the inverse transform.
__device__ __forceinline__ float middle_value(
    const u32* __restrict__ sequence, const u32* __restrict__ cache, u32 token, u32 channel) {
  const u32 vector = channel / CHANNELS;
  const u32 word = cache[sequence[AT_VALUE_CODES] + token * VALUE_ROW_WORDS + vector / 4];
  const u32 entry = word >> (vector % 4 * 8) & 0xffu;
  return half_at(cache + sequence[AT_CODEBOOK], entry * CHANNELS + channel % CHANNELS) *
         half_at(cache + sequence[AT_CHANNEL_MAX], channel);
}

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
extern "C" __global__ void __launch_bounds__(128) decompress(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* keys,  // f16 [8 KV heads][tokens][128], after RoPE
    u32* values  // f16 [8 KV heads][tokens][128]
) {
  __shared__ float coefficients[TILE_TOKENS][GROUP_COMPONENTS];
  __shared__ float tile_keys[TILE_TOKENS][HEAD_DIM];
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

  if (end.sinks < end.middle && first < end.middle && last > end.sinks) {
    float key[TILE_TOKENS] = {};
    multiply_basis(sequence, cache, end, first, head * HEAD_DIM + min(channel, HEAD_DIM - 1), coefficients, key);
    if (channel < HEAD_DIM) {
      const float mean = half_at(cache + sequence[AT_KEY_MEAN], head * HEAD_DIM + channel);
      const float inverse_weight = 1.0f / half_at(cache + sequence[AT_KEY_WEIGHTS], head * HEAD_DIM + channel);
#pragma unroll
      for (u32 slot = 0; slot < TILE_TOKENS; ++slot) key[slot] *= inverse_weight;
#pragma unroll
      for (u32 slot = 0; slot < TILE_TOKENS; ++slot) tile_keys[slot][channel] = key[slot] + mean;
    }
    __syncthreads();  // both channels of every pair are there
    for (u32 i = channel; i < TILE_TOKENS * PAIRS; i += THREADS) {
      const u32 position = first + i / PAIRS;
      if (position < end.sinks || position >= end.middle) continue;
      float* row = tile_keys[i / PAIRS];
      const u32 pair = i % PAIRS;
      const u32 first_channel = first_of_pair_64_64_0(pair);
      const u32 second_channel = second_of_pair_64_64_0(pair);
      const float2 turned = rotate_pair(row[first_channel], row[second_channel], angle_at(tables, position, pair));
      row[first_channel] = turned.x;
      row[second_channel] = turned.y;
    }
    __syncthreads();  // the pairs are turned
    for (u32 i = channel; i < TILE_TOKENS * head_words; i += THREADS) {
      const u32 token = first + i / head_words;
      if (token < end.sinks || token >= end.middle) continue;
      const float* row = tile_keys[i / head_words];
      const u32 word = i % head_words;
      head_keys[token * head_words + word] = saturated_pair(row[word * 2], row[word * 2 + 1]);
    }
  }

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
      if (channel < HEAD_DIM) {
        channels[channel] = middle_value(sequence, cache, token - end.sinks, head * HEAD_DIM + channel);
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
