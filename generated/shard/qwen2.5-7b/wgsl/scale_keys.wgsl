// scale_keys: One f16 scale a component from its magnitudes and its width.
// Stage project of scheme shard for qwen2.5-7b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 96, bits 4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const RANK = 96u;  // components of a key
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_KEY_SCALES = 15u;  // in the record, first word of keyScales: f16 [96 components]
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [tiles][96]
@group(0) @binding(1) var<storage, read> partial_maxima: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;
// [96], rounded to f16
@group(0) @binding(3) var<storage, read_write> scales: array<f32>;

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

// dsl/codecs/pca.ts:119 coefficientScale, bits = 4
// The scale that maps a component's largest magnitude to the largest code; stored as f16, saturated.
fn coefficient_scale_4(max_abs: f32) -> f32 {
  return round_to_half(min(max_abs / 7.0, 65504.0));
}

// The scale of a component, by the width of its group. A group without bits stores nothing.
fn scale_of(component: u32, largest: f32) -> f32 {
  if (component >= 0u && component < 0u + 64u) {
    return coefficient_scale_4(largest);
  }
  if (component >= 64u && component < 64u + 32u) {
    return coefficient_scale_4(largest);
  }
  return 0.0;
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
  for (var tile = 0u; tile < tiles; tile++) {
    let row = tile * RANK + component;
    largest = max(largest, vec2f(partial_maxima[row], partial_maxima[row + 1u]));
  }
  let pair = vec2f(scale_of(component, largest.x), scale_of(component + 1u, largest.y));
  cache[sequence[AT_KEY_SCALES] + word] = pack2x16float(pair);
  scales[component] = pair.x;
  scales[component + 1u] = pair.y;
}
