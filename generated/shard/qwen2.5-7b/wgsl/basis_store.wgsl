// basis_store: columns = basis * vectors, and their int8 codes with one scale a column; four columns a block.
// Stage basis of scheme shard for qwen2.5-7b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 96, bits 4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tile = 16

const WIDTH = 512u;  // KV_HEADS * HEAD_DIM
const RANK = 96u;  // components of a key
const RANK_WORDS = 24u;  // words of a basis row, four int8 columns each
const AT_KEY_BASIS = 16u;  // in the record, first word of keyBasis: i8 [512 channels][96 components]
const AT_KEY_BASIS_SCALES = 17u;  // in the record, first word of keyBasisScales: f16 [96 components]
const THREADS = 256u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [512][96]
@group(0) @binding(1) var<storage, read> basis: array<f32>;
// [96][96]
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;
// [512][96], orthonormal, descending eigenvalues
@group(0) @binding(4) var<storage, read_write> columns: array<f32>;

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

// dsl/codecs/pca.ts:142 basisScale
// One scale a basis column: its largest magnitude over 127, stored as f16.
fn basis_scale(max_abs: f32) -> f32 {
  return round_to_half(min(max_abs / 127.0, 65504.0));
}

// dsl/codecs/pca.ts:148 basisCode
// The int8 code of a basis entry.
fn basis_code(entry: f32, scale: f32) -> i32 {
  var code: f32 = 0.0;
  if (scale > 0.0) {
    code = clamp(round(entry / scale), -127.0, 127.0);
  }
  return i32(code);
}

var<workgroup> largest: array<vec4f, THREADS>;

// Four columns a block, which share their words; channels shared out over the threads.
@compute @workgroup_size(256)
fn basis_store(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let first_column = block.x * 4u;
  var magnitude = vec4f();
  for (var channel = thread; channel < WIDTH; channel += THREADS) {
    var entries = vec4f();
    for (var k = 0u; k < RANK; k++) {
      let row = k * RANK + first_column;
      entries += basis[channel * RANK + k] * vec4f(vectors[row], vectors[row + 1u], vectors[row + 2u], vectors[row + 3u]);
    }
    for (var lane = 0u; lane < 4u; lane++) {
      columns[channel * RANK + first_column + lane] = entries[lane];
    }
    magnitude = max(magnitude, abs(entries));
  }
  largest[thread] = magnitude;
  for (var count = THREADS / 2u; count > 0u; count /= 2u) {
    // A round reads what other threads wrote in the round before.
    workgroupBarrier();
    if (thread < count) {
      largest[thread] = max(largest[thread], largest[thread + count]);
    }
  }
  // The last round is complete.
  workgroupBarrier();
  var scales: array<f32, 4>;
  for (var lane = 0u; lane < 4u; lane++) {
    scales[lane] = basis_scale(largest[0][lane]);
  }
  for (var channel = thread; channel < WIDTH; channel += THREADS) {
    var word = 0u;
    for (var lane = 0u; lane < 4u; lane++) {
      let code = basis_code(columns[channel * RANK + first_column + lane], scales[lane]);
      word |= (u32(code) & 0xffu) << (lane * 8u);
    }
    cache[sequence[AT_KEY_BASIS] + channel * RANK_WORDS + block.x] = word;
  }
  if (thread < 2u) {
    let stored = vec2f(scales[thread * 2u], scales[thread * 2u + 1u]);
    cache[sequence[AT_KEY_BASIS_SCALES] + block.x * 2u + thread] = pack2x16float(stored);
  }
}
