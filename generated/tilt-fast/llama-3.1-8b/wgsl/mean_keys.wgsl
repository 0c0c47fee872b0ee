// mean_keys: Finishes the mean; the f16 value that is stored is the one every later stage subtracts.
// Stage unrope of scheme tilt-fast for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_KEY_MEAN = 18u;  // in the record, first word of keyMean: f16 [8 KV heads][128] channels, in the order of pairs, before RoPE
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 32u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [tiles][1024]
@group(0) @binding(1) var<storage, read> partial_sums: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;
// [1024], rounded to f16
@group(0) @binding(3) var<storage, read_write> mean: array<f32>;

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

// One thread a word, that is two channels: adds the tiles in order.
@compute @workgroup_size(64)
fn mean_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let word = block.x * THREADS + thread;
  if (word >= WIDTH / 2u) {
    return;
  }
  let channel = word * 2u;
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  let tiles = (middle_tokens + TILE_TOKENS - 1u) / TILE_TOKENS;
  var sum = vec2f();
  for (var tile = 0u; tile < tiles; tile++) {
    let row = tile * WIDTH + channel;
    sum += vec2f(partial_sums[row], partial_sums[row + 1u]);
  }
  // An empty middle has the mean 0. A turned pair of extreme halves exceeds f16, so the mean saturates.
  let average = sum / f32(max(middle_tokens, 1u));
  let limited = clamp(average, vec2f(-65504.0), vec2f(65504.0));
  let stored = vec2f(round_to_half(limited.x), round_to_half(limited.y));
  cache[sequence[AT_KEY_MEAN] + word] = pack2x16float(stored);
  mean[channel] = stored.x;
  mean[channel + 1u] = stored.y;
}
