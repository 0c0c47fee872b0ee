// tilt_norms: The f16 norm of every value; one KV head of a token a thread.
// Stage codeValues of scheme tilt-fast for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const HEAD_DIM = 64u;  // channels of a head
const KV_HEADS = 3u;  // KV heads
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const THREADS = 128u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][192], after Hadamard
@group(0) @binding(1) var<storage, read> plain: array<f32>;
// [middle tokens][3 KV heads], rounded to f16
@group(0) @binding(2) var<storage, read_write> norms: array<f32>;

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

// dsl/codecs/lloydMax.ts:58 vectorNorm
// The norm of the vector, stored as f16: the codebook is for the unit sphere.
fn vector_norm(sum_of_squares: f32, max_abs: f32) -> f32 {
  return round_to_half(min(sqrt(sum_of_squares) * max_abs, 65504.0));
}

// One value of one KV head a thread.
@compute @workgroup_size(128)
fn tilt_norms(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let vector = block.x * THREADS + thread;
  if (vector >= sequence[AT_MIDDLE_TOKENS] * KV_HEADS) {
    return;
  }
  let channels = vector * HEAD_DIM;
  var largest = 0.0;
  for (var i = 0u; i < HEAD_DIM; i++) {
    largest = max(largest, abs(plain[channels + i]));
  }
  // Squares are relative to the largest magnitude, so that none overflows or vanishes.
  let divisor = select(1.0, largest, largest > 0.0);
  var sum = 0.0;
  for (var i = 0u; i < HEAD_DIM; i++) {
    let share = plain[channels + i] / divisor;
    sum += share * share;
  }
  norms[vector] = vector_norm(sum, largest);
}
