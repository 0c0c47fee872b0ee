// copy_exact: One word (two channels) of one exact token a thread; the window starts at slot 0.
// Stage exact of scheme latent-int4-hadamard for deepseek-v2-lite. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// latent: hadamard, perToken(asymmetric, 4 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64

const TOKEN_WORDS = 288u;  // words of a token in f16
const SINKS = 4u;  // exact tokens at the start
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_PROMPT_TOKENS = 5u;  // in the record, tokens of the prompt in the input of the encode stages
const AT_SINK_KEYS = 10u;  // in the record, first word of sinkKeys: f16 [sinks][512 latent, 64 rotary after RoPE]
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][512 latent, 64 rotary after RoPE]
const THREADS = 128u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [prompt tokens][512 latent, 64 rotary after RoPE]
@group(0) @binding(1) var<storage, read> keys: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;

// One thread a word, that is two channels of an exact token: sinks first, then the window.
@compute @workgroup_size(128)
fn copy_exact(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let i = block.x * THREADS + thread;
  let row = i / TOKEN_WORDS;
  let word = i % TOKEN_WORDS;
  let is_sink = row < SINKS;
  let slot = select(row - SINKS, row, is_sink);
  let window_tokens = sequence[AT_WINDOW_TOKENS];
  if (slot >= select(window_tokens, sequence[AT_SINK_TOKENS], is_sink)) {
    return;
  }
  let token = select(sequence[AT_PROMPT_TOKENS] - window_tokens + slot, slot, is_sink);
  let place = sequence[select(AT_WINDOW_KEYS, AT_SINK_KEYS, is_sink)] + slot * TOKEN_WORDS + word;
  cache[place] = keys[token * TOKEN_WORDS + word];
}
