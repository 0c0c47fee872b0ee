// turn_values: The middle values as float32: a tile of tokens of one KV head a block.
// Stage codeValues of scheme polarquant4 for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   polar, perChannel(midRise, 4 bits; a scale for 1 channel of 128 tokens)
// values: perToken(asymmetric, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 0, window 128
// tunables: tileTokens = 16

const HEAD_DIM = 128u;  // channels of a head
const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_PROMPT_TOKENS = 5u;  // in the record, tokens of the prompt in the input of the encode stages
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [8 KV heads][prompt tokens][128]
@group(0) @binding(1) var<storage, read> vectors: array<u32>;
// [middle tokens][1024]
@group(0) @binding(2) var<storage, read_write> plain: array<f32>;

fn vector_at(i: u32) -> f32 {
  return unpack2x16float(vectors[i / 2u])[i % 2u];
}

// One tile of middle tokens of one KV head a block, one channel a thread.
@compute @workgroup_size(128)
fn turn_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let first = block.x * TILE_TOKENS;
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  // Threads may leave: there is no barrier below.
  if (first >= middle_tokens || thread >= HEAD_DIM) {
    return;
  }
  let end = min(first + TILE_TOKENS, middle_tokens);
  let head_row = block.y * sequence[AT_PROMPT_TOKENS] + sequence[AT_SINK_TOKENS];
  let head = block.y * HEAD_DIM;
  for (var token = first; token < end; token++) {
    let source = (head_row + token) * HEAD_DIM;
    plain[token * WIDTH + head + thread] = vector_at(source + thread);
  }
}
