// copy_exact: One word (two channels) of one exact token a thread, for keys and values; the window starts at slot 0.
// Stage exact of scheme tilt-fast for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

const HEAD_DIM = 64u;  // channels of a head
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const SINKS = 4u;  // exact tokens at the start
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_PROMPT_TOKENS = 5u;  // in the record, tokens of the prompt in the input of the encode stages
const AT_SINK_KEYS = 10u;  // in the record, first word of sinkKeys: f16 [sinks][3 KV heads][64], after RoPE
const AT_SINK_VALUES = 11u;  // in the record, first word of sinkValues: f16 [sinks][3 KV heads][64]
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][3 KV heads][64], after RoPE
const AT_WINDOW_VALUES = 13u;  // in the record, first word of windowValues: f16 ring [window][3 KV heads][64]
const THREADS = 128u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [3 KV heads][prompt tokens][64], after RoPE
@group(0) @binding(1) var<storage, read> keys: array<u32>;
// f16 [3 KV heads][prompt tokens][64]
@group(0) @binding(2) var<storage, read> values: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

const HEAD_WORDS = HEAD_DIM / 2u;
const ROW_WORDS = WIDTH / 2u;

// One thread a word, that is two channels of an exact token: sinks first, then the window.
@compute @workgroup_size(128)
fn copy_exact(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let i = block.x * THREADS + thread;
  let row = i / ROW_WORDS;
  let word = i % ROW_WORDS;
  let is_sink = row < SINKS;
  let slot = select(row - SINKS, row, is_sink);
  let window_tokens = sequence[AT_WINDOW_TOKENS];
  if (slot >= select(window_tokens, sequence[AT_SINK_TOKENS], is_sink)) {
    return;
  }
  let prompt_tokens = sequence[AT_PROMPT_TOKENS];
  let token = select(prompt_tokens - window_tokens + slot, slot, is_sink);
  let source = ((word / HEAD_WORDS) * prompt_tokens + token) * HEAD_WORDS + word % HEAD_WORDS;
  let place = slot * ROW_WORDS + word;
  cache[sequence[select(AT_WINDOW_KEYS, AT_SINK_KEYS, is_sink)] + place] = keys[source];
  cache[sequence[select(AT_WINDOW_VALUES, AT_SINK_VALUES, is_sink)] + place] = values[source];
}
