// tilt_store: The int8 codes of every basis, component by component, with one scale each; one component a thread.
// Stage fit of scheme tilt-safe for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64

const HEAD_DIM = 64u;  // channels of a head
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const AT_KEY_BASIS = 16u;  // in the record, first word of keyBasis: i8 [3 KV heads][64] components[64 channels, in the order of pairs]
const THREADS = 64u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [3 KV heads][64][64], eigenvectors in columns
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;
// [192 components]
@group(0) @binding(3) var<storage, read_write> column_scales: array<f32>;

// dsl/codecs/pca.ts:148 basisCode
// The int8 code of a basis entry.
fn basis_code(entry: f32, scale: f32) -> i32 {
  var code: f32 = 0.0;
  if (scale > 0.0) {
    code = clamp(round(entry / scale), -127.0, 127.0);
  }
  return i32(code);
}

// One column of one KV head's basis a thread.
@compute @workgroup_size(64)
fn tilt_store(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let column = block.x * THREADS + thread;
  if (column >= WIDTH) {
    return;
  }
  let entries = column / HEAD_DIM * HEAD_DIM * HEAD_DIM + column % HEAD_DIM;
  var largest = 0.0;
  for (var channel = 0u; channel < HEAD_DIM; channel++) {
    largest = max(largest, abs(vectors[entries + channel * HEAD_DIM]));
  }
  let scale = largest / 127.0;
  column_scales[column] = scale;
  let words = sequence[AT_KEY_BASIS] + column * (HEAD_DIM / 4u);
  for (var word = 0u; word < HEAD_DIM / 4u; word++) {
    var packed = 0u;
    for (var lane = 0u; lane < 4u; lane++) {
      let code = basis_code(vectors[entries + (word * 4u + lane) * HEAD_DIM], scale);
      packed |= (bitcast<u32>(code) & 0xffu) << (lane * 8u);
    }
    cache[words + word] = packed;
  }
}
