// copy_exact: One word (two channels) of one exact token a thread; the window starts at slot 0.
// Stage exact of scheme latent-int4-hadamard for deepseek-v2-lite. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// latent: hadamard, perToken(asymmetric, 4 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 TOKEN_WORDS = 288;  // words of a token in f16
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_PROMPT_TOKENS = 5;  // in the record, tokens of the prompt in the input of the encode stages
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][512 latent, 64 rotary after RoPE]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][512 latent, 64 rotary after RoPE]
constexpr u32 THREADS = 128;  // threads of a block

// One word (two channels) of one exact token a thread. Slots of the window first, then sinks.
extern "C" __global__ void __launch_bounds__(128) copy_exact(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ keys,  // f16 [prompt tokens][512 latent, 64 rotary after RoPE]
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  const u32 index = blockIdx.x * THREADS + threadIdx.x;
  const u32 row = index / TOKEN_WORDS;
  const u32 word = index % TOKEN_WORDS;
  const bool sink = row >= WINDOW;
  const u32 slot = sink ? row - WINDOW : row;
  const u32 window = sequence[AT_WINDOW_TOKENS];
  if (slot >= (sink ? sequence[AT_SINK_TOKENS] : window)) return;

  const u32 token = sink ? slot : sequence[AT_PROMPT_TOKENS] - window + slot;
  cache[sequence[sink ? AT_SINK_KEYS : AT_WINDOW_KEYS] + slot * TOKEN_WORDS + word] = keys[token * TOKEN_WORDS + word];
}
