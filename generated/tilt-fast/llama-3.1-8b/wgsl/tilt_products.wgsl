// tilt_products: Sums of y * y and of y * coded y of every channel over a tile of tokens.
// Stage codeValues of scheme tilt-fast for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const HEAD_DIM = 128u;  // channels of a head
const KV_HEADS = 8u;  // KV heads
const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const VALUE_LEVELS = 256u;  // offset in the tables: values of the codes of values, over their scales
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][1024], after Hadamard
@group(0) @binding(1) var<storage, read> plain: array<f32>;
// [middle tokens][8 KV heads], rounded to f16
@group(0) @binding(2) var<storage, read> norms: array<f32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(3) var<storage, read> tables: array<f32>;
// [tiles][2: squares, products with the coded value][1024]
@group(0) @binding(4) var<storage, read_write> partial_products: array<f32>;

// dsl/codecs/lloydMax.ts:65 nearestLevel, bits = 2
// Index of the level nearest to `x` (a channel over its norm), by bisection of the midpoints.
fn nearest_level_2(x: f32) -> u32 {
  var code: u32 = 0u;
  for (var step: u32 = 0u; step < 2u; step++) {
    let probe: u32 = code + (1u << (1u - step));
    if (x * 2.0 > level_at(probe - 1u) + level_at(probe)) {
      code = probe;
    }
  }
  return code;
}

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value(code: u32) -> f32 {
  return level_at(code);
}

fn level_at(index: u32) -> f32 {
  return tables[VALUE_LEVELS + index];
}

// One tile of middle tokens of one KV head a block, one channel a thread.
@compute @workgroup_size(128)
fn tilt_products(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let first = block.x * TILE_TOKENS;
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  if (first >= middle_tokens || thread >= HEAD_DIM) {
    return;
  }
  let end = min(first + TILE_TOKENS, middle_tokens);
  let channel = block.y * HEAD_DIM + thread;
  var squares = 0.0;
  var products = 0.0;
  for (var token = first; token < end; token++) {
    let value = plain[token * WIDTH + channel];
    let norm = norms[token * KV_HEADS + block.y];
    var over_norm = 0.0;
    if (norm > 0.0) {
      over_norm = value / norm;
    }
    squares += value * value;
    products += value * (norm * level_value(nearest_level_2(over_norm)));
  }
  partial_products[block.x * 2u * WIDTH + channel] = squares;
  partial_products[(block.x * 2u + 1u) * WIDTH + channel] = products;
}
