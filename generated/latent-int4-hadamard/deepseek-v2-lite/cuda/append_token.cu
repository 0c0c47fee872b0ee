// append_token: One block a sequence. A full window gives its oldest token to the stream; a full stream refuses the new token and counts it.
// Stage append of scheme latent-int4-hadamard for deepseek-v2-lite. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// latent: hadamard, perToken(asymmetric, 4 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 LATENT_DIM = 512;  // channels of a latent, the first of a token
constexpr u32 ROTARY_DIM = 64;  // channels of a rotary part
constexpr u32 TOKEN_DIM = 576;  // channels of a token: latent, then rotary part
constexpr u32 TOKEN_WORDS = 288;  // words of a token in f16
constexpr u32 LATENT_SPAN = 512;  // channels of one Hadamard block of a latent
constexpr float LATENT_HADAMARD_SCALE = 0.0441941731f;  // 1 / sqrt(LATENT_SPAN)
constexpr u32 ROTARY_SPAN = 64;  // channels of one Hadamard block of a rotary part
constexpr float ROTARY_HADAMARD_SCALE = 0.125f;  // 1 / sqrt(ROTARY_SPAN)
constexpr u32 STREAM_LATENT_WORDS = 128;  // words of a stream token's latent
constexpr u32 STREAM_ROTARY_WORDS = 16;  // words of a stream token's rotary part
constexpr u32 STREAM_ROTARY_LEVELS = 528;  // offset in the tables: stream levels of rotary parts
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 RECORD_WORDS = 64;  // words of a sequence record
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_STREAM_CAPACITY = 6;  // in the record, tokens the stream has room for
constexpr u32 AT_REFUSED_TOKENS = 7;  // in the record, tokens refused because the stream was full
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][512 latent, 64 rotary after RoPE]
constexpr u32 AT_STREAM_LATENTS = 40;  // in the record, first word of streamLatents: 8-bit fields [stream][512], after Hadamard
constexpr u32 AT_STREAM_ROTARY_KEYS = 41;  // in the record, first word of streamRotaryKeys: 8-bit fields [stream][64], after Hadamard
constexpr u32 AT_STREAM_NORMS = 42;  // in the record, first word of streamNorms: f16 [stream][of the latent, of the rotary part]
constexpr u32 THREADS = 128;  // threads of a block

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

// Sum and maximum over the threads of the block, in two strides of 16: the order of additions never varies. Every
// thread gets the result, and scratch may be reused at once.
__device__ __forceinline__ float block_sum(float value, float (&scratch)[THREADS]) {
  scratch[threadIdx.x] = value;
  __syncthreads();  // all values are in scratch
  if (threadIdx.x < 16) {
    for (u32 i = threadIdx.x + 16; i < THREADS; i += 16) value += scratch[i];
    scratch[threadIdx.x] = value;
  }
  __syncthreads();  // 16 sums are left
  float total = 0.0f;
  for (u32 i = 0; i < 16; ++i) total += scratch[i];
  __syncthreads();  // all have read them
  return total;
}

__device__ __forceinline__ float block_max(float value, float (&scratch)[THREADS]) {
  scratch[threadIdx.x] = value;
  __syncthreads();  // all values are in scratch
  if (threadIdx.x < 16) {
    for (u32 i = threadIdx.x + 16; i < THREADS; i += 16) value = fmaxf(value, scratch[i]);
    scratch[threadIdx.x] = value;
  }
  __syncthreads();  // 16 maxima are left
  float largest = scratch[0];
  for (u32 i = 1; i < 16; ++i) largest = fmaxf(largest, scratch[i]);
  __syncthreads();  // all have read them
  return largest;
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

// Codes the latent whose channels lie in shared memory for the stream, after the Hadamard transform: STREAM_LATENT_WORDS words
// of fields. Every thread gets the norm.
__device__ __forceinline__ float stream_latent(
    float* channels, const float* __restrict__ tables, u32* codes, float (&scratch)[THREADS]) {
  turn<1>(channels, LATENT_DIM, LATENT_SPAN, LATENT_HADAMARD_SCALE);
  float largest = 0.0f;
  for (u32 channel = threadIdx.x; channel < LATENT_DIM; channel += THREADS) largest = fmaxf(largest, fabsf(channels[channel]));
  largest = block_max(largest, scratch);
  // Squares are taken relative to the largest magnitude, so that none overflows or vanishes.
  const float divisor = largest > 0.0f ? largest : 1.0f;
  float sum = 0.0f;
  for (u32 channel = threadIdx.x; channel < LATENT_DIM; channel += THREADS) {
    const float share = channels[channel] / divisor;
    sum += share * share;
  }
  const float norm = magnitude_scale(block_sum(sum, scratch), largest);
  for (u32 word = threadIdx.x; word < STREAM_LATENT_WORDS; word += THREADS) {
    codes[word] = pack_word_8(word, LATENT_DIM, [&](u32 channel) {
      const float unit = norm > 0.0f ? channels[channel] / norm : 0.0f;
      return symmetric_code_8(unit, [&](u32 level) { return tables[level]; });
    });
  }
  return norm;
}

// Codes the rotary part whose channels lie in shared memory for the stream, after the Hadamard transform: STREAM_ROTARY_WORDS words
// of fields. Every thread gets the norm.
__device__ __forceinline__ float stream_rotary(
    float* channels, const float* __restrict__ tables, u32* codes, float (&scratch)[THREADS]) {
  turn<1>(channels, ROTARY_DIM, ROTARY_SPAN, ROTARY_HADAMARD_SCALE);
  float largest = 0.0f;
  for (u32 channel = threadIdx.x; channel < ROTARY_DIM; channel += THREADS) largest = fmaxf(largest, fabsf(channels[channel]));
  largest = block_max(largest, scratch);
  // Squares are taken relative to the largest magnitude, so that none overflows or vanishes.
  const float divisor = largest > 0.0f ? largest : 1.0f;
  float sum = 0.0f;
  for (u32 channel = threadIdx.x; channel < ROTARY_DIM; channel += THREADS) {
    const float share = channels[channel] / divisor;
    sum += share * share;
  }
  const float norm = magnitude_scale(block_sum(sum, scratch), largest);
  for (u32 word = threadIdx.x; word < STREAM_ROTARY_WORDS; word += THREADS) {
    codes[word] = pack_word_8(word, ROTARY_DIM, [&](u32 channel) {
      const float unit = norm > 0.0f ? channels[channel] / norm : 0.0f;
      return symmetric_code_8(unit, [&](u32 level) { return tables[STREAM_ROTARY_LEVELS + level]; });
    });
  }
  return norm;
}

// One block a sequence. The record's lengths decide the way through; they change once, at the end.
extern "C" __global__ void __launch_bounds__(128) append_token(
    u32* sequences,  // records of all sequences; this kernel advances their lengths
    const u32* __restrict__ new_keys,  // f16 [sequences][512 latent, 64 rotary after RoPE]
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ float channels[TOKEN_DIM];
  __shared__ float scratch[THREADS];

  u32* sequence = sequences + blockIdx.x * RECORD_WORDS;
  const u32 window = sequence[AT_WINDOW_TOKENS];
  const u32 start = sequence[AT_WINDOW_START];
  const u32 stream = sequence[AT_STREAM_TOKENS];
  const bool window_full = window >= WINDOW;
  const bool refused = window_full && stream >= sequence[AT_STREAM_CAPACITY];
  __syncthreads();  // all have read the lengths before any of them changes

  if (refused) {
    if (threadIdx.x == 0) ++sequence[AT_REFUSED_TOKENS];
    return;
  }

  // The oldest token's slot is the next slot of a full ring.
  u32* slot = cache + sequence[AT_WINDOW_KEYS] + (start + window) % WINDOW * TOKEN_WORDS;
  if (window_full) {
    for (u32 channel = threadIdx.x; channel < TOKEN_DIM; channel += THREADS) channels[channel] = half_at(slot, channel);
    u32* rotary = cache + sequence[AT_STREAM_ROTARY_KEYS] + stream * STREAM_ROTARY_WORDS;
    u32* latent = cache + sequence[AT_STREAM_LATENTS] + stream * STREAM_LATENT_WORDS;
    const float latent_norm = stream_latent(channels, tables, latent, scratch);
    const float rotary_norm = stream_rotary(channels + LATENT_DIM, tables, rotary, scratch);
    if (threadIdx.x == 0) cache[sequence[AT_STREAM_NORMS] + stream] = pack_half2(latent_norm, rotary_norm);
  }

  // The oldest token was read before the barriers of its transform.
  for (u32 word = threadIdx.x; word < TOKEN_WORDS; word += THREADS) slot[word] = new_keys[blockIdx.x * TOKEN_WORDS + word];
  __syncthreads();  // the token is in place before the lengths say so
  if (threadIdx.x != 0) return;
  if (window_full) {
    sequence[AT_WINDOW_START] = (start + 1) % WINDOW;
    sequence[AT_STREAM_TOKENS] = stream + 1;
  } else {
    sequence[AT_WINDOW_TOKENS] = window + 1;
  }
}
