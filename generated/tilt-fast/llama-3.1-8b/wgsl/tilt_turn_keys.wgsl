// tilt_turn_keys: plain = weights * R(place in the tile) * (plain - mean), a tile of tokens of one KV head a block.
// Stage turnKeys of scheme tilt-fast for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const HEAD_DIM = 128u;  // channels of a head
const PAIRS = 64u;  // pairs of channels of a head; those past the rotary ones have angle zero
const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const TILE = 64u;  // positions of a tile, whose keys are rotated together
const TILE_ANGLES = 8452u;  // offset in the tables: [TILE][PAIRS](cosine, sine) of the place in a tile, position % TILE - (TILE - 1) / 2
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const TILE_TOKENS = 32u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(1) var<storage, read> tables: array<f32>;
// [1024]
@group(0) @binding(2) var<storage, read> mean: array<f32>;
// [1024], both channels of a pair alike
@group(0) @binding(3) var<storage, read> weights: array<f32>;
// [middle tokens][1024], before RoPE; tile-rotated and weighted afterwards
@group(0) @binding(4) var<storage, read_write> plain: array<f32>;

// dsl/codecs/unrope.ts:16 rotatePair
// Turns the pair (a, b) by the angle whose cosine and sine are given.
fn rotate_pair(a: f32, b: f32, angle: vec2f) -> vec2f {
  return vec2f(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
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

// One tile of middle tokens of one KV head a block, one pair a thread.
@compute @workgroup_size(64)
fn tilt_turn_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  if (thread >= PAIRS) {
    return;
  }
  let a = block.y * HEAD_DIM + thread;
  let b = a + PAIRS;
  let centre = vec2f(mean[a], mean[b]);
  let weight = weights[a];  // that of both
  let end = min((block.x + 1u) * TILE_TOKENS, sequence[AT_MIDDLE_TOKENS]);
  for (var token = block.x * TILE_TOKENS; token < end; token++) {
    let place = (sequence[AT_SINK_TOKENS] + token) % TILE;
    let angle = TILE_ANGLES + (place * PAIRS + thread) * 2u;
    let row = token * WIDTH;
    let centred = vec2f(plain[row + a], plain[row + b]) - centre;
    let turned = rotate_pair(centred.x, centred.y, vec2f(tables[angle], tables[angle + 1u]));
    plain[row + a] = weight * turned.x;
    plain[row + b] = weight * turned.y;
  }
}
