// append_token: One block a sequence. A full window gives its oldest token to the stream; a full stream refuses the new token and counts it.
// Stage append of scheme tilt-fast for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 HADAMARD_BLOCK = 128;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.0883883461f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 STREAM_WORDS = 32;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 4;  // words of one stream token's norms, two each
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 RECORD_WORDS = 64;  // words of a sequence record
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_STREAM_CAPACITY = 6;  // in the record, tokens the stream has room for
constexpr u32 AT_REFUSED_TOKENS = 7;  // in the record, tokens refused because the stream was full
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][8 KV heads][128], after RoPE
constexpr u32 AT_WINDOW_VALUES = 13;  // in the record, first word of windowValues: f16 ring [window][8 KV heads][128]
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][8 KV heads][128], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][8 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 8-bit fields [stream][8 KV heads][128], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][8 KV heads]
constexpr u32 THREADS = 128;  // threads of a block

__device__ __forceinline__ float vector_dot(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }
__device__ __forceinline__ float2 vector_add(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ float2 vector_subtract(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
__device__ __forceinline__ float2 vector_multiply(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }
__device__ __forceinline__ float2 vector_scale(float2 a, float factor) { return make_float2(a.x * factor, a.y * factor); }
__device__ __forceinline__ float vector_dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ __forceinline__ float3 vector_add(float3 a, float3 b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }
__device__ __forceinline__ float3 vector_subtract(float3 a, float3 b) { return make_float3(a.x - b.x, a.y - b.y, a.z - b.z); }
__device__ __forceinline__ float3 vector_multiply(float3 a, float3 b) { return make_float3(a.x * b.x, a.y * b.y, a.z * b.z); }
__device__ __forceinline__ float3 vector_scale(float3 a, float factor) { return make_float3(a.x * factor, a.y * factor, a.z * factor); }
__device__ __forceinline__ float vector_dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__device__ __forceinline__ float4 vector_add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float4 vector_subtract(float4 a, float4 b) { return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w); }
__device__ __forceinline__ float4 vector_multiply(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
__device__ __forceinline__ float4 vector_scale(float4 a, float factor) { return make_float4(a.x * factor, a.y * factor, a.z * factor, a.w * factor); }

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
__device__ __forceinline__ float2 butterfly(float a, float b) {
  return make_float2(a + b, a - b);
}

// dsl/codecs/lloydMax.ts:58 vectorNorm
// The norm of the vector, stored as f16: the codebook is for the unit sphere.
__device__ __forceinline__ float vector_norm(float sum_of_squares, float max_abs) {
  return round_to_half(fminf(sqrtf(sum_of_squares) * max_abs, 65504.0f));
}

// dsl/codecs/lloydMax.ts:65 nearestLevel, bits = 8
// Index of the level nearest to `x` (a channel over its norm), by bisection of the midpoints.
template <typename Levels>
__device__ __forceinline__ u32 nearest_level_8(float x, Levels levels) {
  u32 code = 0u;
  #pragma unroll
  for (u32 step = 0u; step < 8u; step++) {
    const u32 probe = code + (1u << (7u - step));
    if (x * 2.0f > levels(probe - 1u) + levels(probe)) {
      code = probe;
    }
  }
  return code;
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

// Codes one head's vector for the stream: STREAM_WORDS words of fields; every thread gets the norm.
__device__ __forceinline__ float code_vector(
    const u32* vector, const float* __restrict__ tables, u32* row,
    float (&channels)[HEAD_DIM], u32 (&codes)[HEAD_DIM], float (&scratch)[THREADS]) {
  const u32 channel = threadIdx.x;
  if (channel < HEAD_DIM) channels[channel] = half_at(vector, channel);
  hadamard(channels);
  const float turned = channel < HEAD_DIM ? channels[channel] * HADAMARD_SCALE : 0.0f;

  // Squares are taken relative to the largest magnitude, so that none overflows or vanishes.
  const float largest = block_max(fabsf(turned), scratch);
  const float part = largest > 0.0f ? turned / largest : 0.0f;
  const float norm = vector_norm(block_sum(part * part, scratch), largest);

  const float unit = norm > 0.0f ? turned / norm : 0.0f;
  if (channel < HEAD_DIM) codes[channel] = nearest_level_8(unit, [&](u32 level) { return tables[level]; });
  __syncthreads();  // all codes are there before they are packed
  if (channel < STREAM_WORDS) row[channel] = pack_word_8(channel, HEAD_DIM, [&](u32 field) { return codes[field]; });
  __syncthreads();  // all codes have been read before the next vector's take their place
  return norm;
}

// One block a sequence. The record's lengths decide the way through; they change once, at the end.
extern "C" __global__ void __launch_bounds__(128) append_token(
    u32* sequences,  // records of all sequences; this kernel advances their lengths
    const u32* __restrict__ new_keys,  // f16 [sequences][8 KV heads][128], after RoPE
    const u32* __restrict__ new_values,  // f16 [sequences][8 KV heads][128]
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  constexpr u32 row_words = WIDTH / 2;
  __shared__ float channels[HEAD_DIM];
  __shared__ u32 codes[HEAD_DIM];
  __shared__ float scratch[THREADS];
  __shared__ u32 norm_words[NORM_WORDS];

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
  const u32 slot = (start + window) % WINDOW;
  u32* slot_keys = cache + sequence[AT_WINDOW_KEYS] + slot * row_words;
  u32* slot_values = cache + sequence[AT_WINDOW_VALUES] + slot * row_words;
  if (window_full) {
    for (u32 part = 0; part < 2; ++part) {
      const bool key = part == 0;
      const u32* oldest = key ? slot_keys : slot_values;
      u32* fields = cache + sequence[key ? AT_STREAM_KEY_CODES : AT_STREAM_VALUE_CODES] + stream * KV_HEADS * STREAM_WORDS;
      u32* norms = cache + sequence[key ? AT_STREAM_KEY_NORMS : AT_STREAM_VALUE_NORMS] + stream * NORM_WORDS;
      for (u32 head = 0; head < KV_HEADS; ++head) {
        const u32* vector = oldest + head * (HEAD_DIM / 2);
        const float norm = code_vector(vector, tables, fields + head * STREAM_WORDS, channels, codes, scratch);
        if (threadIdx.x == 0) {
          // An odd number of heads leaves the upper half of the last word zero.
          const u32 half = float_to_half(norm);
          norm_words[head / 2] = head % 2 == 0 ? half : norm_words[head / 2] | half << 16;
        }
      }
      __syncthreads();  // the norms of all heads are there
      for (u32 word = threadIdx.x; word < NORM_WORDS; word += THREADS) norms[word] = norm_words[word];
      __syncthreads();  // they have been stored, and the oldest token has been read
    }
  }

  const u32* new_key = new_keys + blockIdx.x * row_words;
  const u32* new_value = new_values + blockIdx.x * row_words;
  for (u32 word = threadIdx.x; word < row_words; word += THREADS) {
    slot_keys[word] = new_key[word];
    slot_values[word] = new_value[word];
  }
  __syncthreads();  // the token is in place before the lengths say so
  if (threadIdx.x != 0) return;
  if (window_full) {
    sequence[AT_WINDOW_START] = (start + 1) % WINDOW;
    sequence[AT_STREAM_TOKENS] = stream + 1;
  } else {
    sequence[AT_WINDOW_TOKENS] = window + 1;
  }
}
