// scale_values: The f16 scale and offset of every block of values that shares one; a word of two scales for 8 threads.
// Stage codeValues of scheme kvquant3 for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, perChannel(nuq, 3 bits; a scale for 1 channel of the prompt without 0.005 of its numbers at each end), 2 outliers a token and KV head
// values: perToken(nuq, 3 bits; a scale for a head of 1 token without 0.01 of its numbers at each end), 2 outliers a token and KV head
// stream: lloydMax(3 bits); sinks 5, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 VALUE_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 VALUE_SCALE_CHANNELS = 64;  // channels of a head that share a scale
constexpr u32 VALUE_SCALE_ROW_WORDS = 2;  // words of a row of scales, two each
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_VALUE_SCALES = 29;  // in the record, first word of valueScales: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
constexpr u32 AT_VALUE_OFFSETS = 30;  // in the record, first word of valueOffsets: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 SLICES = 8;  // threads, or blocks, that share one sum
constexpr u32 TRIM = 100;  // numbers of ten thousand that a range leaves out at each end

// dsl/codecs/nuq.ts:80 middleOfRange
// The middle between the ends of a block as f16, never infinite.
__device__ __forceinline__ float middle_of_range(float least, float greatest) {
  return round_to_half(fminf(fmaxf(least * 0.5f + greatest * 0.5f, -65504.0f), 65504.0f));
}

// dsl/codecs/nuq.ts:86 coveringScale
// The largest magnitude as f16, rounded up, so that the ends of the range are not beyond it; never infinite.
__device__ __forceinline__ float covering_scale(float u_sum_of_squares, float max_abs) {
  const float nearest = round_to_half(fminf(max_abs, 65504.0f));
  const float above = nearest < 0.000061035156f ? nearest + 5.9604645e-8f : __uint_as_float(__float_as_uint(nearest) + 8192u);
  return nearest < max_abs ? fminf(above, 65504.0f) : nearest;
}

constexpr u32 WORDS = THREADS / SLICES;  // of scales that a block finds
constexpr u32 BLOCKS = WIDTH / VALUE_SCALE_CHANNELS;  // of a row; the numbers of one share a scale

// Keys have the order of the numbers: those of negative ones are turned about.
__device__ __forceinline__ u32 key_of(float x) {
  const u32 bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float number_of(u32 key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// SLICES threads find the scales of the two neighbouring blocks of numbers whose scales share a word.
extern "C" __global__ void __launch_bounds__(256) scale_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][192]
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ float4 partial[SLICES][WORDS];
  __shared__ u32 counts[3][WORDS][4];  // keys below, of three rounds in turn
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

  // The ends are the numbers with so many others below, or above: of every block the largest key that no more keys than
  // these are below, found bit by bit. Two factors, as the product of both would not fit.
  const u32 left_out = count / 10000 * TRIM + (count % 10000 * TRIM + 5000) / 10000;
  const u32 most_below = count - min(count, left_out + 1);
  uint4 ends = make_uint4(0, 0, 0, 0);  // least and greatest of the first block, then of the second
  if (slice == 0) {
    for (u32 i = 0; i < 4; ++i) counts[0][own][i] = 0;
  }
  __syncthreads();  // the counts of the first round are zero
  for (u32 round = 0; round < 32; ++round) {
    const u32 bit = 0x80000000u >> round;
    u32* below = counts[round % 3][own];
    // The next round's were read two rounds ago; a barrier lies in between.
    if (slice == 0) {
      for (u32 i = 0; i < 4; ++i) counts[(round + 1) % 3][own][i] = 0;
    }
    uint4 counted = make_uint4(0, 0, 0, 0);
    each([&](float x, float y) {
      const u32 first_key = key_of(x);
      const u32 second_key = key_of(y);
      counted.x += first_key < (ends.x | bit) ? 1 : 0;
      counted.y += first_key < (ends.y | bit) ? 1 : 0;
      counted.z += second_key < (ends.z | bit) ? 1 : 0;
      counted.w += second_key < (ends.w | bit) ? 1 : 0;
    });
    atomicAdd(&below[0], counted.x);
    atomicAdd(&below[1], counted.y);
    atomicAdd(&below[2], counted.z);
    atomicAdd(&below[3], counted.w);
    __syncthreads();  // every slice has counted
    if (below[0] <= left_out) ends.x |= bit;
    if (below[1] <= most_below) ends.y |= bit;
    if (below[2] <= left_out) ends.z |= bit;
    if (below[3] <= most_below) ends.w |= bit;
  }
  float2 least = make_float2(number_of(ends.x), number_of(ends.z));
  float2 greatest = make_float2(number_of(ends.y), number_of(ends.w));
  if (count == 0) least = greatest = make_float2(0.0f, 0.0f);

  const float2 offset = make_float2(middle_of_range(least.x, greatest.x), middle_of_range(least.y, greatest.y));
  // Rounding keeps the order of numbers: the one farthest from the offset is at an end.
  const float2 largest = make_float2(fmaxf(fabsf(least.x - offset.x), fabsf(greatest.x - offset.x)),
                                     fmaxf(fabsf(least.y - offset.y), fabsf(greatest.y - offset.y)));
  // Squares are relative to the largest magnitude, so that none overflows or vanishes.
  const float2 divisor = make_float2(largest.x > 0.0f ? largest.x : 1.0f, largest.y > 0.0f ? largest.y : 1.0f);
  float2 sum = make_float2(0.0f, 0.0f);
  each([&](float x, float y) {
    const float first_share = (fminf(fmaxf(x, least.x), greatest.x) - offset.x) / divisor.x;
    const float second_share = (fminf(fmaxf(y, least.y), greatest.y) - offset.y) / divisor.y;
    sum.x += first_share * first_share;
    sum.y += second_share * second_share;
  });
  partial[slice][own] = make_float4(sum.x, sum.y, 0.0f, 0.0f);
  __syncthreads();  // every slice has its sums
  if (slice != 0 || !is_stored) return;

  for (u32 i = 1; i < SLICES; ++i) {
    sum.x += partial[i][own].x;
    sum.y += partial[i][own].y;
  }
  const float2 scale = make_float2(covering_scale(sum.x, largest.x), covering_scale(sum.y, largest.y));
  cache[sequence[AT_VALUE_SCALES] + word] = pack_half2(scale.x, has_second ? scale.y : 0.0f);
  cache[sequence[AT_VALUE_OFFSETS] + word] = pack_half2(offset.x, has_second ? offset.y : 0.0f);
}
