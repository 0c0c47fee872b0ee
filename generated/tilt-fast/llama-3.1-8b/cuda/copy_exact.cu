// copy_exact: One word (two channels) of one exact token a thread, for keys and values; the window starts at slot 0.
// Stage exact of scheme tilt-fast for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_PROMPT_TOKENS = 5;  // in the record, tokens of the prompt in the input of the encode stages
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][8 KV heads][128], after RoPE
constexpr u32 AT_SINK_VALUES = 11;  // in the record, first word of sinkValues: f16 [sinks][8 KV heads][128]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][8 KV heads][128], after RoPE
constexpr u32 AT_WINDOW_VALUES = 13;  // in the record, first word of windowValues: f16 ring [window][8 KV heads][128]
constexpr u32 THREADS = 128;  // threads of a block

// One word (two channels) of one exact token a thread, for keys and values. Slots of the window first, then sinks.
extern "C" __global__ void __launch_bounds__(128) copy_exact(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const u32* __restrict__ keys,  // f16 [8 KV heads][prompt tokens][128], after RoPE
    const u32* __restrict__ values,  // f16 [8 KV heads][prompt tokens][128]
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  constexpr u32 head_words = HEAD_DIM / 2;
  constexpr u32 row_words = WIDTH / 2;
  const u32 index = blockIdx.x * THREADS + threadIdx.x;
  const u32 row = index / row_words;
  const u32 word = index % row_words;
  const bool sink = row >= WINDOW;
  const u32 slot = sink ? row - WINDOW : row;
  const u32 window = sequence[AT_WINDOW_TOKENS];
  if (slot >= (sink ? sequence[AT_SINK_TOKENS] : window)) return;

  const u32 prompt = sequence[AT_PROMPT_TOKENS];
  const u32 token = sink ? slot : prompt - window + slot;
  const u32 source = (word / head_words * prompt + token) * head_words + word % head_words;
  const u32 target = slot * row_words + word;
  cache[sequence[sink ? AT_SINK_KEYS : AT_WINDOW_KEYS] + target] = keys[source];
  cache[sequence[sink ? AT_SINK_VALUES : AT_WINDOW_VALUES] + target] = values[source];
}
