// scale_values: The f16 scale and offset of every block of values that shares one; a word of two scales for 8 threads.
// Stage codeValues of scheme int4-hadamard for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   hadamard, perToken(asymmetric, 4 bits; a scale for a head of 1 token)
// values: hadamard, perToken(asymmetric, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 4, window 64
// tunables: tileTokens = 16

const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const VALUE_SCALE_TOKENS = 1u;  // middle tokens that share a scale; 0 for all of them
const VALUE_SCALE_CHANNELS = 128u;  // channels of a head that share a scale
const VALUE_SCALE_ROW_WORDS = 4u;  // words of a row of scales, two each
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_VALUE_SCALES = 29u;  // in the record, first word of valueScales: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
const AT_VALUE_OFFSETS = 30u;  // in the record, first word of valueOffsets: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
const THREADS = 256u;  // threads of a block
const SLICES = 8u;  // threads, or blocks, that share one sum

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][1024], after Hadamard
@group(0) @binding(1) var<storage, read> plain: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;

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

// dsl/codecs/uniform.ts:66 leastNumber
// The least number as f16, never infinite.
fn least_number(least: f32, u_greatest: f32) -> f32 {
  return round_to_half(clamp(least, -65504.0, 65504.0));
}

// dsl/codecs/uniform.ts:72 magnitudeScale
// The largest magnitude as f16, never infinite.
fn magnitude_scale(u_sum_of_squares: f32, max_abs: f32) -> f32 {
  return round_to_half(min(max_abs, 65504.0));
}

const WORDS = THREADS / SLICES;  // of scales that a block finds
const BLOCKS = WIDTH / VALUE_SCALE_CHANNELS;  // in a row; a block's numbers share a scale

var<workgroup> partial: array<vec4f, THREADS>;  // [slice][word]

// The same number of the two blocks of a word.
fn pair_at(i: u32, to_second: u32) -> vec2f {
  return vec2f(plain[i], plain[i + to_second]);
}

// SLICES threads find the scales of the two blocks of one word.
@compute @workgroup_size(256)
fn scale_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // Neighbours take neighbouring channels of one word's blocks.
  let own = thread / SLICES;
  let slice = thread % SLICES;
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  // Blocks of WORDS rows lie side by side: one dimension of a grid may have no room for those of a long prompt.
  let i = (block.y * VALUE_SCALE_ROW_WORDS + block.x) * WORDS + own;
  let row = i / VALUE_SCALE_ROW_WORDS;
  let first = min(row * VALUE_SCALE_TOKENS, middle_tokens);
  let end = min(first + VALUE_SCALE_TOKENS, middle_tokens);
  let is_stored = first < end;
  let first_block = i % VALUE_SCALE_ROW_WORDS * 2u;
  // The last word of a row may have one block; it is looked through twice, and its second half stays zero.
  let has_second = first_block + 1u < BLOCKS;
  let to_second = select(0u, VALUE_SCALE_CHANNELS, has_second);
  let source = first * WIDTH + first_block * VALUE_SCALE_CHANNELS;
  let numbers = (end - first) * VALUE_SCALE_CHANNELS;

  // Ends that every number passes.
  var least = vec2f(0x1.fffffep+127);
  var greatest = vec2f(-0x1.fffffep+127);
  for (var n = slice; n < numbers; n += SLICES) {
    let place = n / VALUE_SCALE_CHANNELS * WIDTH + n % VALUE_SCALE_CHANNELS;
    let x = pair_at(source + place, to_second);
    least = min(least, x);
    greatest = max(greatest, x);
  }
  partial[slice * WORDS + own] = vec4f(least, greatest);
  workgroupBarrier();  // every slice has its ends
  for (var k = 0u; k < SLICES; k++) {
    let ends = partial[k * WORDS + own];
    least = min(least, ends.xy);
    greatest = max(greatest, ends.zw);
  }
  if (numbers == 0u) {
    least = vec2f();
    greatest = vec2f();
  }

  let offset = vec2f(least_number(least.x, greatest.x), least_number(least.y, greatest.y));
  // Rounding keeps the order: the largest difference is that of an end.
  let largest = max(abs(least - offset), abs(greatest - offset));
  // Squares are taken relative to the largest magnitude, so that none overflows or vanishes.
  let divisor = select(largest, vec2f(1.0), largest == vec2f());
  var sum = vec2f();
  for (var n = slice; n < numbers; n += SLICES) {
    let place = n / VALUE_SCALE_CHANNELS * WIDTH + n % VALUE_SCALE_CHANNELS;
    let share = (pair_at(source + place, to_second) - offset) / divisor;
    sum += share * share;
  }
  workgroupBarrier();  // every thread has read the ends: sums take their place
  partial[slice * WORDS + own] = vec4f(sum, 0.0, 0.0);
  workgroupBarrier();  // every slice has its sums
  if (slice != 0u || !is_stored) {
    return;
  }
  for (var k = 1u; k < SLICES; k++) {
    sum += partial[k * WORDS + own].xy;
  }
  let scale = vec2f(magnitude_scale(sum.x, largest.x), magnitude_scale(sum.y, largest.y));
  let exists = vec2<bool>(true, has_second);
  cache[sequence[AT_VALUE_SCALES] + i] = pack2x16float(select(vec2f(), scale, exists));
  cache[sequence[AT_VALUE_OFFSETS] + i] = pack2x16float(select(vec2f(), offset, exists));
}
