// turn_values: The middle values as float32, after Hadamard: a tile of tokens of one KV head a block.
// Stage codeValues of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 HADAMARD_BLOCK = 64;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.125f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_PROMPT_TOKENS = 5;  // in the record, tokens of the prompt in the input of the encode stages
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
__device__ __forceinline__ float2 butterfly(float a, float b) {
  return make_float2(a + b, a - b);
}

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
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

// One tile of middle tokens of one KV head a block, one channel a thread.
extern "C" __global__ void __launch_bounds__(64) turn_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ vectors,  // f16 [3 KV heads][prompt tokens][64]
    float* plain  // [middle tokens][192], after Hadamard
) {
  __shared__ float channels[HEAD_DIM];
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 sinks = sequence[AT_SINK_TOKENS];
  const u32 prompt = sequence[AT_PROMPT_TOKENS];
  const u32 head = blockIdx.y;
  const u32 first = blockIdx.x * TILE_TOKENS;
  const u32 end = min(first + TILE_TOKENS, middle);
  const u32 channel = threadIdx.x;
  for (u32 token = first; token < end; ++token) {
    const u32* vector = vectors + (head * prompt + sinks + token) * (HEAD_DIM / 2);
    float* row = plain + token * WIDTH + head * HEAD_DIM;
    if (channel < HEAD_DIM) channels[channel] = half_at(vector, channel);
    hadamard(channels);
    // A thread puts the next token's channel where it has read its own: no barrier is needed in between.
    if (channel < HEAD_DIM) row[channel] = channels[channel] * HADAMARD_SCALE;
  }
}
