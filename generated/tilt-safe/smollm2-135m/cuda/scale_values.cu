// scale_values: The f16 scale and offset of every block of values that shares one; a word of two scales for 8 threads.
// Stage codeValues of scheme tilt-safe for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 VALUE_SCALE_TOKENS = 1;  // middle tokens that share a scale
constexpr u32 VALUE_SCALE_CHANNELS = 64;  // channels of a head that share a scale
constexpr u32 VALUE_SCALE_ROW_WORDS = 2;  // words of a row of scales, two each
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_VALUE_SCALES = 29;  // in the record, first word of valueScales: f16 [middle][3 KV heads][1 of 64 channels]
constexpr u32 AT_VALUE_OFFSETS = 30;  // in the record, first word of valueOffsets: f16 [middle][3 KV heads][1 of 64 channels]
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 SLICES = 8;  // threads, or blocks, that share one sum

// dsl/codecs/uniform.ts:66 leastNumber
// The least number as f16, never infinite.
__device__ __forceinline__ float least_number(float least, float u_greatest) {
  return round_to_half(fminf(fmaxf(least, -65504.0f), 65504.0f));
}

// dsl/codecs/uniform.ts:72 magnitudeScale
// The largest magnitude as f16, never infinite.
__device__ __forceinline__ float magnitude_scale(float u_sum_of_squares, float max_abs) {
  return round_to_half(fminf(max_abs, 65504.0f));
}

constexpr u32 WORDS = THREADS / SLICES;  // of scales that a block finds
constexpr u32 BLOCKS = WIDTH / VALUE_SCALE_CHANNELS;  // of a row; the numbers of one share a scale

// SLICES threads find the scales of the two neighbouring blocks of numbers whose scales share a word.
extern "C" __global__ void __launch_bounds__(256) scale_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][192], after Hadamard
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ float4 partial[SLICES][WORDS];
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  // Neighbouring threads take neighbouring channels of the same blocks.
  const u32 own = threadIdx.x / SLICES;
  const u32 slice = threadIdx.x % SLICES;
  // Blocks of WORDS rows lie side by side: one dimension of a grid may have no room for those of a long prompt.
  const u32 word = (blockIdx.y * VALUE_SCALE_ROW_WORDS + blockIdx.x) * WORDS + own;
  const u32 row = word / VALUE_SCALE_ROW_WORDS;
  const u32 first_block = word % VALUE_SCALE_ROW_WORDS * 2;
  const u32 first = min(row * VALUE_SCALE_TOKENS, middle);
  const u32 end = min(first + VALUE_SCALE_TOKENS, middle);
  const bool is_stored = first < end;
  // The last word of a row may have one block: that is looked through twice, and the word's second half stays zero.
  const bool has_second = first_block + 1 < BLOCKS;
  const u32 to_second = has_second ? VALUE_SCALE_CHANNELS : 0;
  const float* numbers = plain + first * WIDTH + first_block * VALUE_SCALE_CHANNELS;
  const u32 count = (end - first) * VALUE_SCALE_CHANNELS;

  // Calls take(x, y) for the numbers at the same place of both blocks, for every place of this slice.
  const auto each = [&](auto take) {
    for (u32 i = slice; i < count; i += SLICES) {
      const float* place = numbers + i / VALUE_SCALE_CHANNELS * WIDTH + i % VALUE_SCALE_CHANNELS;
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

  const float2 offset = make_float2(least_number(least.x, greatest.x), least_number(least.y, greatest.y));
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
  const float2 scale = make_float2(magnitude_scale(sum.x, largest.x), magnitude_scale(sum.y, largest.y));
  cache[sequence[AT_VALUE_SCALES] + word] = pack_half2(scale.x, has_second ? scale.y : 0.0f);
  cache[sequence[AT_VALUE_OFFSETS] + word] = pack_half2(offset.x, has_second ? offset.y : 0.0f);
}
