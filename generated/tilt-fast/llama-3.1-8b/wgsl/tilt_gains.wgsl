// tilt_gains: The gain of every channel.
// Stage codeValues of scheme tilt-fast for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_VALUE_GAINS = 46u;  // in the record, first word of valueGains: f16 [8 KV heads][128], after Hadamard
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [tiles][2: squares, products with the coded value][1024]
@group(0) @binding(1) var<storage, read> partial_products: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;

// dsl/codecs/vq.ts:47 unbiasedGain
// The factor that makes a channel's code unbiased: sum(y^2) over sum(y * coded y); 1 where that says nothing.
fn unbiased_gain(squares: f32, products: f32) -> f32 {
  var gain: f32 = 1.0;
  if (products > 0.0) {
    gain = squares / products;
  }
  return clamp(gain, 0.25, 4.0);
}

fn gain_of(channel: u32) -> f32 {
  let tiles = (sequence[AT_MIDDLE_TOKENS] + TILE_TOKENS - 1u) / TILE_TOKENS;
  var squares = 0.0;
  var products = 0.0;
  for (var tile = 0u; tile < tiles; tile++) {
    squares += partial_products[tile * 2u * WIDTH + channel];
    products += partial_products[(tile * 2u + 1u) * WIDTH + channel];
  }
  return unbiased_gain(squares, products);
}

// Two channels a thread: one word of the stored gains.
@compute @workgroup_size(64)
fn tilt_gains(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let word = block.x * THREADS + thread;
  if (word >= WIDTH / 2u) {
    return;
  }
  cache[sequence[AT_VALUE_GAINS] + word] = pack2x16float(vec2f(gain_of(word * 2u), gain_of(word * 2u + 1u)));
}
