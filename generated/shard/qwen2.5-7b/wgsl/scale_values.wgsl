// scale_values: The f16 scale of every (head, channel).
// Stage values of scheme shard for qwen2.5-7b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 96, bits 4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const WIDTH = 512u;  // KV_HEADS * HEAD_DIM
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_CHANNEL_MAX = 21u;  // in the record, first word of channelMax: f16 [4 KV heads][128], after Hadamard
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 32u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [tiles][512]
@group(0) @binding(1) var<storage, read> partial_maxima: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;
// [512], rounded to f16, never zero
@group(0) @binding(3) var<storage, read_write> channel_scales: array<f32>;

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

// dsl/codecs/channelMax.ts:20 clampToHalf
fn clamp_to_half(max_abs: f32) -> f32 {
  return min(max(max_abs, 1.1920929e-7), 65504.0);
}

// dsl/codecs/channelMax.ts:15 channelScale
// The stored f16 scale of a channel: never zero (the floor is 2^-23), never infinite.
fn channel_scale(max_abs: f32) -> f32 {
  return round_to_half(clamp_to_half(max_abs));
}

// One thread a word, that is two channels: the largest magnitude over all tiles.
@compute @workgroup_size(64)
fn scale_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let word = block.x * THREADS + thread;
  if (word >= WIDTH / 2u) {
    return;
  }
  let channel = word * 2u;
  let tiles = (sequence[AT_MIDDLE_TOKENS] + TILE_TOKENS - 1u) / TILE_TOKENS;
  var largest = vec2f();
  for (var tile = 0u; tile < tiles; tile++) {
    let row = tile * WIDTH + channel;
    largest = max(largest, vec2f(partial_maxima[row], partial_maxima[row + 1u]));
  }
  let scales = vec2f(channel_scale(largest.x), channel_scale(largest.y));
  cache[sequence[AT_CHANNEL_MAX] + word] = pack2x16float(scales);
  channel_scales[channel] = scales.x;
  channel_scales[channel + 1u] = scales.y;
}
