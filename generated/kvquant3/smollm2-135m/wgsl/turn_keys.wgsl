// turn_keys: The middle keys as float32, before RoPE: a tile of tokens of one KV head a block.
// Stage codeKeys of scheme kvquant3 for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, perChannel(nuq, 3 bits; a scale for 1 channel of the prompt without 0.005 of its numbers at each end), 2 outliers a token and KV head
// values: perToken(nuq, 3 bits; a scale for a head of 1 token without 0.01 of its numbers at each end), 2 outliers a token and KV head
// stream: lloydMax(3 bits); sinks 5, window 64
// tunables: tileTokens = 16

const HEAD_DIM = 64u;  // channels of a head
const PAIRS = 32u;  // pairs of channels of a head; those past the rotary ones have angle zero
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const ANGLE_TILE = 64u;  // rows of the fine angle table
const FINE_ANGLES = 24u;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
const COARSE_ANGLES = 4120u;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_PROMPT_TOKENS = 5u;  // in the record, tokens of the prompt in the input of the encode stages
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [3 KV heads][prompt tokens][64], after RoPE
@group(0) @binding(1) var<storage, read> vectors: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(2) var<storage, read> tables: array<f32>;
// [middle tokens][192], before RoPE
@group(0) @binding(3) var<storage, read_write> plain: array<f32>;

// dsl/codecs/unrope.ts:22 unrotatePair
// Undoes `rotatePair`.
fn unrotate_pair(a: f32, b: f32, angle: vec2f) -> vec2f {
  return vec2f(a * angle.x + b * angle.y, b * angle.x - a * angle.y);
}

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
fn add_angles(coarse: vec2f, fine: vec2f) -> vec2f {
  return vec2f(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 32, pairs = 32, interleaved = 0
// The first channel of a pair.
fn first_of_pair_32_32_0(pair: u32) -> u32 {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 32, pairs = 32, interleaved = 0
// The second channel of a pair.
fn second_of_pair_32_32_0(pair: u32) -> u32 {
  return pair + 32u;
}

fn vector_at(i: u32) -> f32 {
  return unpack2x16float(vectors[i / 2u])[i % 2u];
}

// Cosine and sine of a position's angle, from one row of the coarse and one of the fine table.
fn angle_of(position: u32, pair: u32) -> vec2f {
  let coarse = COARSE_ANGLES + ((position / ANGLE_TILE) * PAIRS + pair) * 2u;
  let fine = FINE_ANGLES + ((position % ANGLE_TILE) * PAIRS + pair) * 2u;
  return add_angles(vec2f(tables[coarse], tables[coarse + 1u]), vec2f(tables[fine], tables[fine + 1u]));
}

// One tile of middle tokens of one KV head a block, one rotary pair a thread.
@compute @workgroup_size(32)
fn turn_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let first = block.x * TILE_TOKENS;
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  // Threads may leave: there is no barrier below.
  if (first >= middle_tokens || thread >= PAIRS) {
    return;
  }
  let end = min(first + TILE_TOKENS, middle_tokens);
  let head_row = block.y * sequence[AT_PROMPT_TOKENS] + sequence[AT_SINK_TOKENS];
  let head = block.y * HEAD_DIM;
  let a = first_of_pair_32_32_0(thread);
  let b = second_of_pair_32_32_0(thread);
  for (var token = first; token < end; token++) {
    let source = (head_row + token) * HEAD_DIM;
    let angle = angle_of(sequence[AT_SINK_TOKENS] + token, thread);
    let pair = unrotate_pair(vector_at(source + a), vector_at(source + b), angle);
    plain[token * WIDTH + head + a] = pair.x;
    plain[token * WIDTH + head + b] = pair.y;
  }
}
