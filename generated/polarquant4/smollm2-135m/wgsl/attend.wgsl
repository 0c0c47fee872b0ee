// attend: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attend of scheme polarquant4 for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   polar, perChannel(midRise, 4 bits; a scale for 1 channel of 128 tokens)
// values: perToken(asymmetric, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 0, window 128
// tunables: tileTokens = 16

const HEAD_DIM = 64u;  // channels of a head
const PAIRS = 32u;  // pairs of channels of a head; those past the rotary ones have angle zero
const HEADS = 9u;  // query heads
const KV_HEADS = 3u;  // KV heads
const GROUP_SIZE = 3u;  // query heads that share a KV head
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const KEY_ROW_WORDS = 24u;  // words of one token's key fields
const KEY_HEAD_WORDS = 8u;  // words of one head's key fields
const KEY_SCALE_TOKENS = 128u;  // middle tokens that share a scale; 0 for all of them
const KEY_SCALE_CHANNELS = 1u;  // channels of a head that share a scale
const KEY_SCALE_ROW_WORDS = 96u;  // words of a row of scales, two each
const HADAMARD_BLOCK = 64u;  // channels of one Hadamard block
const HADAMARD_SCALE = 0.125;  // 1 / sqrt(HADAMARD_BLOCK)
const VALUE_ROW_WORDS = 24u;  // words of one token's value fields
const VALUE_HEAD_WORDS = 8u;  // words of one head's value fields
const VALUE_SCALE_TOKENS = 1u;  // middle tokens that share a scale; 0 for all of them
const VALUE_SCALE_CHANNELS = 64u;  // channels of a head that share a scale
const VALUE_SCALE_ROW_WORDS = 2u;  // words of a row of scales, two each
const STREAM_WORDS = 8u;  // words of one coded stream vector
const NORM_WORDS = 2u;  // words of one stream token's norms, two each
const WINDOW = 128u;  // slots of the exact ring at the end
const KEY_LEVELS = 16u;  // offset in the tables: values of the codes of keys, over their scales
const VALUE_LEVELS = 32u;  // offset in the tables: values of the codes of values, over their scales
const RECORD_WORDS = 64u;  // words of a sequence record
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_WINDOW_START = 4u;  // in the record, slot of the ring's oldest token
const AT_SLIDING_WINDOW = 8u;  // in the record, tokens that a query sees, itself included; 0 for all
const AT_SINK_KEYS = 10u;  // in the record, first word of sinkKeys: f16 [sinks][3 KV heads][64], after RoPE
const AT_SINK_VALUES = 11u;  // in the record, first word of sinkValues: f16 [sinks][3 KV heads][64]
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][3 KV heads][64], after RoPE
const AT_WINDOW_VALUES = 13u;  // in the record, first word of windowValues: f16 ring [window][3 KV heads][64]
const AT_KEY_CODES = 14u;  // in the record, first word of keyCodes: 4-bit fields [middle][3 KV heads][64], radius and angle / pi
const AT_KEY_SCALES = 15u;  // in the record, first word of keyScales: f16 [middle, 128 a row][3 KV heads][64 of 1 channels]
const AT_KEY_OFFSETS = 28u;  // in the record, first word of keyOffsets: f16 [middle, 128 a row][3 KV heads][64 of 1 channels]
const AT_VALUE_CODES = 19u;  // in the record, first word of valueCodes: 4-bit fields [middle][3 KV heads][64]
const AT_VALUE_SCALES = 29u;  // in the record, first word of valueScales: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
const AT_VALUE_OFFSETS = 30u;  // in the record, first word of valueOffsets: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
const AT_STREAM_KEY_CODES = 22u;  // in the record, first word of streamKeyCodes: 4-bit fields [stream][3 KV heads][64], after RoPE and Hadamard
const AT_STREAM_KEY_NORMS = 23u;  // in the record, first word of streamKeyNorms: f16 [stream][3 KV heads]
const AT_STREAM_VALUE_CODES = 24u;  // in the record, first word of streamValueCodes: 4-bit fields [stream][3 KV heads][64], after Hadamard
const AT_STREAM_VALUE_NORMS = 25u;  // in the record, first word of streamValueNorms: f16 [stream][3 KV heads]
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 16u;  // tokens of a tile
const SCORE_SLICES = 5u;  // threads that share one dot product
const TILE_ROWS = 64u;  // rows of the shared tile: channels, or components
const WORK_ITEM_WORDS = 6u;  // words of a work item
const PARTIAL_WORDS = 396u;  // numbers of one partial result
const CHUNK_UNIT = 16u;  // a split gets a multiple of so many tokens
const SCORE_SCALE = 0.180336878;  // what q.k is multiplied with first

// records of all sequences
@group(0) @binding(0) var<storage, read> sequences: array<u32>;
// [work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours
@group(0) @binding(1) var<storage, read> work: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read> cache: array<u32>;
// f16 [query rows][9 heads][64], after RoPE
@group(0) @binding(3) var<storage, read> query: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(4) var<storage, read> tables: array<f32>;
// [work items][2: Hadamard space, exact][3 query heads][64 output, maximum, weight sum]
@group(0) @binding(5) var<storage, read_write> partials: array<f32>;

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value(code: u32) -> f32 {
  return key_level_at(code);
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

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value_with_value_level_at(code: u32) -> f32 {
  return value_level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 4
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_4_with_value_word_at(index: u32) -> u32 {
  let position: u32 = index * 4u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = value_word_at(word) >> shift;
  return value & 15u;
}

// dsl/codecs/polar.ts:63 fromPolar
// Undoes `toPolar`.
fn from_polar(radius: f32, angle: f32) -> vec2f {
  let quarters: f32 = round(angle * 2.0);
  let rest: f32 = angle - quarters * 0.5;
  let square: f32 = rest * rest;
  var sine: f32 = -0.5890122;
  sine = sine * square + 2.549761;
  sine = sine * square - 5.167708;
  sine = sine * square + 3.14159264;
  sine = sine * rest;
  var cosine: f32 = 0.231329716;
  cosine = cosine * square - 1.3350446;
  cosine = cosine * square + 4.058707;
  cosine = cosine * square - 4.934802;
  cosine = cosine * square + 1.0;
  let side: u32 = u32(i32(quarters)) & 3u;
  let is_odd: bool = (side & 1u) == 1u;
  let length: f32 = max(radius, 0.0);
  let along: f32 = select(cosine, sine, is_odd);
  let across: f32 = select(sine, cosine, is_odd);
  return vec2f(select(length * along, -length * along, side == 1u || side == 2u), select(length * across, -length * across, side >= 2u));
}

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
fn add_angles(coarse: vec2f, fine: vec2f) -> vec2f {
  return vec2f(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 32, pairs = 32, interleaved = 0
// The first channel of a pair.
fn first_of_pair_32_32_0(pair: u32) -> u32 {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 32, pairs = 32, interleaved = 0
// The second channel of a pair.
fn second_of_pair_32_32_0(pair: u32) -> u32 {
  return pair + 32u;
}

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
fn butterfly(a: f32, b: f32) -> vec2f {
  return vec2f(a + b, a - b);
}

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value_with_level_at(code: u32) -> f32 {
  return level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 4
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_4_with_stream_word_at(index: u32) -> u32 {
  let position: u32 = index * 4u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = stream_word_at(word) >> shift;
  return value & 15u;
}

// Tokens come in tiles. The keys of a tile are decoded in registers and meet the queries in workgroup memory, four tokens
// in a vector; then every thread owns one channel of the output and keeps it in registers, with the running softmax of
// every query head. All in float32 and without subgroups, whatever the target has: an H200 was slower with either.
// Two passes: the stream, whose values lie in Hadamard space, then the middle and the exact tokens. Each leaves one
// partial.

const HEAD_WORDS = HEAD_DIM / 2u;
const TILE_QUADS = TILE_TOKENS / 4u;
const PAIR_QUADS = (TILE_QUADS + 1u) / 2u;
const SCORE_QUADS = GROUP_SIZE * TILE_QUADS;
const PARTIAL_ROW = HEAD_DIM + 2u;  // output, then maximum and weight sum

var<workgroup> scores: array<vec4f, SCORE_SLICES * SCORE_QUADS>;  // [slice of the channels][head][four tokens]

var<private> own_channel: u32;  // of the output; idle threads repeat the last one, and store nothing
var<private> owner: bool;
var<private> record: u32;  // of the sequence, in words
var<private> kv_head: u32;
var<private> accumulated: array<f32, GROUP_SIZE>;
var<private> maxima: array<f32, GROUP_SIZE>;
var<private> weight_sums: array<f32, GROUP_SIZE>;

// Word of the sequence's record.
fn field(index: u32) -> u32 {
  return sequences[record + index];
}

// The exponent of a token that is not seen: below every other, and finite, as WGSL has no infinity.
const MASKED = -1e30;

// One block's work: a KV head of a sequence, for one query row, over one of the splits of the tokens that the query sees.
struct WorkItem {
  sequence: u32,
  kv_head: u32,
  row: u32,
  after: u32,
  split: u32,
  splits: u32,
}

fn work_item(item: u32) -> WorkItem {
  let first = item * WORK_ITEM_WORDS;
  return WorkItem(
    work[first],
    work[first + 1u],
    work[first + 2u],
    work[first + 3u],
    work[first + 4u],
    work[first + 5u],
  );
}

// Tokens from `begin` up to `end`, counted from the first token of the sequence.
struct TokenRange {
  begin: u32,
  end: u32,
}

// Tokens lie in the order of positions: a query sees none of the `after` last ones, and with a sliding window only the
// nearest of the others. The splits share these.
fn share_of(own: WorkItem, tokens: u32) -> TokenRange {
  let visible_end = tokens - min(own.after, tokens);
  let sliding = sequences[own.sequence * RECORD_WORDS + AT_SLIDING_WINDOW];
  let visible = select(min(sliding, visible_end), visible_end, sliding == 0u);
  let chunk = ((visible + own.splits - 1u) / own.splits + CHUNK_UNIT - 1u) / CHUNK_UNIT * CHUNK_UNIT;
  let begin = visible_end - visible + min(own.split * chunk, visible);
  return TokenRange(begin, min(begin + chunk, visible_end));
}

// Element of an f16 array, from the word that holds it.
fn half_of(word: u32, index: u32) -> f32 {
  let pair = unpack2x16float(word);
  return select(pair.x, pair.y, index % 2u == 1u);
}

// Element of an f16 array in the cache.
fn half_at(words: u32, index: u32) -> f32 {
  return half_of(cache[words + index / 2u], index);
}

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

alias tile_quad = vec4f;
fn to_tile(quad: vec4f) -> tile_quad {
  return quad;
}

// [row][four tokens]: rows are the channels of the keys.
var<workgroup> tile: array<tile_quad, TILE_ROWS * TILE_QUADS>;

// A thread holds both channels of one rotary pair, so that it can rotate in registers, for every second vector of
// tokens.
var<private> channel_a: u32;
var<private> channel_b: u32;
var<private> side: u32;  // first vector of tokens; past 1 the thread is idle
var<private> key_a: array<vec4f, PAIR_QUADS>;
var<private> key_b: array<vec4f, PAIR_QUADS>;

fn own_pair(thread: u32) {
  channel_a = first_of_pair_32_32_0(thread % PAIRS);
  channel_b = second_of_pair_32_32_0(thread % PAIRS);
  side = thread / PAIRS;
}

// Puts the thread's keys into the tile. Not before every thread is done with what was there.
fn store_keys() {
  for (var n = 0u; n < PAIR_QUADS; n++) {
    let q = n * 2u + side;
    if (side < 2u && q < TILE_QUADS) {
      tile[channel_a * TILE_QUADS + q] = to_tile(key_a[n]);
      tile[channel_b * TILE_QUADS + q] = to_tile(key_b[n]);
    }
  }
}

fn key_level_at(index: u32) -> f32 {
  return tables[KEY_LEVELS + index];
}

var<private> key_words: u32;
fn key_word_at(index: u32) -> u32 {
  return cache[key_words + index];
}

// The offset and the scale that a channel of the middle keys shares with its block.
fn block_of_keys(token: u32, head: u32, channel: u32) -> vec2f {
  let row = token / KEY_SCALE_TOKENS * KEY_SCALE_ROW_WORDS;
  let index = (head * HEAD_DIM + channel) / KEY_SCALE_CHANNELS;
  let scale = half_at(field(AT_KEY_SCALES) + row, index);
  return vec2f(half_at(field(AT_KEY_OFFSETS) + row, index), scale);
}

// A channel of one head of a middle key: of a pair its radius, then its angle over pi.
fn middle_key(token: u32, head: u32, channel: u32) -> f32 {
  key_words = field(AT_KEY_CODES) + token * KEY_ROW_WORDS + head * KEY_HEAD_WORDS;
  let affine = block_of_keys(token, head, channel);
  return affine.x + affine.y * level_value(unpack_field_4(channel));
}

fn value_level_at(index: u32) -> f32 {
  return tables[VALUE_LEVELS + index];
}

var<private> value_words: u32;
fn value_word_at(index: u32) -> u32 {
  return cache[value_words + index];
}

// The offset and the scale that a channel of the middle values shares with its block.
fn block_of_values(token: u32, head: u32, channel: u32) -> vec2f {
  let row = token / VALUE_SCALE_TOKENS * VALUE_SCALE_ROW_WORDS;
  let index = (head * HEAD_DIM + channel) / VALUE_SCALE_CHANNELS;
  let scale = half_at(field(AT_VALUE_SCALES) + row, index);
  return vec2f(half_at(field(AT_VALUE_OFFSETS) + row, index), scale);
}

// A channel of one head of a middle value.
fn middle_value(token: u32, head: u32, channel: u32) -> f32 {
  value_words = field(AT_VALUE_CODES) + token * VALUE_ROW_WORDS + head * VALUE_HEAD_WORDS;
  let affine = block_of_values(token, head, channel);
  return affine.x + affine.y * level_value_with_value_level_at(unpack_field_4_with_value_word_at(channel));
}

fn level_at(index: u32) -> f32 {
  return tables[index];
}

var<private> stream_words: u32;
fn stream_word_at(index: u32) -> u32 {
  return cache[stream_words + index];
}

// A channel of one head of a stream token, in Hadamard space: key or value, as `codes` and `norms` say.
fn stream_channel(codes: u32, norms: u32, token: u32, head: u32, channel: u32) -> f32 {
  stream_words = codes + (token * KV_HEADS + head) * STREAM_WORDS;
  return level_value_with_level_at(unpack_field_4_with_stream_word_at(channel)) * half_at(norms + token * NORM_WORDS, head);
}

const MIDDLE_SEGMENT = 0u;
const STREAM_SEGMENT = 1u;
const SINK_SEGMENT = 2u;
const WINDOW_SEGMENT = 3u;

// A channel of a token in an exact part.
fn exact_channel(part: u32, row: u32, channel: u32) -> f32 {
  return half_at(field(part), row * WIDTH + kv_head * HEAD_DIM + channel);
}

fn ring_slot(token: u32) -> u32 {
  return (field(AT_WINDOW_START) + token) % WINDOW;
}

// A channel of a key, as it is stored.
fn key_channel(segment: u32, token: u32, channel: u32) -> f32 {
  switch segment {
    case MIDDLE_SEGMENT: { return middle_key(token, kv_head, channel); }
    case STREAM_SEGMENT: {
      return stream_channel(field(AT_STREAM_KEY_CODES), field(AT_STREAM_KEY_NORMS), token, kv_head, channel);
    }
    case SINK_SEGMENT: { return exact_channel(AT_SINK_KEYS, token, channel); }
    default: { return exact_channel(AT_WINDOW_KEYS, ring_slot(token), channel); }
  }
}

// The thread's share of a tile of keys; what lies past `count` tokens does not matter.
fn load_keys(segment: u32, first: u32, count: u32) {
  for (var n = 0u; n < PAIR_QUADS; n++) {
    for (var k = 0u; k < 4u; k++) {
      let t = (n * 2u + side) * 4u + k;
      if (t < count) {
        key_a[n][k] = key_channel(segment, first + t, channel_a);
        key_b[n][k] = key_channel(segment, first + t, channel_b);
      }
    }
  }
}

// A channel of a value.
fn value_channel(segment: u32, token: u32, channel: u32) -> f32 {
  switch segment {
    case MIDDLE_SEGMENT: { return middle_value(token, kv_head, channel); }
    case STREAM_SEGMENT: {
      return stream_channel(field(AT_STREAM_VALUE_CODES), field(AT_STREAM_VALUE_NORMS), token, kv_head, channel);
    }
    case SINK_SEGMENT: { return exact_channel(AT_SINK_VALUES, token, channel); }
    default: { return exact_channel(AT_WINDOW_VALUES, ring_slot(token), channel); }
  }
}

// The thread's keys of a tile of middle tokens, from radius and angle.
fn build_middle_keys(first: u32, end: u32, thread: u32) {
  load_keys(MIDDLE_SEGMENT, first, min(TILE_TOKENS, end - first));
  for (var n = 0u; n < PAIR_QUADS; n++) {
    for (var k = 0u; k < 4u; k++) {
      let pair = from_polar(key_a[n][k], key_b[n][k]);
      key_a[n][k] = pair.x;
      key_b[n][k] = pair.y;
    }
  }
}

// Scores of a tile from the products of queries and keys, in base-2 exponents; MASKED past `count` tokens.
fn exponents(products: vec4f, q: u32, count: u32) -> vec4f {
  let all = SCORE_SCALE * products;
  return select(vec4f(MASKED), all, vec4u(q * 4u) + vec4u(0u, 1u, 2u, 3u) < vec4u(count));
}

// SCORE_SLICES threads share one dot product: a slice of the channels, of one query head and four keys of the tile.
fn slice_product(i: u32) -> vec4f {
  let head = i % SCORE_QUADS / TILE_QUADS;
  let q = i % TILE_QUADS;
  var sum = vec4f(0.0);
  for (var c = i / SCORE_QUADS; c < HEAD_DIM; c += SCORE_SLICES) {
    sum += head_rows[c * GROUP_SIZE + head] * vec4f(tile[c * TILE_QUADS + q]);
  }
  return sum;
}

// Scores of the tile.
fn score_tile(count: u32, thread: u32) {
  workgroupBarrier();  // the keys of the tile are complete
  for (var i = thread; i < SCORE_SLICES * SCORE_QUADS; i += THREADS) {
    scores[i] = slice_product(i);
  }
  workgroupBarrier();  // every slice of every score is summed
  for (var i = thread; i < SCORE_QUADS; i += THREADS) {
    var sum = scores[i];
    for (var slice = 1u; slice < SCORE_SLICES; slice++) {
      sum += scores[slice * SCORE_QUADS + i];
    }
    scores[i] = exponents(sum, i % TILE_QUADS, count);
  }
  workgroupBarrier();  // scores are complete
}

// Puts the query heads of the group into head_rows. Not before every thread is done with what was there.
fn load_query(row: u32, thread: u32) {
  let base = (row * HEADS + kv_head * GROUP_SIZE) * HEAD_WORDS;
  for (var i = thread; i < GROUP_SIZE * HEAD_WORDS; i += THREADS) {
    let two = unpack2x16float(query[base + i]);
    let at = i % HEAD_WORDS * 2u * GROUP_SIZE + i / HEAD_WORDS;
    head_rows[at] = two.x;
    head_rows[at + GROUP_SIZE] = two.y;
  }
}

// Tokens begin..end of one segment, added to the running softmax of every head.
fn attend_segment(segment: u32, begin: u32, end: u32, thread: u32) {
  for (var first = begin; first < end; first += TILE_TOKENS) {
    let count = min(TILE_TOKENS, end - first);
    if (segment == MIDDLE_SEGMENT) {
      build_middle_keys(first, end, thread);
    } else {
      load_keys(segment, first, count);
    }
    store_keys();
    var values = array<vec4f, TILE_QUADS>();  // zero past the end: nothing is stored there
    for (var t = 0u; t < count; t++) {
      values[t / 4u][t % 4u] = value_channel(segment, first + t, own_channel);
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
    maxima[h] = MASKED;
    weight_sums[h] = 0.0;
  }
}

// Stores the partial result of a pass (0 Hadamard space, 1 exact).
fn store_partial(item: u32, space: u32, thread: u32) {
  for (var h = 0u; h < GROUP_SIZE; h++) {
    let row = item * PARTIAL_WORDS + (space * GROUP_SIZE + h) * PARTIAL_ROW;
    if (owner) {
      partials[row + own_channel] = accumulated[h];
    }
    if (thread == 0u) {
      partials[row + HEAD_DIM] = maxima[h];
      partials[row + HEAD_DIM + 1u] = weight_sums[h];
    }
  }
}

// Middle tokens begin..end, added to the running softmax of every head.
fn attend_middle(row: u32, begin: u32, end: u32, thread: u32) {
  if (begin >= end) {
    return;
  }
  load_query(row, thread);
  attend_segment(MIDDLE_SEGMENT, begin, end, thread);
}

@compute @workgroup_size(64)
fn attend(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let item = block.x;
  let own = work_item(item);
  record = own.sequence * RECORD_WORDS;
  kv_head = own.kv_head;
  own_channel = min(thread, HEAD_DIM - 1u);
  owner = thread < HEAD_DIM;
  own_pair(thread);

  // Where the segments end, in the order of tokens, and the share of this block. Barriers stand in loops over it: all
  // threads must be seen to have the same, which WGSL does not see of what comes from a private variable, as `record`.
  let lengths = own.sequence * RECORD_WORDS;
  let sinks_end = sequences[lengths + AT_SINK_TOKENS];
  let middle_end = sinks_end + sequences[lengths + AT_MIDDLE_TOKENS];
  let stream_end = middle_end + sequences[lengths + AT_STREAM_TOKENS];
  let total = stream_end + sequences[lengths + AT_WINDOW_TOKENS];
  let share = share_of(own, total);
  let begin = share.begin;
  let end = share.end;

  let middle_from = clamp(begin, sinks_end, middle_end) - sinks_end;
  let middle_to = clamp(end, sinks_end, middle_end) - sinks_end;
  // Pass 0: Hadamard space.
  start_pass();
  let stream_from = clamp(begin, middle_end, stream_end);
  let stream_to = clamp(end, middle_end, stream_end);
  if (stream_from < stream_to) {
    load_query(own.row, thread);
    transform_heads(thread);  // q.k = (Hq).(Hk): the keys stay as they are stored
    attend_segment(STREAM_SEGMENT, stream_from - middle_end, stream_to - middle_end, thread);
  }
  store_partial(item, 0u, thread);

  // Pass 1: the space of the values themselves.
  start_pass();
  attend_middle(own.row, middle_from, middle_to, thread);
  if (begin < sinks_end || end > stream_end) {
    load_query(own.row, thread);
  }
  attend_segment(SINK_SEGMENT, min(begin, sinks_end), min(end, sinks_end), thread);
  let window_from = clamp(begin, stream_end, total);
  let window_to = clamp(end, stream_end, total);
  attend_segment(WINDOW_SEGMENT, window_from - stream_end, window_to - stream_end, thread);
  store_partial(item, 1u, thread);
}
