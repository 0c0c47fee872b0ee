// turn_values: The middle values as float32, after Hadamard: a tile of tokens of one KV head a block.
// Stage codeValues of scheme turboquant-prod4 for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   hadamard, perToken(lloydMax, 3 bits; a scale for a head of 1 token)
// values: hadamard, perToken(lloydMax, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 4, window 64
// tunables: tileTokens = 16

const HEAD_DIM = 128u;  // channels of a head
const PAIRS = 64u;  // pairs of channels of a head; those past the rotary ones have angle zero
const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const HADAMARD_BLOCK = 128u;  // channels of one Hadamard block
const HADAMARD_SCALE = 0.0883883461;  // 1 / sqrt(HADAMARD_BLOCK)
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_PROMPT_TOKENS = 5u;  // in the record, tokens of the prompt in the input of the encode stages
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [8 KV heads][prompt tokens][128]
@group(0) @binding(1) var<storage, read> vectors: array<u32>;
// [middle tokens][1024], after Hadamard
@group(0) @binding(2) var<storage, read_write> plain: array<f32>;

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
fn butterfly(a: f32, b: f32) -> vec2f {
  return vec2f(a + b, a - b);
}

fn vector_at(i: u32) -> f32 {
  return unpack2x16float(vectors[i / 2u])[i % 2u];
}

var<workgroup> vector: array<f32, HEAD_DIM>;

// Hadamard transform of `vector` in place, in blocks of HADAMARD_BLOCK channels, without the factor HADAMARD_SCALE.
// Barriers: all threads of the block must call it. It waits for the writes of `vector` before it, and after it every
// thread may read any channel.
fn transform_vector(thread: u32) {
  for (var span = 1u; span < HADAMARD_BLOCK; span *= 2u) {
    // A stage reads channels that other threads wrote in the stage before.
    workgroupBarrier();
    if (thread < PAIRS) {
      let low = (thread / span) * span * 2u + thread % span;
      let turned = butterfly(vector[low], vector[low + span]);
      vector[low] = turned.x;
      vector[low + span] = turned.y;
    }
  }
  // The last stage is complete.
  workgroupBarrier();
}

// One tile of middle tokens of one KV head a block, one channel a thread.
@compute @workgroup_size(128)
fn turn_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let first = block.x * TILE_TOKENS;
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  if (first >= middle_tokens) {
    return;
  }
  let end = min(first + TILE_TOKENS, middle_tokens);
  let head_row = block.y * sequence[AT_PROMPT_TOKENS] + sequence[AT_SINK_TOKENS];
  let head = block.y * HEAD_DIM;
  for (var token = first; token < end; token++) {
    let source = (head_row + token) * HEAD_DIM;
    if (thread < HEAD_DIM) {
      vector[thread] = vector_at(source + thread);
    }
    transform_vector(thread);
    // Each thread reads the channel that it replaces itself: no barrier is needed before the next token.
    if (thread < HEAD_DIM) {
      plain[token * WIDTH + head + thread] = vector[thread] * HADAMARD_SCALE;
    }
  }
}
