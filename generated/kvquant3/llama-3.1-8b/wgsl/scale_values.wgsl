// scale_values: The f16 scale and offset of every block of values that shares one; a word of two scales for 8 threads.
// Stage codeValues of scheme kvquant3 for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, perChannel(nuq, 3 bits; a scale for 1 channel of the prompt without 0.005 of its numbers at each end), 2 outliers a token and KV head
// values: perToken(nuq, 3 bits; a scale for a head of 1 token without 0.01 of its numbers at each end), 2 outliers a token and KV head
// stream: lloydMax(3 bits); sinks 5, window 64
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
const TRIM = 100u;  // numbers of ten thousand that a range leaves out at each end

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][1024]
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

// dsl/codecs/nuq.ts:80 middleOfRange
// The middle between the ends of a block as f16, never infinite.
fn middle_of_range(least: f32, greatest: f32) -> f32 {
  return round_to_half(clamp(least * 0.5 + greatest * 0.5, -65504.0, 65504.0));
}

// dsl/codecs/nuq.ts:86 coveringScale
// The largest magnitude as f16, rounded up, so that the ends of the range are not beyond it; never infinite.
fn covering_scale(u_sum_of_squares: f32, max_abs: f32) -> f32 {
  let nearest: f32 = round_to_half(min(max_abs, 65504.0));
  let above: f32 = select(bitcast<f32>(bitcast<u32>(nearest) + 8192u), nearest + 5.9604645e-8, nearest < 0.000061035156);
  return select(nearest, min(above, 65504.0), nearest < max_abs);
}

const WORDS = THREADS / SLICES;  // of scales that a block finds
const BLOCKS = WIDTH / VALUE_SCALE_CHANNELS;  // in a row; a block's numbers share a scale

var<workgroup> partial: array<vec4f, THREADS>;  // [slice][word]
var<workgroup> counts: array<atomic<u32>, 3 * WORDS * 4>;  // keys below, of three rounds in turn; zero at first

// Keys have the order of the numbers: those of negative ones are turned about.
fn keys_of(x: vec2f) -> vec2u {
  let bits = bitcast<vec2u>(x);
  return select(bits | vec2u(0x80000000u), ~bits, (bits & vec2u(0x80000000u)) != vec2u());
}

fn numbers_of(keys: vec2u) -> vec2f {
  return bitcast<vec2f>(select(~keys, keys & vec2u(0x7fffffffu), (keys & vec2u(0x80000000u)) != vec2u()));
}

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

  // The ends are the numbers with so many others below, or above: of every block the largest key that no more keys than
  // these are below, found bit by bit. Two factors, as the product of both would not fit.
  let left_out = numbers / 10000u * TRIM + (numbers % 10000u * TRIM + 5000u) / 10000u;
  let most_below = vec4u(vec2u(left_out), vec2u(numbers - min(numbers, left_out + 1u)));
  var ends = vec4u();  // least of both blocks, then greatest
  for (var round = 0u; round < 32u; round++) {
    let tried = ends | vec4u(0x80000000u >> round);
    let place_of_sums = (round % 3u * WORDS + own) * 4u;
    // The next round's were read two rounds ago; a barrier lies in between.
    if (slice == 0u) {
      for (var k = 0u; k < 4u; k++) {
        atomicStore(&counts[((round + 1u) % 3u * WORDS + own) * 4u + k], 0u);
      }
    }
    var counted = vec4u();
    for (var n = slice; n < numbers; n += SLICES) {
      let place = n / VALUE_SCALE_CHANNELS * WIDTH + n % VALUE_SCALE_CHANNELS;
      counted += select(vec4u(), vec4u(1u), keys_of(pair_at(source + place, to_second)).xyxy < tried);
    }
    for (var k = 0u; k < 4u; k++) {
      atomicAdd(&counts[place_of_sums + k], counted[k]);
    }
    workgroupBarrier();  // every slice has counted
    var below: vec4u;
    for (var k = 0u; k < 4u; k++) {
      below[k] = atomicLoad(&counts[place_of_sums + k]);
    }
    ends = select(ends, tried, below <= most_below);
  }
  var least = numbers_of(ends.xy);
  var greatest = numbers_of(ends.zw);
  if (numbers == 0u) {
    least = vec2f();
    greatest = vec2f();
  }

  let offset = vec2f(middle_of_range(least.x, greatest.x), middle_of_range(least.y, greatest.y));
  // Rounding keeps the order: the largest difference is that of an end.
  let largest = max(abs(least - offset), abs(greatest - offset));
  // Squares are taken relative to the largest magnitude, so that none overflows or vanishes.
  let divisor = select(largest, vec2f(1.0), largest == vec2f());
  var sum = vec2f();
  for (var n = slice; n < numbers; n += SLICES) {
    let place = n / VALUE_SCALE_CHANNELS * WIDTH + n % VALUE_SCALE_CHANNELS;
    let x = clamp(pair_at(source + place, to_second), least, greatest);
    let share = (x - offset) / divisor;
    sum += share * share;
  }
  partial[slice * WORDS + own] = vec4f(sum, 0.0, 0.0);
  workgroupBarrier();  // every slice has its sums
  if (slice != 0u || !is_stored) {
    return;
  }
  for (var k = 1u; k < SLICES; k++) {
    sum += partial[k * WORDS + own].xy;
  }
  let scale = vec2f(covering_scale(sum.x, largest.x), covering_scale(sum.y, largest.y));
  let exists = vec2<bool>(true, has_second);
  cache[sequence[AT_VALUE_SCALES] + i] = pack2x16float(select(vec2f(), scale, exists));
  cache[sequence[AT_VALUE_OFFSETS] + i] = pack2x16float(select(vec2f(), offset, exists));
}
