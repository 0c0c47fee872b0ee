// turn_keys: The middle keys as float32, radius and angle / pi: a tile of tokens of one KV head a block.
// Stage codeKeys of scheme polarquant4 for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   polar, perChannel(midRise, 4 bits; a scale for 1 channel of 128 tokens)
// values: perToken(asymmetric, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 0, window 128
// tunables: tileTokens = 16

const HEAD_DIM = 128u;  // channels of a head
const PAIRS = 64u;  // pairs of channels of a head; those past the rotary ones have angle zero
const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_PROMPT_TOKENS = 5u;  // in the record, tokens of the prompt in the input of the encode stages
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [8 KV heads][prompt tokens][128], after RoPE
@group(0) @binding(1) var<storage, read> vectors: array<u32>;
// [middle tokens][1024], radius and angle / pi
@group(0) @binding(2) var<storage, read_write> plain: array<f32>;

// dsl/codecs/polar.ts:25 arctangent
// The arctangent of a slope from 0 to 1, over pi; 1.6e-8 of it is the polynomial's error.
fn arctangent(slope: f32) -> f32 {
  let square: f32 = slope * slope;
  var sum: f32 = 0.0009071472;
  sum = sum * square - 0.005114799;
  sum = sum * square + 0.013589124;
  sum = sum * square - 0.023886902;
  sum = sum * square + 0.03387114;
  sum = sum * square - 0.045211603;
  sum = sum * square + 0.063638484;
  sum = sum * square - 0.10610247;
  sum = sum * square + 0.31830988;
  return slope * sum;
}

// dsl/codecs/polar.ts:41 toPolar
// The radius of the point (a, b) and its angle over pi, from -1 to 1: 0 for the origin, and 1 for (-1, -0) as for (-1, 0).
fn to_polar(a: f32, b: f32) -> vec2f {
  let longer: f32 = max(abs(a), abs(b));
  let shorter: f32 = min(abs(a), abs(b));
  var angle: f32 = 0.0;
  if (longer > 0.0) {
    angle = arctangent(shorter / longer);
  }
  if (abs(b) > abs(a)) {
    angle = 0.5 - angle;
  }
  if (a < 0.0) {
    angle = 1.0 - angle;
  }
  return vec2f(sqrt(a * a + b * b), select(angle, -angle, b < 0.0));
}

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
fn add_angles(coarse: vec2f, fine: vec2f) -> vec2f {
  return vec2f(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 64, pairs = 64, interleaved = 0
// The first channel of a pair.
fn first_of_pair_64_64_0(pair: u32) -> u32 {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 64, pairs = 64, interleaved = 0
// The second channel of a pair.
fn second_of_pair_64_64_0(pair: u32) -> u32 {
  return pair + 64u;
}

fn vector_at(i: u32) -> f32 {
  return unpack2x16float(vectors[i / 2u])[i % 2u];
}

// One tile of middle tokens of one KV head a block, one rotary pair a thread.
@compute @workgroup_size(64)
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
  let a = first_of_pair_64_64_0(thread);
  let b = second_of_pair_64_64_0(thread);
  for (var token = first; token < end; token++) {
    let source = (head_row + token) * HEAD_DIM;
    let pair = to_polar(vector_at(source + a), vector_at(source + b));
    plain[token * WIDTH + head + a] = pair.x;
    plain[token * WIDTH + head + b] = pair.y;
  }
}
