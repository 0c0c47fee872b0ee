// scale_keys: The f16 scale of every block of keys that shares one; a word of two scales for 8 threads.
// Stage codeKeys of scheme turboquant-prod4 for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   hadamard, perToken(lloydMax, 3 bits; a scale for a head of 1 token)
// values: hadamard, perToken(lloydMax, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 KEY_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 KEY_SCALE_CHANNELS = 128;  // channels of a head that share a scale
constexpr u32 KEY_SCALE_ROW_WORDS = 4;  // words of a row of scales, two each
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 SLICES = 8;  // threads, or blocks, that share one sum

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

// dsl/codecs/lloydMax.ts:58 vectorNorm
// The norm of the vector, stored as f16: the codebook is for the unit sphere.
__device__ __forceinline__ float vector_norm(float sum_of_squares, float max_abs) {
  return round_to_half(fminf(sqrtf(sum_of_squares) * max_abs, 65504.0f));
}

constexpr u32 WORDS = THREADS / SLICES;  // of scales that a block finds
constexpr u32 BLOCKS = WIDTH / KEY_SCALE_CHANNELS;  // of a row; the numbers of one share a scale

// SLICES threads find the scales of the two neighbouring blocks of numbers whose scales share a word.
extern "C" __global__ void __launch_bounds__(256) scale_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][1024], after Hadamard
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ float4 partial[SLICES][WORDS];
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  // Neighbouring threads take neighbouring channels of the same blocks.
  const u32 own = threadIdx.x / SLICES;
  const u32 slice = threadIdx.x % SLICES;
  // Blocks of WORDS rows lie side by side: one dimension of a grid may have no room for those of a long prompt.
  const u32 word = (blockIdx.y * KEY_SCALE_ROW_WORDS + blockIdx.x) * WORDS + own;
  const u32 row = word / KEY_SCALE_ROW_WORDS;
  const u32 first_block = word % KEY_SCALE_ROW_WORDS * 2;
  const u32 first = min(row * KEY_SCALE_TOKENS, middle);
  const u32 end = min(first + KEY_SCALE_TOKENS, middle);
  const bool is_stored = first < end;
  // The last word of a row may have one block: that is looked through twice, and the word's second half stays zero.
  const bool has_second = first_block + 1 < BLOCKS;
  const u32 to_second = has_second ? KEY_SCALE_CHANNELS : 0;
  const float* numbers = plain + first * WIDTH + first_block * KEY_SCALE_CHANNELS;
  const u32 count = (end - first) * KEY_SCALE_CHANNELS;

  // Calls take(x, y) for the numbers at the same place of both blocks, for every place of this slice.
  const auto each = [&](auto take) {
    for (u32 i = slice; i < count; i += SLICES) {
      const float* place = numbers + i / KEY_SCALE_CHANNELS * WIDTH + i % KEY_SCALE_CHANNELS;
      take(place[0], place[to_second]);
    }
  };

  float2 least = make_float2(INFINITY, INFINITY);
  float2 greatest = make_float2(-INFINITY, -INFINITY);
  const auto take_ends = [&](float2 low, float2 high) {
    least = make_float2(fminf(least.x, low.x), fminf(least.y, low.y));
    greatest = make_float2(fmaxf(greatest.x, high.x), fmaxf(greatest.y, high.y));
  };
  each([&](float x, float y) { take_ends(make_float2(x, y), make_float2(x, y)); });
  partial[slice][own] = make_float4(least.x, least.y, greatest.x, greatest.y);
  __syncthreads();  // every slice has its ends
  for (u32 i = 0; i < SLICES; ++i) {
    const float4 ends = partial[i][own];
    take_ends(make_float2(ends.x, ends.y), make_float2(ends.z, ends.w));
  }
  if (count == 0) least = greatest = make_float2(0.0f, 0.0f);

  const float2 offset = make_float2(0.0f, 0.0f);
  // Rounding keeps the order of numbers: the one farthest from the offset is at an end.
  const float2 largest = make_float2(fmaxf(fabsf(least.x - offset.x), fabsf(greatest.x - offset.x)),
                                     fmaxf(fabsf(least.y - offset.y), fabsf(greatest.y - offset.y)));
  // Squares are relative to the largest magnitude, so that none overflows or vanishes.
  const float2 divisor = make_float2(largest.x > 0.0f ? largest.x : 1.0f, largest.y > 0.0f ? largest.y : 1.0f);
  float2 sum = make_float2(0.0f, 0.0f);
  each([&](float x, float y) {
    const float first_share = (x - offset.x) / divisor.x;
    const float second_share = (y - offset.y) / divisor.y;
    sum.x += first_share * first_share;
    sum.y += second_share * second_share;
  });
  __syncthreads();  // every thread has read the ends: sums take their place
  partial[slice][own] = make_float4(sum.x, sum.y, 0.0f, 0.0f);
  __syncthreads();  // every slice has its sums
  if (slice != 0 || !is_stored) return;

  for (u32 i = 1; i < SLICES; ++i) {
    sum.x += partial[i][own].x;
    sum.y += partial[i][own].y;
  }
  const float2 scale = make_float2(vector_norm(sum.x, largest.x), vector_norm(sum.y, largest.y));
  cache[sequence[AT_KEY_SCALES] + word] = pack_half2(scale.x, has_second ? scale.y : 0.0f);
}
