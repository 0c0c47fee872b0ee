// turn_values: The middle values as float32: a tile of tokens of one KV head a block.
// Stage codeValues of scheme polarquant4 for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   polar, perChannel(midRise, 4 bits; a scale for 1 channel of 128 tokens)
// values: perToken(asymmetric, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 0, window 128
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_PROMPT_TOKENS = 5;  // in the record, tokens of the prompt in the input of the encode stages
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// One tile of middle tokens of one KV head a block, one channel a thread.
extern "C" __global__ void __launch_bounds__(128) turn_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ vectors,  // f16 [8 KV heads][prompt tokens][128]
    float* plain  // [middle tokens][1024]
) {
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
    if (channel < HEAD_DIM) row[channel] = half_at(vector, channel);
  }
}
