// decompress: One tile of tokens a block, in the order sinks, middle, stream, window; f16 output saturates.
// Stage decompress of scheme latent-int8 for deepseek-v3. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// latent: perToken(symmetric, 8 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 LATENT_DIM = 512;  // channels of a latent, the first of a token
constexpr u32 ROTARY_DIM = 64;  // channels of a rotary part
constexpr u32 TOKEN_DIM = 576;  // channels of a token: latent, then rotary part
constexpr u32 TOKEN_WORDS = 288;  // words of a token in f16
constexpr u32 LATENT_WORDS = 128;  // words of a middle token's latent
constexpr u32 LATENT_SCALE_CHANNELS = 128;  // channels of a latent that share a scale
constexpr u32 LATENT_SCALE_WORDS = 2;  // words of the scales of a latent, two each
constexpr u32 LATENT_SPAN = 512;  // channels of one Hadamard block of a latent
constexpr float LATENT_HADAMARD_SCALE = 0.0441941731f;  // 1 / sqrt(LATENT_SPAN)
constexpr u32 ROTARY_WORDS = 16;  // words of a middle token's rotary part
constexpr u32 ROTARY_SCALE_CHANNELS = 64;  // channels of a rotary part that share a scale
constexpr u32 ROTARY_SCALE_WORDS = 1;  // words of the scales of a rotary part, two each
constexpr u32 ROTARY_SPAN = 64;  // channels of one Hadamard block of a rotary part
constexpr float ROTARY_HADAMARD_SCALE = 0.125f;  // 1 / sqrt(ROTARY_SPAN)
constexpr u32 STREAM_LATENT_WORDS = 128;  // words of a stream token's latent
constexpr u32 STREAM_ROTARY_WORDS = 16;  // words of a stream token's rotary part
constexpr u32 LATENT_LEVELS = 256;  // offset in the tables: values of the codes of latents, over their scales
constexpr u32 ROTARY_LEVELS = 512;  // offset in the tables: values of the codes of rotary parts, over their scales
constexpr u32 STREAM_ROTARY_LEVELS = 768;  // offset in the tables: stream levels of rotary parts
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][512 latent, 64 rotary after RoPE]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][512 latent, 64 rotary after RoPE]
constexpr u32 AT_LATENT_CODES = 34;  // in the record, first word of latentCodes: 8-bit fields [middle][512]
constexpr u32 AT_LATENT_SCALES = 35;  // in the record, first word of latentScales: f16 [middle][4 of 128 channels]
constexpr u32 AT_ROTARY_KEYS = 37;  // in the record, first word of rotaryKeys: 8-bit fields [middle][64]
constexpr u32 AT_ROTARY_SCALES = 38;  // in the record, first word of rotaryScales: f16 [middle][1 of 64 channels]
constexpr u32 AT_STREAM_LATENTS = 40;  // in the record, first word of streamLatents: 8-bit fields [stream][512], after Hadamard
constexpr u32 AT_STREAM_ROTARY_KEYS = 41;  // in the record, first word of streamRotaryKeys: 8-bit fields [stream][64], after Hadamard
constexpr u32 AT_STREAM_NORMS = 42;  // in the record, first word of streamNorms: f16 [stream][of the latent, of the rotary part]
constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 TILE_TOKENS = 8;  // tokens of a tile

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

constexpr u32 SINK_SEGMENT = 0;
constexpr u32 MIDDLE_SEGMENT = 1;
constexpr u32 STREAM_SEGMENT = 2;
constexpr u32 WINDOW_SEGMENT = 3;

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// Hadamard transform (Sylvester order) of `count` channels in shared memory, in place, in blocks of `span` channels, each
// channel COLUMNS vectors wide; `scale` is 1 / sqrt(span). Barriers on entry, none on exit: then every thread may read the
// channels threadIdx.x + k * THREADS of the range, times COLUMNS, and after a barrier all of them.
template <u32 COLUMNS>
__device__ __forceinline__ void turn(float* channels, u32 count, u32 span, float scale) {
  for (u32 stride = 1; stride < span; stride *= 2) {
    __syncthreads();  // the caller's stores, then the stores of the previous stride, are complete
    for (u32 i = threadIdx.x; i < count / 2 * COLUMNS; i += THREADS) {
      const u32 pair = i / COLUMNS;
      const u32 low = (pair / stride * stride * 2 + pair % stride) * COLUMNS + i % COLUMNS;
      const float first = channels[low];
      const float second = channels[low + stride * COLUMNS];
      channels[low] = first + second;
      channels[low + stride * COLUMNS] = first - second;
    }
  }
  __syncthreads();  // the last stride is complete
  for (u32 i = threadIdx.x; i < count * COLUMNS; i += THREADS) channels[i] *= scale;
}

// One channel of a latent of the middle, as it was coded: scale times the value of its code.
__device__ __forceinline__ float latent_channel(
    const u32* record, const u32* cache, const float* __restrict__ tables, u32 token, u32 channel) {
  const u32* row = cache + record[AT_LATENT_CODES] + token * LATENT_WORDS;
  const u32 code = unpack_field_8(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[LATENT_LEVELS + level]; });
  const u32 block = token * LATENT_SCALE_WORDS * 2 + channel / LATENT_SCALE_CHANNELS;
  const float scale = half_at(cache + record[AT_LATENT_SCALES], block);
  return scale * unit;
}

// One channel of a rotary part of the middle, as it was coded: scale times the value of its code.
__device__ __forceinline__ float rotary_channel(
    const u32* record, const u32* cache, const float* __restrict__ tables, u32 token, u32 channel) {
  const u32* row = cache + record[AT_ROTARY_KEYS] + token * ROTARY_WORDS;
  const u32 code = unpack_field_8(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[ROTARY_LEVELS + level]; });
  const u32 block = token * ROTARY_SCALE_WORDS * 2 + channel / ROTARY_SCALE_CHANNELS;
  const float scale = half_at(cache + record[AT_ROTARY_SCALES], block);
  return scale * unit;
}

// One channel of a token as it is stored; tokens count from the first of their segment.
__device__ __forceinline__ float stored_channel(
    const u32* record, const u32* cache, const float* __restrict__ tables, u32 segment, u32 token, u32 channel) {
  const bool of_latent = channel < LATENT_DIM;
  const u32 rotary = channel - LATENT_DIM;  // used past the latent only
  switch (segment) {
    case SINK_SEGMENT:
      return half_at(cache + record[AT_SINK_KEYS] + token * TOKEN_WORDS, channel);
    case MIDDLE_SEGMENT:
      if (of_latent) return latent_channel(record, cache, tables, token, channel);
      return rotary_channel(record, cache, tables, token, rotary);
    case STREAM_SEGMENT: {
      const u32* norms = cache + record[AT_STREAM_NORMS] + token;
      if (of_latent) {
        const u32* row = cache + record[AT_STREAM_LATENTS] + token * STREAM_LATENT_WORDS;
        const u32 code = unpack_field_8(channel, [&](u32 word) { return row[word]; });
        return level_value(code, [&](u32 level) { return tables[level]; }) * half_at(norms, 0);
      }
      const u32* row = cache + record[AT_STREAM_ROTARY_KEYS] + token * STREAM_ROTARY_WORDS;
      const u32 code = unpack_field_8(rotary, [&](u32 word) { return row[word]; });
      return level_value(code, [&](u32 level) { return tables[STREAM_ROTARY_LEVELS + level]; }) * half_at(norms, 1);
    }
    case WINDOW_SEGMENT:
    default: {
      const u32 slot = (record[AT_WINDOW_START] + token) % WINDOW;
      return half_at(cache + record[AT_WINDOW_KEYS] + slot * TOKEN_WORDS, channel);
    }
  }
}

// Decodes `count` tokens of a segment from `first` on into `tile`, [channel][COLUMNS tokens]; zeros past them. What was
// coded after the Hadamard transform is turned back. A barrier on exit, none on entry: the tile must be free.
template <u32 COLUMNS>
__device__ __forceinline__ void load_tokens(
    float* tile, const u32* record, const u32* cache, const float* __restrict__ tables, u32 segment, u32 first, u32 count) {
  for (u32 i = threadIdx.x; i < TOKEN_DIM * COLUMNS; i += THREADS) {
    const u32 column = i / TOKEN_DIM;
    const u32 channel = i % TOKEN_DIM;
    tile[channel * COLUMNS + column] =
        column < count ? stored_channel(record, cache, tables, segment, first + column, channel) : 0.0f;
  }
  if (segment == STREAM_SEGMENT) {
    turn<COLUMNS>(tile, LATENT_DIM, LATENT_SPAN, LATENT_HADAMARD_SCALE);
  }
  if (segment == STREAM_SEGMENT) turn<COLUMNS>(tile + LATENT_DIM * COLUMNS, ROTARY_DIM, ROTARY_SPAN, ROTARY_HADAMARD_SCALE);
  __syncthreads();  // the tile is complete
}

// Two channels as one word of f16; what f16 cannot hold becomes its largest value, never infinity.
__device__ __forceinline__ u32 saturated_pair(float low, float high) {
  return static_cast<u32>(float_to_half_saturated(low)) | static_cast<u32>(float_to_half_saturated(high)) << 16;
}

// One tile of tokens a block, a token at a time. A tile may lie in several segments.
extern "C" __global__ void __launch_bounds__(128) decompress(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* keys  // f16 [tokens][512 latent, 64 rotary after RoPE]
) {
  __shared__ float channels[TOKEN_DIM];
  const u32 sinks_end = sequence[AT_SINK_TOKENS];
  const u32 middle_end = sinks_end + sequence[AT_MIDDLE_TOKENS];
  const u32 stream_end = middle_end + sequence[AT_STREAM_TOKENS];
  const u32 first = blockIdx.x * TILE_TOKENS;
  const u32 last = min(first + TILE_TOKENS, stream_end + sequence[AT_WINDOW_TOKENS]);
  for (u32 token = first; token < last; ++token) {
    const u32 segment = token < sinks_end    ? SINK_SEGMENT
                        : token < middle_end ? MIDDLE_SEGMENT
                        : token < stream_end ? STREAM_SEGMENT
                                             : WINDOW_SEGMENT;
    const u32 starts[4] = {0, sinks_end, middle_end, stream_end};
    load_tokens<1>(channels, sequence, cache, tables, segment, token - starts[segment], 1);
    for (u32 word = threadIdx.x; word < TOKEN_WORDS; word += THREADS) {
      keys[token * TOKEN_WORDS + word] = saturated_pair(channels[word * 2], channels[word * 2 + 1]);
    }
    __syncthreads();  // all channels have been read before the next token's take their place
  }
}
