// tilt_steps: The step of every component, from its magnitudes in a range block and its width; one of them a thread.
// Stage codeKeys of scheme tilt-safe for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64

const HEAD_DIM = 64u;  // channels of a head
const KV_HEADS = 3u;  // KV heads
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const RANGE_BLOCK = 512u;  // positions that share the steps of components; 0 for all
const GROUP_COMPONENTS = 8u;  // components that share a width
const FIELD_WORDS = 10u;  // words that describe the fields of a KV head's key codes
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_KEY_STEPS = 44u;  // in the record, first word of keySteps: f16 [range blocks][3 KV heads][64] components, 128 times step and scale of the basis column
const AT_KEY_FIELDS = 45u;  // in the record, first word of keyFields: u32 [3 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][192 components]
@group(0) @binding(1) var<storage, read> coefficients: array<f32>;
// [192 components]
@group(0) @binding(2) var<storage, read> column_scales: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;
// [range blocks][192 components], as the stored ones stand for
@group(0) @binding(4) var<storage, read_write> steps: array<f32>;

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

// dsl/codecs/tileRows.ts:62 foldedStep
// The step of a component as it is stored: 128 times its range over 2^bits (twice the mean magnitude with one bit), times the scale of its column of the basis, so that a reader multiplies once.
fn folded_step(max_abs: f32, mean_abs: f32, bits: u32, column_scale: f32) -> f32 {
  var step: f32 = 0.0;
  if (bits == 1u) {
    step = 2.0 * mean_abs;
  } else if (bits > 1u) {
    step = 2.0 * max_abs / f32(1u << bits);
  }
  return round_to_half(min(128.0 * column_scale * step, 65504.0));
}

var<workgroup> stored: array<f32, HEAD_DIM>;

// The middle tokens of one range block, of one KV head a block; one component a thread.
@compute @workgroup_size(64)
fn tilt_steps(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let sinks = sequence[AT_SINK_TOKENS];
  let end = sinks + sequence[AT_MIDDLE_TOKENS];
  let first = max(block.x * RANGE_BLOCK, sinks);
  let last = min((block.x + 1u) * RANGE_BLOCK, end);
  if (first >= last) {
    return;
  }
  let row = (block.x * KV_HEADS + block.y) * HEAD_DIM;
  if (thread < HEAD_DIM) {
    let own = block.y * HEAD_DIM + thread;
    let bits = cache[sequence[AT_KEY_FIELDS] + block.y * FIELD_WORDS + thread / GROUP_COMPONENTS] & 15u;
    var largest = 0.0;
    var sum = 0.0;
    for (var position = first; position < last; position++) {
      let size = abs(coefficients[(position - sinks) * WIDTH + own]);
      largest = max(largest, size);
      sum += size;
    }
    let scale = column_scales[own];
    let folded = folded_step(largest, sum / f32(last - first), bits, scale);
    stored[thread] = folded;
    steps[row + thread] = 0.0;
    if (scale > 0.0) {
      steps[row + thread] = folded / (128.0 * scale);
    }
  }
  workgroupBarrier();  // both steps of every word are there
  if (thread < HEAD_DIM / 2u) {
    cache[sequence[AT_KEY_STEPS] + row / 2u + thread] = pack2x16float(vec2f(stored[thread * 2u], stored[thread * 2u + 1u]));
  }
}
