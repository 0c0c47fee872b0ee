// code_latents: One token of the middle a block.
// Stage codeLatents of scheme latent-int4-hadamard for deepseek-v2-lite. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// latent: hadamard, perToken(asymmetric, 4 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64

const LATENT_DIM = 512u;  // channels of a latent, the first of a token
const ROTARY_DIM = 64u;  // channels of a rotary part
const TOKEN_DIM = 576u;  // channels of a token: latent, then rotary part
const TOKEN_WORDS = 288u;  // words of a token in f16
const LATENT_WORDS = 64u;  // words of a middle token's latent
const LATENT_SCALE_CHANNELS = 128u;  // channels of a latent that share a scale
const LATENT_BLOCKS = 4u;  // scales of a latent
const LATENT_SCALE_WORDS = 2u;  // words of the scales of a latent, two each
const LATENT_SPAN = 512u;  // channels of one Hadamard block of a latent
const LATENT_HADAMARD_SCALE = 0.0441941731;  // 1 / sqrt(LATENT_SPAN)
const ROTARY_WORDS = 16u;  // words of a middle token's rotary part
const ROTARY_SCALE_CHANNELS = 64u;  // channels of a rotary part that share a scale
const ROTARY_BLOCKS = 1u;  // scales of a rotary part
const ROTARY_SCALE_WORDS = 1u;  // words of the scales of a rotary part, two each
const LATENT_LEVELS = 256u;  // offset in the tables: values of the codes of latents, over their scales
const ROTARY_LEVELS = 272u;  // offset in the tables: values of the codes of rotary parts, over their scales
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_LATENT_CODES = 34u;  // in the record, first word of latentCodes: 4-bit fields [middle][512], after Hadamard
const AT_LATENT_SCALES = 35u;  // in the record, first word of latentScales: f16 [middle][4 of 128 channels]
const AT_LATENT_OFFSETS = 36u;  // in the record, first word of latentOffsets: f16 [middle][4 of 128 channels]
const AT_ROTARY_KEYS = 37u;  // in the record, first word of rotaryKeys: 8-bit fields [middle][64]
const AT_ROTARY_SCALES = 38u;  // in the record, first word of rotaryScales: f16 [middle][1 of 64 channels]
const THREADS = 128u;  // threads of a block
const TILE_TOKENS = 256u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [prompt tokens][512 latent, 64 rotary after RoPE]
@group(0) @binding(1) var<storage, read> keys: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(2) var<storage, read> tables: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

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

// dsl/codecs/uniform.ts:85 asymmetricCode, bits = 4
// The nearest of the codes 0 to 2^bits - 1, the first for zero and the last for one.
fn asymmetric_code_4(x: f32) -> u32 {
  return u32(clamp(round(x * 15.0), 0.0, 15.0));
}

// dsl/packing.ts:11 packWord, bits = 4
// Builds one 32-bit word of a little-endian bit-field row: field `i` occupies bits `[i*bits, (i+1)*bits)` of the row.
fn pack_word_4(word: u32, count: u32) -> u32 {
  let first_bit: u32 = word * 32u;
  let first: u32 = first_bit / 4u;
  var packed: u32 = 0u;
  for (var i: u32 = 0u; i < 9u; i++) {
    let field: u32 = first + i;
    let position: u32 = field * 4u;
    if (field < count && position < first_bit + 32u) {
      let value: u32 = latent_field_at(field);
      if (position >= first_bit) {
        packed = packed | (value << (position - first_bit));
      } else {
        packed = packed | (value >> (first_bit - position));
      }
    }
  }
  return packed;
}

// dsl/codecs/uniform.ts:78 symmetricCode, bits = 8
// The nearest of the codes 1 to 2^bits - 1, whose middle stands for zero.
fn symmetric_code_8(x: f32) -> u32 {
  return u32(i32(clamp(round(x * 127.0), -127.0, 127.0)) + 128);
}

// dsl/packing.ts:11 packWord, bits = 8
// Builds one 32-bit word of a little-endian bit-field row: field `i` occupies bits `[i*bits, (i+1)*bits)` of the row.
fn pack_word_8(word: u32, count: u32) -> u32 {
  let first_bit: u32 = word * 32u;
  let first: u32 = first_bit / 8u;
  var packed: u32 = 0u;
  for (var i: u32 = 0u; i < 5u; i++) {
    let field: u32 = first + i;
    let position: u32 = field * 8u;
    if (field < count && position < first_bit + 32u) {
      let value: u32 = rotary_field_at(field);
      if (position >= first_bit) {
        packed = packed | (value << (position - first_bit));
      } else {
        packed = packed | (value >> (first_bit - position));
      }
    }
  }
  return packed;
}

const COLUMNS = 1u;
const MOST_BLOCKS = max(LATENT_BLOCKS, ROTARY_BLOCKS);

var<workgroup> tile: array<f32, TOKEN_DIM>;
var<workgroup> blocks: array<vec2f, MOST_BLOCKS>;  // scale and offset

// Hadamard transform (Sylvester order) of `count` channels of `tile` from `first` on, in place, in blocks of `span`
// channels, each of COLUMNS elements; `scale` is 1 / sqrt(span). All threads must call it: it waits for the writes of `tile`
// before it; after it a thread may read what it scaled, and after a barrier all of it.
fn turn(first: u32, count: u32, span: u32, scale: f32, thread: u32) {
  for (var stride = 1u; stride < span; stride *= 2u) {
    workgroupBarrier();  // the stores before, or those of the previous stride, are complete
    for (var i = thread; i < count / 2u * COLUMNS; i += THREADS) {
      let pair = i / COLUMNS;
      let low = (first + pair / stride * stride * 2u + pair % stride) * COLUMNS + i % COLUMNS;
      let high = low + stride * COLUMNS;
      let lower = tile[low];
      let upper = tile[high];
      tile[low] = lower + upper;
      tile[high] = lower - upper;
    }
  }
  workgroupBarrier();  // the last stride is complete
  for (var i = thread; i < count * COLUMNS; i += THREADS) {
    tile[first * COLUMNS + i] *= scale;
  }
}

fn latent_level_at(index: u32) -> f32 {
  return tables[LATENT_LEVELS + index];
}

// The code of a channel of the latent.
fn latent_field_at(channel: u32) -> u32 {
  let ends = blocks[channel / LATENT_SCALE_CHANNELS];
  // Where all numbers of a block are its offset, or nearly, the scale is zero.
  var unit = 0.0;
  if (ends.x > 0.0) {
    unit = (tile[0u + channel] - ends.y) / ends.x;
  }
  return asymmetric_code_4(unit);
}

// The scale and the offset of a block of channels of the latent.
fn latent_block(index: u32) -> vec2f {
  let first = 0u + index * LATENT_SCALE_CHANNELS;
  var least = tile[first];
  var greatest = least;
  for (var i = 1u; i < LATENT_SCALE_CHANNELS; i++) {
    least = min(least, tile[first + i]);
    greatest = max(greatest, tile[first + i]);
  }
  let offset = least_number(least, greatest);
  // Rounding keeps the order of numbers: the one farthest from the offset is at an end.
  let largest = max(abs(least - offset), abs(greatest - offset));
  // Squares are relative to the largest magnitude, so that none overflows or vanishes.
  let divisor = select(1.0, largest, largest > 0.0);
  var sum = 0.0;
  for (var i = 0u; i < LATENT_SCALE_CHANNELS; i++) {
    let share = (tile[first + i] - offset) / divisor;
    sum += share * share;
  }
  return vec2f(magnitude_scale(sum, largest), offset);
}

// Codes the latent whose channels are in `tile`: its codes, scales and offsets begin at these words of the cache.
fn code_latent(codes: u32, scales: u32, offsets: u32, thread: u32) {
  workgroupBarrier();  // the channels are complete, and nobody reads the scales of another part any more
  for (var word = thread; word < LATENT_SCALE_WORDS; word += THREADS) {
    let low = latent_block(word * 2u);
    blocks[word * 2u] = low;
    var high = vec2f();
    if (word * 2u + 1u < LATENT_BLOCKS) {
      high = latent_block(word * 2u + 1u);
      blocks[word * 2u + 1u] = high;
    }
    cache[scales + word] = pack2x16float(vec2f(low.x, high.x));
    cache[offsets + word] = pack2x16float(vec2f(low.y, high.y));
  }
  workgroupBarrier();  // every block has its scale
  for (var word = thread; word < LATENT_WORDS; word += THREADS) {
    cache[codes + word] = pack_word_4(word, LATENT_DIM);
  }
}

fn rotary_level_at(index: u32) -> f32 {
  return tables[ROTARY_LEVELS + index];
}

// The code of a channel of the rotary part.
fn rotary_field_at(channel: u32) -> u32 {
  let ends = blocks[channel / ROTARY_SCALE_CHANNELS];
  // Where all numbers of a block are its offset, or nearly, the scale is zero.
  var unit = 0.0;
  if (ends.x > 0.0) {
    unit = (tile[LATENT_DIM + channel] - ends.y) / ends.x;
  }
  return symmetric_code_8(unit);
}

// The scale and the offset, zero here, of a block of channels of the rotary part.
fn rotary_block(index: u32) -> vec2f {
  let first = LATENT_DIM + index * ROTARY_SCALE_CHANNELS;
  var least = tile[first];
  var greatest = least;
  for (var i = 1u; i < ROTARY_SCALE_CHANNELS; i++) {
    least = min(least, tile[first + i]);
    greatest = max(greatest, tile[first + i]);
  }
  let offset = 0.0;
  // Rounding keeps the order of numbers: the one farthest from the offset is at an end.
  let largest = max(abs(least - offset), abs(greatest - offset));
  // Squares are relative to the largest magnitude, so that none overflows or vanishes.
  let divisor = select(1.0, largest, largest > 0.0);
  var sum = 0.0;
  for (var i = 0u; i < ROTARY_SCALE_CHANNELS; i++) {
    let share = (tile[first + i] - offset) / divisor;
    sum += share * share;
  }
  return vec2f(magnitude_scale(sum, largest), offset);
}

// Codes the rotary part whose channels are in `tile`: its codes, scales begin at these words of the cache.
fn code_rotary(codes: u32, scales: u32, thread: u32) {
  workgroupBarrier();  // the channels are complete, and nobody reads the scales of another part any more
  for (var word = thread; word < ROTARY_SCALE_WORDS; word += THREADS) {
    let low = rotary_block(word * 2u);
    blocks[word * 2u] = low;
    var high = vec2f();
    if (word * 2u + 1u < ROTARY_BLOCKS) {
      high = rotary_block(word * 2u + 1u);
      blocks[word * 2u + 1u] = high;
    }
    cache[scales + word] = pack2x16float(vec2f(low.x, high.x));
  }
  workgroupBarrier();  // every block has its scale
  for (var word = thread; word < ROTARY_WORDS; word += THREADS) {
    cache[codes + word] = pack_word_8(word, ROTARY_DIM);
  }
}

// One token of the middle a block; blocks lie in rows of TILE_TOKENS.
@compute @workgroup_size(128)
fn code_latents(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let token = block.y * TILE_TOKENS + block.x;
  if (token >= sequence[AT_MIDDLE_TOKENS]) {
    return;
  }
  let row = (sequence[AT_SINK_TOKENS] + token) * TOKEN_WORDS;
  for (var word = thread; word < TOKEN_WORDS; word += THREADS) {
    let two = unpack2x16float(keys[row + word]);
    tile[word * 2u] = two.x;
    tile[word * 2u + 1u] = two.y;
  }
  turn(0u, LATENT_DIM, LATENT_SPAN, LATENT_HADAMARD_SCALE, thread);
  code_latent(
    sequence[AT_LATENT_CODES] + token * LATENT_WORDS,
    sequence[AT_LATENT_SCALES] + token * LATENT_SCALE_WORDS,
    sequence[AT_LATENT_OFFSETS] + token * LATENT_SCALE_WORDS,
    thread,
  );
  code_rotary(
    sequence[AT_ROTARY_KEYS] + token * ROTARY_WORDS,
    sequence[AT_ROTARY_SCALES] + token * ROTARY_SCALE_WORDS,
    thread,
  );
}
