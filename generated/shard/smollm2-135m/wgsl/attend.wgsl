// attend: One work item a block: a KV head of a sequence over its share of the tokens, for all query heads of the group.
// Stage attend of scheme shard for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16, warps = 1, coefficientHalves = 1

const HEAD_DIM = 64u;  // channels of a head
const PAIRS = 32u;  // rotary pairs of a head: channels j and j + PAIRS
const HEADS = 9u;  // query heads
const KV_HEADS = 3u;  // KV heads
const GROUP_SIZE = 3u;  // query heads that share a KV head
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const RANK_WORDS = 8u;  // words of a basis row, four int8 columns each
const KEY_ROW_WORDS = 4u;  // words of one token's key fields
const HADAMARD_BLOCK = 64u;  // channels of one Hadamard block
const HADAMARD_SCALE = 0.125;  // 1 / sqrt(HADAMARD_BLOCK)
const CHANNELS = 4u;  // channels of a value vector
const ENTRIES = 256u;  // codebook entries
const VALUE_ROW_WORDS = 12u;  // words of one token's value indices, four each
const STREAM_WORDS = 16u;  // words of one coded stream vector
const NORM_WORDS = 2u;  // words of one stream token's norms, two each
const WINDOW = 64u;  // slots of the exact ring at the end
const ANGLE_TILE = 64u;  // rows of the fine angle table
const FINE_ANGLES = 256u;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
const COARSE_ANGLES = 4352u;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
const RECORD_WORDS = 64u;  // words of a sequence record
const AT_SINK_TOKENS = 0u;  // record: exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // record: compressed tokens of the prompt
const AT_STREAM_TOKENS = 2u;  // record: generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // record: exact tokens in the ring
const AT_WINDOW_START = 4u;  // record: slot of the ring's oldest token
const AT_SINK_KEYS = 8u;  // record: where f16 [sinks][3 KV heads][64], after RoPE begins
const AT_SINK_VALUES = 9u;  // record: where f16 [sinks][3 KV heads][64] begins
const AT_WINDOW_KEYS = 10u;  // record: where f16 ring [window][3 KV heads][64], after RoPE begins
const AT_WINDOW_VALUES = 11u;  // record: where f16 ring [window][3 KV heads][64] begins
const AT_KEY_CODES = 12u;  // record: where 4-bit fields [middle][32 components] begins
const AT_KEY_SCALES = 13u;  // record: where f16 [32 components] begins
const AT_KEY_BASIS = 14u;  // record: where i8 [192 channels][32 components] begins
const AT_KEY_BASIS_SCALES = 15u;  // record: where f16 [32 components] begins
const AT_KEY_MEAN = 16u;  // record: where f16 [192 channels], before RoPE begins
const AT_VALUE_CODES = 17u;  // record: where u8 [middle][48 vectors] begins
const AT_CODEBOOK = 18u;  // record: where f16 [256 entries][4] begins
const AT_CHANNEL_MAX = 19u;  // record: where f16 [3 KV heads][64], after Hadamard begins
const AT_STREAM_KEY_CODES = 20u;  // record: where 8-bit fields [stream][3 KV heads][64], after RoPE and Hadamard begins
const AT_STREAM_KEY_NORMS = 21u;  // record: where f16 [stream][3 KV heads] begins
const AT_STREAM_VALUE_CODES = 22u;  // record: where 8-bit fields [stream][3 KV heads][64], after Hadamard begins
const AT_STREAM_VALUE_NORMS = 23u;  // record: where f16 [stream][3 KV heads] begins
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 16u;  // of this schedule
const WORK_ITEM_WORDS = 4u;  // of this schedule
const PARTIAL_WORDS = 396u;  // of this schedule
const CHUNK_UNIT = 16u;  // of this schedule
const TILE_ROWS = 64u;  // of this schedule
const GROUP_COMPONENTS = 32u;  // of this schedule
const SCORE_SLICES = 5u;  // of this schedule
const SCORE_SCALE = 0.180336878;  // of this schedule

// records of all sequences
@group(0) @binding(0) var<storage, read> sequences: array<u32>;
// [work items][sequence, KV head, split, splits]; splits of a row are neighbours
@group(0) @binding(1) var<storage, read> work: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read> cache: array<u32>;
// f16 [sequences][9 heads][64], after RoPE
@group(0) @binding(3) var<storage, read> query: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(4) var<storage, read> tables: array<f32>;
// [work items][2: Hadamard space, exact][3 query heads][64 output, maximum, weight sum]
@group(0) @binding(5) var<storage, read_write> partials: array<f32>;

// dsl/codecs/unrope.ts:16 rotatePair
// Turns the pair (a, b) by the angle whose cosine and sine are given.
fn rotate_pair(a: f32, b: f32, angle: vec2f) -> vec2f {
  return vec2f(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
fn add_angles(coarse: vec2f, fine: vec2f) -> vec2f {
  return vec2f(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// dsl/codecs/pca.ts:135 signedByte
// Byte `lane` (0 to 3) of a word as a signed integer.
fn signed_byte(word: u32, lane: u32) -> f32 {
  let byte: i32 = i32((word >> (lane * 8u)) & 255u);
  return f32(select(byte, byte - 256, byte > 127));
}

// dsl/packing.ts:32 unpackField, bits = 4
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_4(index: u32) -> u32 {
  let position: u32 = index * 4u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = key_word_at(word) >> shift;
  return value & 15u;
}

// dsl/codecs/pca.ts:113 coefficientValue, bits = 4
// The integer a field stands for; times the component's scale it is the coefficient.
fn coefficient_value_4(field: u32) -> f32 {
  return f32(i32(field) - 8);
}

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
fn butterfly(a: f32, b: f32) -> vec2f {
  return vec2f(a + b, a - b);
}

// dsl/codecs/lloydMax.ts:77 levelValue
// The value of a code on the unit sphere.
fn level_value(code: u32) -> f32 {
  return level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 8
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_8(index: u32) -> u32 {
  let position: u32 = index * 8u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = stream_word_at(word) >> shift;
  return value & 255u;
}

// Tokens come in tiles. The keys of a tile are rebuilt in workgroup memory, four tokens in a vector; then every thread
// owns one channel of the output and keeps it in registers, with the running softmax of every query head.
// Two passes: middle and stream, whose values lie in Hadamard space, then the exact tokens. Each leaves one partial.

const TILE_QUADS = TILE_TOKENS / 4u;
const PAIR_QUADS = (TILE_QUADS + 1u) / 2u;
const SCORE_QUADS = GROUP_SIZE * TILE_QUADS;
const CODEBOOK_WORDS = ENTRIES * CHANNELS / 2u;
const PARTIAL_ROW = HEAD_DIM + 2u;  // output, then maximum and weight sum
const EMPTY = -1e30;  // below every score, and finite: WGSL has no infinity

const MIDDLE = 0u;
const STREAM = 1u;
const SINK = 2u;
const RECENT = 3u;

alias tile_quad = vec4f;
fn to_tile(quad: vec4f) -> tile_quad {
  return quad;
}

// [row][four tokens]: rows are the components of one key group while keys are rebuilt, then the channels of the keys.
var<workgroup> tile: array<tile_quad, TILE_ROWS * TILE_QUADS>;
var<workgroup> scores: array<vec4f, SCORE_SLICES * SCORE_QUADS>;  // [slice of the channels][head][four tokens]
var<workgroup> component_scales: array<f32, GROUP_COMPONENTS>;
var<workgroup> codebook: array<u32, CODEBOOK_WORDS>;

var<private> channel: u32;  // the thread's own; idle threads repeat the last one, and store nothing
var<private> owner: bool;
var<private> record: u32;  // of the sequence, in words
var<private> kv_head: u32;
var<private> accumulated: array<f32, GROUP_SIZE>;
var<private> maxima: array<f32, GROUP_SIZE>;
var<private> weight_sums: array<f32, GROUP_SIZE>;

// Numbers of all query heads of the group, [channel][head]; each head is a vector that can be transformed as one.
var<workgroup> head_rows: array<f32, HEAD_DIM * GROUP_SIZE>;

// Hadamard transform of every head, in place. Its own inverse.
fn transform_heads(thread: u32) {
  for (var half = 1u; half < HADAMARD_BLOCK; half *= 2u) {
    workgroupBarrier();  // the rows are loaded, or the previous stage is complete
    for (var i = thread; i < PAIRS * GROUP_SIZE; i += THREADS) {
      let pair = i / GROUP_SIZE;
      let upper = (pair / half * 2u * half + pair % half) * GROUP_SIZE + i % GROUP_SIZE;
      let lower = upper + half * GROUP_SIZE;
      let turned = butterfly(head_rows[upper], head_rows[lower]);
      head_rows[upper] = turned.x;
      head_rows[lower] = turned.y;
    }
  }
  workgroupBarrier();  // the last stage is complete
  for (var i = thread; i < HEAD_DIM * GROUP_SIZE; i += THREADS) {
    head_rows[i] *= HADAMARD_SCALE;
  }
  workgroupBarrier();  // the rows are scaled
}

// Word of the sequence's record.
fn field(index: u32) -> u32 {
  return sequences[record + index];
}

fn half_of(word: u32, index: u32) -> f32 {
  let pair = unpack2x16float(word);
  return select(pair.x, pair.y, index % 2u == 1u);
}

// Element of an f16 array in the cache.
fn half_at(words: u32, index: u32) -> f32 {
  return half_of(cache[words + index / 2u], index);
}

fn level_at(index: u32) -> f32 {
  return tables[index];
}

var<private> key_words: u32;
fn key_word_at(index: u32) -> u32 {
  return cache[key_words + index];
}

var<private> stream_words: u32;
fn stream_word_at(index: u32) -> u32 {
  return cache[stream_words + index];
}

// Components of a key group; none when the group is not stored.
fn stored_components(group: u32) -> u32 {
  switch group {
    case 0u: { return 32u; }
    default: { return 0u; }
  }
}

fn first_component(group: u32) -> u32 {
  switch group {
    case 0u: { return 0u; }
    default: { return 0u; }
  }
}

// Code of component `i` of a key group, from the row of a token.
fn key_code(group: u32, row: u32, i: u32) -> f32 {
  switch group {
    case 0u: {
      key_words = row + 0u;
      return coefficient_value_4(unpack_field_4(i));
    }
    default: { return 0.0; }
  }
}

// Codes of component `i` for four tokens from `token` on; zero from `end` on, where nothing is stored.
fn key_codes(group: u32, token: u32, end: u32, i: u32) -> vec4f {
  let rows = field(AT_KEY_CODES);
  var codes = vec4f(0.0);
  for (var k = 0u; k < min(4u, end - min(token, end)); k++) {
    codes[k] = key_code(group, rows + (token + k) * KEY_ROW_WORDS, i);
  }
  return codes;
}

// Cosine and sine of a position's angle, from one row of the coarse and one of the fine table.
fn angle_of(position: u32, pair: u32) -> vec2f {
  let coarse = COARSE_ANGLES + ((position / ANGLE_TILE) * PAIRS + pair) * 2u;
  let fine = FINE_ANGLES + ((position % ANGLE_TILE) * PAIRS + pair) * 2u;
  return add_angles(vec2f(tables[coarse], tables[coarse + 1u]), vec2f(tables[fine], tables[fine + 1u]));
}

// The keys of a tile of middle tokens: mean plus basis times coefficients, rotated to their positions. A thread owns
// both channels of one rotary pair, for every second vector of tokens, so that it can rotate in registers.
fn build_middle_keys(first: u32, end: u32, thread: u32) {
  let pair = thread % PAIRS;
  let side = thread / PAIRS;  // first vector of tokens; past 1 the thread is idle
  let upper = kv_head * HEAD_DIM + pair;
  let lower = upper + PAIRS;
  let basis = field(AT_KEY_BASIS);
  var a: array<vec4f, PAIR_QUADS>;
  var b: array<vec4f, PAIR_QUADS>;
  for (var n = 0u; n < PAIR_QUADS; n++) {
    a[n] = vec4f(half_at(field(AT_KEY_MEAN), upper));
    b[n] = vec4f(half_at(field(AT_KEY_MEAN), lower));
  }
  for (var group = 0u; group < 1u; group++) {
    let components = stored_components(group);
    let component = first_component(group);
    workgroupBarrier();  // every thread has read what was in the tile
    for (var i = thread; i < components * TILE_QUADS; i += THREADS) {
      let q = i / components;
      tile[i % components * TILE_QUADS + q] = to_tile(key_codes(group, first + q * 4u, end, i % components));
    }
    for (var i = thread; i < components; i += THREADS) {
      component_scales[i] = half_at(field(AT_KEY_SCALES), component + i) * half_at(field(AT_KEY_BASIS_SCALES), component + i);
    }
    workgroupBarrier();  // codes and scales of the group are staged
    for (var word = 0u; word < components / 4u; word++) {
      let upper_bytes = cache[basis + upper * RANK_WORDS + component / 4u + word];
      let lower_bytes = cache[basis + lower * RANK_WORDS + component / 4u + word];
      for (var k = 0u; k < 4u; k++) {
        let i = word * 4u + k;
        let upper_weight = signed_byte(upper_bytes, k) * component_scales[i];
        let lower_weight = signed_byte(lower_bytes, k) * component_scales[i];
        for (var n = 0u; n < PAIR_QUADS; n++) {
          let codes = vec4f(tile[i * TILE_QUADS + min(n * 2u + side, TILE_QUADS - 1u)]);
          a[n] += upper_weight * codes;
          b[n] += lower_weight * codes;
        }
      }
    }
  }
  workgroupBarrier();  // every thread has read the last group: keys take its place
  for (var n = 0u; n < PAIR_QUADS; n++) {
    let q = n * 2u + side;
    for (var k = 0u; k < 4u; k++) {
      // Tokens past the end turn as the last one does, so that the angle tables are read where they are written.
      let position = field(AT_SINK_TOKENS) + min(first + q * 4u + k, end - 1u);
      let turned = rotate_pair(a[n][k], b[n][k], angle_of(position, pair));
      a[n][k] = turned.x;
      b[n][k] = turned.y;
    }
    if (side < 2u && q < TILE_QUADS) {
      tile[pair * TILE_QUADS + q] = to_tile(a[n]);
      tile[(pair + PAIRS) * TILE_QUADS + q] = to_tile(b[n]);
    }
  }
}

fn store_keys(keys: ptr<function, array<vec4f, TILE_QUADS>>) {
  if (owner) {
    for (var q = 0u; q < TILE_QUADS; q++) {
      tile[channel * TILE_QUADS + q] = to_tile((*keys)[q]);
    }
  }
}

// The thread's channel of a stream token, in Hadamard space.
fn stream_channel(token: u32, codes: u32, norms: u32) -> f32 {
  stream_words = field(codes) + (token * KV_HEADS + kv_head) * STREAM_WORDS;
  let norm = half_at(field(norms) + token * NORM_WORDS, kv_head);
  return level_value(unpack_field_8(channel)) * norm;
}

// The thread's channel of a token in an exact part.
fn exact_channel(row: u32, part: u32) -> f32 {
  return half_at(field(part), row * WIDTH + kv_head * HEAD_DIM + channel);
}

fn ring_slot(token: u32) -> u32 {
  return (field(AT_WINDOW_START) + token) % WINDOW;
}

fn key_channel(segment: u32, token: u32) -> f32 {
  switch segment {
    case STREAM: { return stream_channel(token, AT_STREAM_KEY_CODES, AT_STREAM_KEY_NORMS); }
    case SINK: { return exact_channel(token, AT_SINK_KEYS); }
    default: { return exact_channel(ring_slot(token), AT_WINDOW_KEYS); }
  }
}

// A middle value is left without its channel's maximum, which multiplies the sum once.
fn value_channel(segment: u32, token: u32) -> f32 {
  switch segment {
    case MIDDLE: {
      let vector = (kv_head * HEAD_DIM + channel) / CHANNELS;
      let word = cache[field(AT_VALUE_CODES) + token * VALUE_ROW_WORDS + vector / 4u];
      let entry = (word >> (vector % 4u * 8u)) & 0xffu;
      let element = entry * CHANNELS + channel % CHANNELS;
      return half_of(codebook[element / 2u], element);
    }
    case STREAM: { return stream_channel(token, AT_STREAM_VALUE_CODES, AT_STREAM_VALUE_NORMS); }
    case SINK: { return exact_channel(token, AT_SINK_VALUES); }
    default: { return exact_channel(ring_slot(token), AT_WINDOW_VALUES); }
  }
}

// Puts the query heads of the group into head_rows. Not before every thread is done with what was there.
fn load_query(sequence: u32, thread: u32) {
  let base = (sequence * HEADS + kv_head * GROUP_SIZE) * PAIRS;  // two channels a word
  for (var i = thread; i < GROUP_SIZE * PAIRS; i += THREADS) {
    let two = unpack2x16float(query[base + i]);
    let row = i % PAIRS * 2u * GROUP_SIZE + i / PAIRS;
    head_rows[row] = two.x;
    head_rows[row + GROUP_SIZE] = two.y;
  }
}

// Scores of the tile in base-2 exponents, EMPTY past `count` tokens.
fn score_tile(count: u32, thread: u32) {
  workgroupBarrier();  // the keys of the tile are complete
  for (var i = thread; i < SCORE_SLICES * SCORE_QUADS; i += THREADS) {
    let head = i % SCORE_QUADS / TILE_QUADS;
    let q = i % TILE_QUADS;
    var sum = vec4f(0.0);
    for (var c = i / SCORE_QUADS; c < HEAD_DIM; c += SCORE_SLICES) {
      sum += head_rows[c * GROUP_SIZE + head] * vec4f(tile[c * TILE_QUADS + q]);
    }
    scores[i] = sum;
  }
  workgroupBarrier();  // every slice of every score is summed
  for (var i = thread; i < SCORE_QUADS; i += THREADS) {
    var sum = scores[i];
    for (var slice = 1u; slice < SCORE_SLICES; slice++) {
      sum += scores[slice * SCORE_QUADS + i];
    }
    scores[i] = masked(sum, i % TILE_QUADS, count);
  }
  workgroupBarrier();  // scores are complete
}

fn masked(sum: vec4f, q: u32, count: u32) -> vec4f {
  return select(vec4f(EMPTY), sum * SCORE_SCALE, vec4u(q * 4u) + vec4u(0u, 1u, 2u, 3u) < vec4u(count));
}

// Tokens begin..end of one segment, added to the running softmax of every head.
fn attend_segment(segment: u32, begin: u32, end: u32, thread: u32) {
  for (var first = begin; first < end; first += TILE_TOKENS) {
    let count = min(TILE_TOKENS, end - first);
    if (segment == MIDDLE) {
      build_middle_keys(first, end, thread);
    } else {
      var keys = array<vec4f, TILE_QUADS>();
      for (var t = 0u; t < count; t++) {
        keys[t / 4u][t % 4u] = key_channel(segment, first + t);
      }
      store_keys(&keys);
    }
    var values = array<vec4f, TILE_QUADS>();  // zero past the end: nothing is stored there
    for (var t = 0u; t < count; t++) {
      values[t / 4u][t % 4u] = value_channel(segment, first + t);
    }
    score_tile(count, thread);
    for (var h = 0u; h < GROUP_SIZE; h++) {
      var top = maxima[h];
      for (var q = 0u; q < TILE_QUADS; q++) {
        let s = scores[h * TILE_QUADS + q];
        top = max(top, max(max(s.x, s.y), max(s.z, s.w)));
      }
      let shrink = exp2(maxima[h] - top);
      var weight_sum = weight_sums[h] * shrink;
      var sum = accumulated[h] * shrink;
      for (var q = 0u; q < TILE_QUADS; q++) {
        let weights = exp2(scores[h * TILE_QUADS + q] - top);
        weight_sum += dot(weights, vec4f(1.0));
        sum += dot(weights, values[q]);
      }
      maxima[h] = top;
      weight_sums[h] = weight_sum;
      accumulated[h] = sum;
    }
  }
}

fn start_pass() {
  for (var h = 0u; h < GROUP_SIZE; h++) {
    accumulated[h] = 0.0;
    maxima[h] = EMPTY;
    weight_sums[h] = 0.0;
  }
}

// Stores the partial result of a pass (0 Hadamard space, 1 exact).
fn store_partial(item: u32, space: u32, thread: u32) {
  for (var h = 0u; h < GROUP_SIZE; h++) {
    let row = item * PARTIAL_WORDS + (space * GROUP_SIZE + h) * PARTIAL_ROW;
    if (owner) {
      partials[row + channel] = accumulated[h];
    }
    if (thread == 0u) {
      partials[row + HEAD_DIM] = maxima[h];
      partials[row + HEAD_DIM + 1u] = weight_sums[h];
    }
  }
}

@compute @workgroup_size(64)
fn attend(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let item = block.x;
  let sequence = work[item * WORK_ITEM_WORDS];
  let split = work[item * WORK_ITEM_WORDS + 2u];
  let splits = work[item * WORK_ITEM_WORDS + 3u];
  record = sequence * RECORD_WORDS;
  kv_head = work[item * WORK_ITEM_WORDS + 1u];
  channel = min(thread, HEAD_DIM - 1u);
  owner = thread < HEAD_DIM;

  // Where the segments end, in the order of tokens, and the share of this block.
  let lengths = sequence * RECORD_WORDS;
  let sinks_end = sequences[lengths + AT_SINK_TOKENS];
  let middle_end = sinks_end + sequences[lengths + AT_MIDDLE_TOKENS];
  let stream_end = middle_end + sequences[lengths + AT_STREAM_TOKENS];
  let total = stream_end + sequences[lengths + AT_WINDOW_TOKENS];
  let chunk = ((total + splits - 1u) / splits + CHUNK_UNIT - 1u) / CHUNK_UNIT * CHUNK_UNIT;
  let begin = min(split * chunk, total);
  let end = min(begin + chunk, total);

  // Pass 0: Hadamard space.
  start_pass();
  let middle_from = clamp(begin, sinks_end, middle_end);
  let middle_to = clamp(end, sinks_end, middle_end);
  if (middle_from < middle_to) {
    for (var i = thread; i < CODEBOOK_WORDS; i += THREADS) {
      codebook[i] = cache[field(AT_CODEBOOK) + i];
    }
    load_query(sequence, thread);
    workgroupBarrier();  // codebook and query are loaded
    attend_segment(MIDDLE, middle_from - sinks_end, middle_to - sinks_end, thread);
    let channel_max = half_at(field(AT_CHANNEL_MAX), kv_head * HEAD_DIM + channel);
    for (var h = 0u; h < GROUP_SIZE; h++) {
      accumulated[h] *= channel_max;
    }
  }
  let stream_from = clamp(begin, middle_end, stream_end);
  let stream_to = clamp(end, middle_end, stream_end);
  if (stream_from < stream_to) {
    load_query(sequence, thread);
    transform_heads(thread);  // q.k = (Hq).(Hk): the keys stay as they are stored
    attend_segment(STREAM, stream_from - middle_end, stream_to - middle_end, thread);
  }
  store_partial(item, 0u, thread);

  // Pass 1: exact tokens, at both ends of the sequence.
  start_pass();
  if (begin < sinks_end || end > stream_end) {
    load_query(sequence, thread);
  }
  attend_segment(SINK, min(begin, sinks_end), min(end, sinks_end), thread);
  attend_segment(RECENT, clamp(begin, stream_end, total) - stream_end, clamp(end, stream_end, total) - stream_end, thread);
  store_partial(item, 1u, thread);
}
