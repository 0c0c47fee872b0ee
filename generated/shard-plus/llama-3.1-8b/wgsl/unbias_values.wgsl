// unbias_values: Multiplies the scale of every channel by its gain.
// Stage unbias of scheme shard-plus for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_CHANNEL_MAX = 21u;  // in the record, first word of channelMax: f16 [8 KV heads][128], after Hadamard
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 32u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [tiles][2: squares, products with the coded value][1024]
@group(0) @binding(1) var<storage, read> partial_products: array<f32>;
// [1024], as the codes were chosen with
@group(0) @binding(2) var<storage, read> channel_scales: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

// The nearest float16, ties to even.
fn round_to_half(x: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  let size = bitcast<u32>(x) & 0x7fffffffu;
  if (size > 0x7f800000u) {
    return x;
  }
  // Ten bits of the fraction stay; beyond the largest half lies infinity.
  var rounded = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
  rounded = select(rounded, 0x7f800000u, rounded >= 0x47800000u);
  // Below 2^-14 halves are the multiples of 2^-24.
  if (size < 0x38800000u) {
    rounded = bitcast<u32>(round(bitcast<f32>(size) * 0x1p24f) * 0x1p-24f);
  }
  return bitcast<f32>(sign | rounded);
}

// dsl/codecs/vq.ts:47 unbiasedGain
// The factor that makes a channel's code unbiased: sum(y^2) over sum(y * coded y); 1 where that says nothing.
fn unbiased_gain(squares: f32, products: f32) -> f32 {
  var gain: f32 = 1.0;
  if (products > 0.0) {
    gain = squares / products;
  }
  return clamp(gain, 0.25, 4.0);
}

// dsl/codecs/channelMax.ts:20 clampToHalf
fn clamp_to_half(max_abs: f32) -> f32 {
  return min(max(max_abs, 1.1920929e-7), 65504.0);
}

// dsl/codecs/channelMax.ts:15 channelScale
// The stored f16 scale of a channel: never zero (the floor is 2^-23), never infinite.
fn channel_scale(max_abs: f32) -> f32 {
  return round_to_half(clamp_to_half(max_abs));
}

// The scale of a channel times its gain, tile by tile in order.
fn unbiased_scale(channel: u32) -> f32 {
  let tiles = (sequence[AT_MIDDLE_TOKENS] + TILE_TOKENS - 1u) / TILE_TOKENS;
  var squares = 0.0;
  var products = 0.0;
  for (var tile = 0u; tile < tiles; tile++) {
    squares += partial_products[tile * 2u * WIDTH + channel];
    products += partial_products[(tile * 2u + 1u) * WIDTH + channel];
  }
  return channel_scale(channel_scales[channel] * unbiased_gain(squares, products));
}

// One thread a word, that is two channels.
@compute @workgroup_size(64)
fn unbias_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let word = block.x * THREADS + thread;
  if (word >= WIDTH / 2u) {
    return;
  }
  let scales = vec2f(unbiased_scale(word * 2u), unbiased_scale(word * 2u + 1u));
  cache[sequence[AT_CHANNEL_MAX] + word] = pack2x16float(scales);
}
