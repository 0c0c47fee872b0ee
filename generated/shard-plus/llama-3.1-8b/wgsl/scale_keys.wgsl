// scale_keys: One f16 scale a component from its magnitudes and its width.
// Stage project of scheme shard-plus for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const RANK = 192u;  // components of a key
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_KEY_SCALES = 15u;  // in the record, first word of keyScales: f16 [192 components]
const AT_KEY_WIDTHS = 26u;  // in the record, first word of keyWidths: u32 [12 groups of 16 components]: first bit in the row * 16 + bits a component
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [tiles][192]
@group(0) @binding(1) var<storage, read> partial_maxima: array<f32>;
// [tiles][192], sums
@group(0) @binding(2) var<storage, read> partial_magnitudes: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;
// [192], rounded to f16
@group(0) @binding(4) var<storage, read_write> scales: array<f32>;

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

// dsl/codecs/midRise.ts:12 midRiseStep
// The step of a component, stored as f16 and saturated: its range over 2^bits levels.
fn mid_rise_step(max_abs: f32, mean_abs: f32, bits: u32) -> f32 {
  var step: f32 = 0.0;
  if (bits == 1u) {
    step = 2.0 * mean_abs;
  } else if (bits > 1u) {
    step = 2.0 * max_abs / f32(1u << bits);
  }
  return round_to_half(min(step, 65504.0));
}

// The step of a component, by the width that its group of 16 was given.
fn step_of(width: u32, largest: f32, sum: f32) -> f32 {
  return mid_rise_step(largest, sum / f32(max(sequence[AT_MIDDLE_TOKENS], 1u)), width & 15u);
}

// One thread a word, that is two components: the largest magnitude over all tiles.
@compute @workgroup_size(64)
fn scale_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let word = block.x * THREADS + thread;
  if (word >= RANK / 2u) {
    return;
  }
  let component = word * 2u;
  let tiles = (sequence[AT_MIDDLE_TOKENS] + TILE_TOKENS - 1u) / TILE_TOKENS;
  var largest = vec2f();
  var sum = vec2f();
  for (var tile = 0u; tile < tiles; tile++) {
    let row = tile * RANK + component;
    largest = max(largest, vec2f(partial_maxima[row], partial_maxima[row + 1u]));
    sum += vec2f(partial_magnitudes[row], partial_magnitudes[row + 1u]);
  }
  let width = cache[sequence[AT_KEY_WIDTHS] + word / 8u];
  let pair = vec2f(step_of(width, largest.x, sum.x), step_of(width, largest.y, sum.y));
  cache[sequence[AT_KEY_SCALES] + word] = pack2x16float(pair);
  scales[component] = pair.x;
  scales[component + 1u] = pair.y;
}
