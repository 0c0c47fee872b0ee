// code_latents: One token of the middle a block.
// Stage codeLatents of scheme latent-int8 for deepseek-v3. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
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
constexpr u32 LATENT_BLOCKS = 4;  // scales of a latent
constexpr u32 LATENT_SCALE_WORDS = 2;  // words of the scales of a latent, two each
constexpr u32 ROTARY_WORDS = 16;  // words of a middle token's rotary part
constexpr u32 ROTARY_SCALE_CHANNELS = 64;  // channels of a rotary part that share a scale
constexpr u32 ROTARY_BLOCKS = 1;  // scales of a rotary part
constexpr u32 ROTARY_SCALE_WORDS = 1;  // words of the scales of a rotary part, two each
constexpr u32 LATENT_LEVELS = 256;  // offset in the tables: values of the codes of latents, over their scales
constexpr u32 ROTARY_LEVELS = 512;  // offset in the tables: values of the codes of rotary parts, over their scales
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_LATENT_CODES = 34;  // in the record, first word of latentCodes: 8-bit fields [middle][512]
constexpr u32 AT_LATENT_SCALES = 35;  // in the record, first word of latentScales: f16 [middle][4 of 128 channels]
constexpr u32 AT_ROTARY_KEYS = 37;  // in the record, first word of rotaryKeys: 8-bit fields [middle][64]
constexpr u32 AT_ROTARY_SCALES = 38;  // in the record, first word of rotaryScales: f16 [middle][1 of 64 channels]
constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 TILE_TOKENS = 256;  // tokens of a tile

// dsl/codecs/uniform.ts:72 magnitudeScale
// The largest magnitude as f16, never infinite.
__device__ __forceinline__ float magnitude_scale(float u_sum_of_squares, float max_abs) {
  return round_to_half(fminf(max_abs, 65504.0f));
}

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

constexpr u32 MOST_BLOCKS = LATENT_BLOCKS > ROTARY_BLOCKS ? LATENT_BLOCKS : ROTARY_BLOCKS;

// Codes the latent whose channels lie in shared memory: the scale of every block of channels, then the codes.
// `blocks` keeps (scale, offset) in between. Barriers: stores before and after need none of their own.
__device__ __forceinline__ void code_latent(
    const float* channels, const float* __restrict__ tables, u32* codes, u32* scales, float2* blocks) {
  __syncthreads();  // the caller's channels are complete
  for (u32 word = threadIdx.x; word < LATENT_SCALE_WORDS; word += THREADS) {
    float2 ends[2] = {};  // (scale, offset) of both halves of the word; zero past the last block
    for (u32 half = 0; half < 2 && word * 2 + half < LATENT_BLOCKS; ++half) {
      const float* own = channels + (word * 2 + half) * LATENT_SCALE_CHANNELS;
      float least = own[0];
      float greatest = own[0];
      for (u32 i = 1; i < LATENT_SCALE_CHANNELS; ++i) {
        least = fminf(least, own[i]);
        greatest = fmaxf(greatest, own[i]);
      }
      const float offset = 0.0f;
      // Rounding keeps the order of numbers: the one farthest from the offset is at an end.
      const float largest = fmaxf(fabsf(least - offset), fabsf(greatest - offset));
      // Squares are relative to the largest magnitude, so that none overflows or vanishes.
      const float divisor = largest > 0.0f ? largest : 1.0f;
      float sum = 0.0f;
      for (u32 i = 0; i < LATENT_SCALE_CHANNELS; ++i) {
        const float share = (own[i] - offset) / divisor;
        sum += share * share;
      }
      ends[half] = make_float2(magnitude_scale(sum, largest), offset);
      blocks[word * 2 + half] = ends[half];
    }
    scales[word] = pack_half2(ends[0].x, ends[1].x);
  }
  __syncthreads();  // every block has its scale
  for (u32 word = threadIdx.x; word < LATENT_WORDS; word += THREADS) {
    codes[word] = pack_word_8(word, LATENT_DIM, [&](u32 channel) {
      const float2 block = blocks[channel / LATENT_SCALE_CHANNELS];
      // Where all numbers of a block are its offset, or nearly, the scale is zero.
      const float unit = block.x > 0.0f ? (channels[channel] - block.y) / block.x : 0.0f;
      return symmetric_code_8(unit, [&](u32 level) { return tables[LATENT_LEVELS + level]; });
    });
  }
  __syncthreads();  // all scales have been read before those of another part take their place
}

// Codes the rotary part whose channels lie in shared memory: the scale of every block of channels, then the codes.
// `blocks` keeps (scale, offset) in between. Barriers: stores before and after need none of their own.
__device__ __forceinline__ void code_rotary(
    const float* channels, const float* __restrict__ tables, u32* codes, u32* scales, float2* blocks) {
  __syncthreads();  // the caller's channels are complete
  for (u32 word = threadIdx.x; word < ROTARY_SCALE_WORDS; word += THREADS) {
    float2 ends[2] = {};  // (scale, offset) of both halves of the word; zero past the last block
    for (u32 half = 0; half < 2 && word * 2 + half < ROTARY_BLOCKS; ++half) {
      const float* own = channels + (word * 2 + half) * ROTARY_SCALE_CHANNELS;
      float least = own[0];
      float greatest = own[0];
      for (u32 i = 1; i < ROTARY_SCALE_CHANNELS; ++i) {
        least = fminf(least, own[i]);
        greatest = fmaxf(greatest, own[i]);
      }
      const float offset = 0.0f;
      // Rounding keeps the order of numbers: the one farthest from the offset is at an end.
      const float largest = fmaxf(fabsf(least - offset), fabsf(greatest - offset));
      // Squares are relative to the largest magnitude, so that none overflows or vanishes.
      const float divisor = largest > 0.0f ? largest : 1.0f;
      float sum = 0.0f;
      for (u32 i = 0; i < ROTARY_SCALE_CHANNELS; ++i) {
        const float share = (own[i] - offset) / divisor;
        sum += share * share;
      }
      ends[half] = make_float2(magnitude_scale(sum, largest), offset);
      blocks[word * 2 + half] = ends[half];
    }
    scales[word] = pack_half2(ends[0].x, ends[1].x);
  }
  __syncthreads();  // every block has its scale
  for (u32 word = threadIdx.x; word < ROTARY_WORDS; word += THREADS) {
    codes[word] = pack_word_8(word, ROTARY_DIM, [&](u32 channel) {
      const float2 block = blocks[channel / ROTARY_SCALE_CHANNELS];
      // Where all numbers of a block are its offset, or nearly, the scale is zero.
      const float unit = block.x > 0.0f ? (channels[channel] - block.y) / block.x : 0.0f;
      return symmetric_code_8(unit, [&](u32 level) { return tables[ROTARY_LEVELS + level]; });
    });
  }
  __syncthreads();  // all scales have been read before those of another part take their place
}

// One token of the middle a block; blocks lie in rows of TILE_TOKENS.
extern "C" __global__ void __launch_bounds__(128) code_latents(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ keys,  // f16 [prompt tokens][512 latent, 64 rotary after RoPE]
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ float channels[TOKEN_DIM];
  __shared__ float2 blocks[MOST_BLOCKS];
  const u32 token = blockIdx.y * TILE_TOKENS + blockIdx.x;
  if (token >= sequence[AT_MIDDLE_TOKENS]) return;

  const u32* row = keys + (sequence[AT_SINK_TOKENS] + token) * TOKEN_WORDS;
  for (u32 channel = threadIdx.x; channel < TOKEN_DIM; channel += THREADS) channels[channel] = half_at(row, channel);
  code_latent(channels, tables, cache + sequence[AT_LATENT_CODES] + token * LATENT_WORDS,
              cache + sequence[AT_LATENT_SCALES] + token * LATENT_SCALE_WORDS,
              blocks);
  code_rotary(channels + LATENT_DIM, tables, cache + sequence[AT_ROTARY_KEYS] + token * ROTARY_WORDS,
              cache + sequence[AT_ROTARY_SCALES] + token * ROTARY_SCALE_WORDS,
              blocks);
}
