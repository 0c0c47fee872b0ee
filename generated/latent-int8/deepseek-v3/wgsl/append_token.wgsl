// append_token: One block a sequence. A full window gives its oldest token to the stream; a full stream refuses the new token and counts it.
// Stage append of scheme latent-int8 for deepseek-v3. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// latent: perToken(symmetric, 8 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64

const LATENT_DIM = 512u;  // channels of a latent, the first of a token
const ROTARY_DIM = 64u;  // channels of a rotary part
const TOKEN_DIM = 576u;  // channels of a token: latent, then rotary part
const TOKEN_WORDS = 288u;  // words of a token in f16
const LATENT_SPAN = 512u;  // channels of one Hadamard block of a latent
const LATENT_HADAMARD_SCALE = 0.0441941731;  // 1 / sqrt(LATENT_SPAN)
const ROTARY_SPAN = 64u;  // channels of one Hadamard block of a rotary part
const ROTARY_HADAMARD_SCALE = 0.125;  // 1 / sqrt(ROTARY_SPAN)
const STREAM_LATENT_WORDS = 128u;  // words of a stream token's latent
const STREAM_ROTARY_WORDS = 16u;  // words of a stream token's rotary part
const STREAM_ROTARY_LEVELS = 768u;  // offset in the tables: stream levels of rotary parts
const WINDOW = 64u;  // slots of the exact ring at the end
const RECORD_WORDS = 64u;  // words of a sequence record
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_WINDOW_START = 4u;  // in the record, slot of the ring's oldest token
const AT_STREAM_CAPACITY = 6u;  // in the record, tokens the stream has room for
const AT_REFUSED_TOKENS = 7u;  // in the record, tokens refused because the stream was full
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][512 latent, 64 rotary after RoPE]
const AT_STREAM_LATENTS = 40u;  // in the record, first word of streamLatents: 8-bit fields [stream][512], after Hadamard
const AT_STREAM_ROTARY_KEYS = 41u;  // in the record, first word of streamRotaryKeys: 8-bit fields [stream][64], after Hadamard
const AT_STREAM_NORMS = 42u;  // in the record, first word of streamNorms: f16 [stream][of the latent, of the rotary part]
const THREADS = 128u;  // threads of a block

// records of all sequences; this kernel advances their lengths
@group(0) @binding(0) var<storage, read_write> sequences: array<u32>;
// f16 [sequences][512 latent, 64 rotary after RoPE]
@group(0) @binding(1) var<storage, read> new_keys: array<u32>;
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

// dsl/codecs/uniform.ts:72 magnitudeScale
// The largest magnitude as f16, never infinite.
fn magnitude_scale(u_sum_of_squares: f32, max_abs: f32) -> f32 {
  return round_to_half(min(max_abs, 65504.0));
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
      let value: u32 = streamed_field_at(field);
      if (position >= first_bit) {
        packed = packed | (value << (position - first_bit));
      } else {
        packed = packed | (value >> (first_bit - position));
      }
    }
  }
  return packed;
}

// dsl/packing.ts:11 packWord, bits = 8
// Builds one 32-bit word of a little-endian bit-field row: field `i` occupies bits `[i*bits, (i+1)*bits)` of the row.
fn pack_word_8_with_turned_field_at(word: u32, count: u32) -> u32 {
  let first_bit: u32 = word * 32u;
  let first: u32 = first_bit / 8u;
  var packed: u32 = 0u;
  for (var i: u32 = 0u; i < 5u; i++) {
    let field: u32 = first + i;
    let position: u32 = field * 8u;
    if (field < count && position < first_bit + 32u) {
      let value: u32 = turned_field_at(field);
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

// Lengths before the new token: tokens of the window, its oldest slot, tokens of the stream, room of the stream.
var<workgroup> lengths: vec4u;
var<workgroup> tile: array<f32, TOKEN_DIM>;
var<private> norm: f32;  // of the part that is coded

var<workgroup> partial: array<f32, THREADS>;

// Sum of one value a thread; the number of threads alone decides the order. Every thread must call it and gets the sum.
fn block_sum(thread: u32, value: f32) -> f32 {
  partial[thread] = value;
  for (var count = THREADS; count > 1u; count = (count + 1u) / 2u) {
    // A round reads what other threads wrote in the round before.
    workgroupBarrier();
    let pairs = count / 2u;
    if (thread < pairs) {
      partial[thread] += partial[thread + count - pairs];
    }
  }
  // Waits for the last round, and keeps `partial` until every thread has read it.
  return workgroupUniformLoad(&partial[0]);
}

// Largest of one value a thread. Every thread must call it and gets the result.
fn block_max(thread: u32, value: f32) -> f32 {
  partial[thread] = value;
  for (var count = THREADS; count > 1u; count = (count + 1u) / 2u) {
    // A round reads what other threads wrote in the round before.
    workgroupBarrier();
    let pairs = count / 2u;
    if (thread < pairs) {
      partial[thread] = max(partial[thread], partial[thread + count - pairs]);
    }
  }
  // Waits for the last round, and keeps `partial` until every thread has read it.
  return workgroupUniformLoad(&partial[0]);
}

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

fn streamed_level_at(index: u32) -> f32 {
  return tables[index];
}

// The code of a channel of the latent, over its norm.
fn streamed_field_at(channel: u32) -> u32 {
  var unit = 0.0;
  if (norm > 0.0) {
    unit = tile[0u + channel] / norm;
  }
  return symmetric_code_8(unit);
}

// Codes the latent whose channels are in `tile` into the words from `codes` on, after the Hadamard transform. All
// threads must call it, and get the norm.
fn stream_latent(codes: u32, thread: u32) -> f32 {
  turn(0u, LATENT_DIM, LATENT_SPAN, LATENT_HADAMARD_SCALE, thread);
  var most = 0.0;
  for (var channel = thread; channel < LATENT_DIM; channel += THREADS) {
    most = max(most, abs(tile[0u + channel]));
  }
  // Squares are taken relative to the largest magnitude, so that none overflows or vanishes.
  let largest = block_max(thread, most);
  let divisor = select(1.0, largest, largest > 0.0);
  var sum = 0.0;
  for (var channel = thread; channel < LATENT_DIM; channel += THREADS) {
    let share = tile[0u + channel] / divisor;
    sum += share * share;
  }
  norm = magnitude_scale(block_sum(thread, sum), largest);
  for (var word = thread; word < STREAM_LATENT_WORDS; word += THREADS) {
    cache[codes + word] = pack_word_8(word, LATENT_DIM);
  }
  return norm;
}

fn turned_level_at(index: u32) -> f32 {
  return tables[STREAM_ROTARY_LEVELS + index];
}

// The code of a channel of the rotary part, over its norm.
fn turned_field_at(channel: u32) -> u32 {
  var unit = 0.0;
  if (norm > 0.0) {
    unit = tile[LATENT_DIM + channel] / norm;
  }
  return symmetric_code_8(unit);
}

// Codes the rotary part whose channels are in `tile` into the words from `codes` on, after the Hadamard transform. All
// threads must call it, and get the norm.
fn stream_rotary(codes: u32, thread: u32) -> f32 {
  turn(LATENT_DIM, ROTARY_DIM, ROTARY_SPAN, ROTARY_HADAMARD_SCALE, thread);
  var most = 0.0;
  for (var channel = thread; channel < ROTARY_DIM; channel += THREADS) {
    most = max(most, abs(tile[LATENT_DIM + channel]));
  }
  // Squares are taken relative to the largest magnitude, so that none overflows or vanishes.
  let largest = block_max(thread, most);
  let divisor = select(1.0, largest, largest > 0.0);
  var sum = 0.0;
  for (var channel = thread; channel < ROTARY_DIM; channel += THREADS) {
    let share = tile[LATENT_DIM + channel] / divisor;
    sum += share * share;
  }
  norm = magnitude_scale(block_sum(thread, sum), largest);
  for (var word = thread; word < STREAM_ROTARY_WORDS; word += THREADS) {
    cache[codes + word] = pack_word_8_with_turned_field_at(word, ROTARY_DIM);
  }
  return norm;
}

// One block a sequence. The lengths decide the way through; they change once, at the end.
@compute @workgroup_size(128)
fn append_token(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let record = block.x * RECORD_WORDS;
  if (thread == 0u) {
    lengths = vec4u(
      sequences[record + AT_WINDOW_TOKENS],
      sequences[record + AT_WINDOW_START],
      sequences[record + AT_STREAM_TOKENS],
      sequences[record + AT_STREAM_CAPACITY],
    );
  }
  // All threads take the same way: the barriers below need that.
  let before = workgroupUniformLoad(&lengths);
  let window_tokens = before.x;
  let start = before.y;
  let stream_tokens = before.z;
  let is_full = window_tokens >= WINDOW;
  if (is_full && stream_tokens >= before.w) {
    if (thread == 0u) {
      sequences[record + AT_REFUSED_TOKENS] += 1u;
    }
    return;
  }
  // The next slot of a full ring is that of its oldest token.
  let slot = sequences[record + AT_WINDOW_KEYS] + ((start + window_tokens) % WINDOW) * TOKEN_WORDS;
  if (is_full) {
    for (var word = thread; word < TOKEN_WORDS; word += THREADS) {
      let two = unpack2x16float(cache[slot + word]);
      tile[word * 2u] = two.x;
      tile[word * 2u + 1u] = two.y;
    }
    let rotary = sequences[record + AT_STREAM_ROTARY_KEYS] + stream_tokens * STREAM_ROTARY_WORDS;
    let latent = sequences[record + AT_STREAM_LATENTS] + stream_tokens * STREAM_LATENT_WORDS;
    let latent_norm = stream_latent(latent, thread);
    let rotary_norm = stream_rotary(rotary, thread);
    if (thread == 0u) {
      cache[sequences[record + AT_STREAM_NORMS] + stream_tokens] = pack2x16float(vec2f(latent_norm, rotary_norm));
    }
    // The oldest token has been read before the new one takes its slot.
    storageBarrier();
  }
  for (var word = thread; word < TOKEN_WORDS; word += THREADS) {
    cache[slot + word] = new_keys[block.x * TOKEN_WORDS + word];
  }
  // The token is in place before the lengths say so.
  storageBarrier();
  if (thread > 0u) {
    return;
  }
  if (is_full) {
    sequences[record + AT_WINDOW_START] = (start + 1u) % WINDOW;
    sequences[record + AT_STREAM_TOKENS] = stream_tokens + 1u;
  } else {
    sequences[record + AT_WINDOW_TOKENS] = window_tokens + 1u;
  }
}
