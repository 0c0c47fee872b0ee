// append_token: One block a sequence. A full window gives its oldest token to the stream; a full stream refuses the new token and counts it.
// Stage append of scheme tilt-fast for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

const HEAD_DIM = 128u;  // channels of a head
const PAIRS = 64u;  // pairs of channels of a head; those past the rotary ones have angle zero
const KV_HEADS = 8u;  // KV heads
const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const HADAMARD_BLOCK = 128u;  // channels of one Hadamard block
const HADAMARD_SCALE = 0.0883883461;  // 1 / sqrt(HADAMARD_BLOCK)
const STREAM_WORDS = 32u;  // words of one coded stream vector
const NORM_WORDS = 4u;  // words of one stream token's norms, two each
const WINDOW = 64u;  // slots of the exact ring at the end
const RECORD_WORDS = 64u;  // words of a sequence record
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_WINDOW_START = 4u;  // in the record, slot of the ring's oldest token
const AT_STREAM_CAPACITY = 6u;  // in the record, tokens the stream has room for
const AT_REFUSED_TOKENS = 7u;  // in the record, tokens refused because the stream was full
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][8 KV heads][128], after RoPE
const AT_WINDOW_VALUES = 13u;  // in the record, first word of windowValues: f16 ring [window][8 KV heads][128]
const AT_STREAM_KEY_CODES = 22u;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][8 KV heads][128], after RoPE and Hadamard
const AT_STREAM_KEY_NORMS = 23u;  // in the record, first word of streamKeyNorms: f16 [stream][8 KV heads]
const AT_STREAM_VALUE_CODES = 24u;  // in the record, first word of streamValueCodes: 8-bit fields [stream][8 KV heads][128], after Hadamard
const AT_STREAM_VALUE_NORMS = 25u;  // in the record, first word of streamValueNorms: f16 [stream][8 KV heads]
const THREADS = 128u;  // threads of a block

// records of all sequences; this kernel advances their lengths
@group(0) @binding(0) var<storage, read_write> sequences: array<u32>;
// f16 [sequences][8 KV heads][128], after RoPE
@group(0) @binding(1) var<storage, read> new_keys: array<u32>;
// f16 [sequences][8 KV heads][128]
@group(0) @binding(2) var<storage, read> new_values: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(3) var<storage, read> tables: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(4) var<storage, read_write> cache: array<u32>;

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

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
fn butterfly(a: f32, b: f32) -> vec2f {
  return vec2f(a + b, a - b);
}

// dsl/codecs/lloydMax.ts:58 vectorNorm
// The norm of the vector, stored as f16: the codebook is for the unit sphere.
fn vector_norm(sum_of_squares: f32, max_abs: f32) -> f32 {
  return round_to_half(min(sqrt(sum_of_squares) * max_abs, 65504.0));
}

// dsl/codecs/lloydMax.ts:65 nearestLevel, bits = 8
// Index of the level nearest to `x` (a channel over its norm), by bisection of the midpoints.
fn nearest_level_8(x: f32) -> u32 {
  var code: u32 = 0u;
  for (var step: u32 = 0u; step < 8u; step++) {
    let probe: u32 = code + (1u << (7u - step));
    if (x * 2.0 > level_at(probe - 1u) + level_at(probe)) {
      code = probe;
    }
  }
  return code;
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
      let value: u32 = stream_field_at(field);
      if (position >= first_bit) {
        packed = packed | (value << (position - first_bit));
      } else {
        packed = packed | (value >> (first_bit - position));
      }
    }
  }
  return packed;
}

const HEAD_WORDS = HEAD_DIM / 2u;
const ROW_WORDS = WIDTH / 2u;

// Lengths before the new token: tokens of the window, its oldest slot, tokens of the stream, room of the stream.
var<workgroup> lengths: vec4u;
var<workgroup> codes: array<u32, HEAD_DIM>;

fn level_at(i: u32) -> f32 {
  return tables[i];
}

fn stream_field_at(i: u32) -> u32 {
  return codes[i];
}

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

var<workgroup> vector: array<f32, HEAD_DIM>;

// Hadamard transform of `vector` in place, in blocks of HADAMARD_BLOCK channels, without the factor HADAMARD_SCALE.
// Barriers: all threads of the block must call it. It waits for the writes of `vector` before it, and after it every
// thread may read any channel.
fn transform_vector(thread: u32) {
  for (var span = 1u; span < HADAMARD_BLOCK; span *= 2u) {
    // A stage reads channels that other threads wrote in the stage before.
    workgroupBarrier();
    if (thread < PAIRS) {
      let low = (thread / span) * span * 2u + thread % span;
      let turned = butterfly(vector[low], vector[low + span]);
      vector[low] = turned.x;
      vector[low + span] = turned.y;
    }
  }
  // The last stage is complete.
  workgroupBarrier();
}

// Codes the vector of one head, which starts at the word `source` of the cache, into the words from `row` on. Every
// thread must call it and gets the norm.
fn code_vector(source: u32, row: u32, thread: u32) -> f32 {
  if (thread < HEAD_DIM) {
    vector[thread] = unpack2x16float(cache[source + thread / 2u])[thread % 2u];
  }
  transform_vector(thread);
  var channel = 0.0;
  if (thread < HEAD_DIM) {
    channel = vector[thread] * HADAMARD_SCALE;
  }
  // Squares are taken relative to the largest magnitude, so that none overflows or vanishes.
  let largest = block_max(thread, abs(channel));
  var share = 0.0;
  if (largest > 0.0) {
    share = channel / largest;
  }
  let norm = vector_norm(block_sum(thread, share * share), largest);
  var unit = 0.0;
  if (norm > 0.0) {
    unit = channel / norm;
  }
  if (thread < HEAD_DIM) {
    codes[thread] = nearest_level_8(unit);
  }
  // All codes are there before they are packed.
  workgroupBarrier();
  if (thread < STREAM_WORDS) {
    cache[row + thread] = pack_word_8(thread, HEAD_DIM);
  }
  // All codes have been read before those of the next vector take their place.
  workgroupBarrier();
  return norm;
}

// Codes the vectors of all heads of a token into one row of the stream; the norms are stored two a word.
fn code_token(source: u32, codes_row: u32, norms_row: u32, thread: u32) {
  var norms = vec2f();
  for (var head = 0u; head < KV_HEADS; head++) {
    norms[head % 2u] = code_vector(source + head * HEAD_WORDS, codes_row + head * STREAM_WORDS, thread);
    if (head % 2u == 1u || head + 1u == KV_HEADS) {
      if (thread == 0u) {
        cache[norms_row + head / 2u] = pack2x16float(norms);
      }
      norms = vec2f();
    }
  }
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
  let slot_row = ((start + window_tokens) % WINDOW) * ROW_WORDS;
  let slot_keys = sequences[record + AT_WINDOW_KEYS] + slot_row;
  let slot_values = sequences[record + AT_WINDOW_VALUES] + slot_row;
  if (is_full) {
    let codes_row = stream_tokens * KV_HEADS * STREAM_WORDS;
    let norms_row = stream_tokens * NORM_WORDS;
    code_token(
      slot_keys,
      sequences[record + AT_STREAM_KEY_CODES] + codes_row,
      sequences[record + AT_STREAM_KEY_NORMS] + norms_row,
      thread,
    );
    code_token(
      slot_values,
      sequences[record + AT_STREAM_VALUE_CODES] + codes_row,
      sequences[record + AT_STREAM_VALUE_NORMS] + norms_row,
      thread,
    );
    // The oldest token has been read before the new one takes its slot.
    storageBarrier();
  }
  for (var word = thread; word < ROW_WORDS; word += THREADS) {
    cache[slot_keys + word] = new_keys[block.x * ROW_WORDS + word];
    cache[slot_values + word] = new_values[block.x * ROW_WORDS + word];
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
