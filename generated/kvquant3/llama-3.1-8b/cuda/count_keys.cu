// count_keys: How many outliers of the keys were too many, in one block.
// Stage codeKeys of scheme kvquant3 for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, perChannel(nuq, 3 bits; a scale for 1 channel of the prompt without 0.005 of its numbers at each end), 2 outliers a token and KV head
// values: perToken(nuq, 3 bits; a scale for a head of 1 token without 0.01 of its numbers at each end), 2 outliers a token and KV head
// stream: lloydMax(3 bits); sinks 5, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_OUTLIER_COUNTS = 33;  // in the record, first word of outlierCounts: u32 [keys, values]: outliers of the prompt past their caps, which are clamped
constexpr u32 THREADS = 256;  // threads of a block

// The outliers past the cap of all tokens and KV heads, summed by one block.
extern "C" __global__ void __launch_bounds__(256) count_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ clamped,  // [middle tokens][8 KV heads], outliers past the cap
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ u32 sums[THREADS];
  const u32 thread = threadIdx.x;
  const u32 count = sequence[AT_MIDDLE_TOKENS] * KV_HEADS;
  u32 sum = 0;
  for (u32 i = thread; i < count; i += THREADS) sum += clamped[i];
  sums[thread] = sum;
  for (u32 half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();  // the sums that are added are there
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread != 0) return;
  u32* counts = cache + sequence[AT_OUTLIER_COUNTS];
  counts[0] = sums[0];
}
