// attend: One work item a block: 16 query heads over their share of the tokens that a query sees.
// Stage attend of scheme latent-int8 for deepseek-v3. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// latent: perToken(symmetric, 8 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64
// tunables: tileTokens = 4

const HEADS = 128u;  // query heads
const LATENT_DIM = 512u;  // channels of a latent, the first of a token
const ROTARY_DIM = 64u;  // channels of a rotary part
const TOKEN_DIM = 576u;  // channels of a token: latent, then rotary part
const TOKEN_WORDS = 288u;  // words of a token in f16
const HEADS_PER_BLOCK = 16u;  // query heads that a block takes
const LATENT_WORDS = 128u;  // words of a middle token's latent
const LATENT_SCALE_CHANNELS = 128u;  // channels of a latent that share a scale
const LATENT_SCALE_WORDS = 2u;  // words of the scales of a latent, two each
const LATENT_SPAN = 512u;  // channels of one Hadamard block of a latent
const LATENT_HADAMARD_SCALE = 0.0441941731;  // 1 / sqrt(LATENT_SPAN)
const ROTARY_WORDS = 16u;  // words of a middle token's rotary part
const ROTARY_SCALE_CHANNELS = 64u;  // channels of a rotary part that share a scale
const ROTARY_SCALE_WORDS = 1u;  // words of the scales of a rotary part, two each
const ROTARY_SPAN = 64u;  // channels of one Hadamard block of a rotary part
const ROTARY_HADAMARD_SCALE = 0.125;  // 1 / sqrt(ROTARY_SPAN)
const STREAM_LATENT_WORDS = 128u;  // words of a stream token's latent
const STREAM_ROTARY_WORDS = 16u;  // words of a stream token's rotary part
const LATENT_LEVELS = 256u;  // offset in the tables: values of the codes of latents, over their scales
const ROTARY_LEVELS = 512u;  // offset in the tables: values of the codes of rotary parts, over their scales
const STREAM_ROTARY_LEVELS = 768u;  // offset in the tables: stream levels of rotary parts
const WINDOW = 64u;  // slots of the exact ring at the end
const RECORD_WORDS = 64u;  // words of a sequence record
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_WINDOW_START = 4u;  // in the record, slot of the ring's oldest token
const AT_SLIDING_WINDOW = 8u;  // in the record, tokens that a query sees, itself included; 0 for all
const AT_SINK_KEYS = 10u;  // in the record, first word of sinkKeys: f16 [sinks][512 latent, 64 rotary after RoPE]
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][512 latent, 64 rotary after RoPE]
const AT_LATENT_CODES = 34u;  // in the record, first word of latentCodes: 8-bit fields [middle][512]
const AT_LATENT_SCALES = 35u;  // in the record, first word of latentScales: f16 [middle][4 of 128 channels]
const AT_ROTARY_KEYS = 37u;  // in the record, first word of rotaryKeys: 8-bit fields [middle][64]
const AT_ROTARY_SCALES = 38u;  // in the record, first word of rotaryScales: f16 [middle][1 of 64 channels]
const AT_STREAM_LATENTS = 40u;  // in the record, first word of streamLatents: 8-bit fields [stream][512], after Hadamard
const AT_STREAM_ROTARY_KEYS = 41u;  // in the record, first word of streamRotaryKeys: 8-bit fields [stream][64], after Hadamard
const AT_STREAM_NORMS = 42u;  // in the record, first word of streamNorms: f16 [stream][of the latent, of the rotary part]
const THREADS = 256u;  // threads of a block
const TILE_TOKENS = 4u;  // tokens of a tile
const SCORE_SLICES = 16u;  // threads that share one dot product
const WORK_ITEM_WORDS = 6u;  // words of a work item
const PARTIAL_WORDS = 8224u;  // numbers of one partial result
const CHUNK_UNIT = 16u;  // a split gets a multiple of so many tokens
const SCORE_SCALE = 0.195101097;  // what q.k is multiplied with first

// records of all sequences
@group(0) @binding(0) var<storage, read> sequences: array<u32>;
// [work items][sequence, block of 16 heads, query row, tokens after the query, split, splits]; splits of a row are neighbours
@group(0) @binding(1) var<storage, read> work: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read> cache: array<u32>;
// f16 [query rows][128 heads][512 for the latent, 64 after RoPE]
@group(0) @binding(3) var<storage, read> query: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(4) var<storage, read> tables: array<f32>;
// [work items][16 query heads][512 output, maximum, weight sum]
@group(0) @binding(5) var<storage, read_write> partials: array<f32>;

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value(code: u32) -> f32 {
  return latent_level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 8
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_8(index: u32) -> u32 {
  let position: u32 = index * 8u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = latent_word_at(word) >> shift;
  return value & 255u;
}

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value_with_streamed_level_at(code: u32) -> f32 {
  return streamed_level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 8
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_8_with_streamed_word_at(index: u32) -> u32 {
  let position: u32 = index * 8u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = streamed_word_at(word) >> shift;
  return value & 255u;
}

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value_with_rotary_level_at(code: u32) -> f32 {
  return rotary_level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 8
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_8_with_rotary_word_at(index: u32) -> u32 {
  let position: u32 = index * 8u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = rotary_word_at(word) >> shift;
  return value & 255u;
}

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value_with_turned_level_at(code: u32) -> f32 {
  return turned_level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 8
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_8_with_turned_word_at(index: u32) -> u32 {
  let position: u32 = index * 8u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = turned_word_at(word) >> shift;
  return value & 255u;
}

// Tokens come in tiles. A tile is decoded once for all heads of the block, four tokens in a vector; it is keys first, all
// of its channels against the query, then values, the channels of the latent, of which every thread owns OUTPUTS and keeps
// their sums in registers. The query stays where it is: beside a tile the workgroup memory that every device has is full.

const TILE_QUADS = TILE_TOKENS / 4u;
const COLUMNS = TILE_QUADS;
const SCORE_QUADS = HEADS_PER_BLOCK * TILE_QUADS;
const PARTIAL_ROW = LATENT_DIM + 2u;  // output, then maximum and weight sum
const OUTPUTS = (LATENT_DIM + THREADS - 1u) / THREADS;

var<workgroup> tile: array<vec4f, TOKEN_DIM * TILE_QUADS>;  // [channel][four tokens]
var<workgroup> scores: array<vec4f, SCORE_SLICES * SCORE_QUADS>;  // [slice of the channels][head][four tokens]
var<workgroup> shrinks: array<f32, HEADS_PER_BLOCK>;  // what a tile multiplies the sums of a head with

var<private> record: u32;  // of the sequence, in words
var<private> accumulated: array<f32, OUTPUTS * HEADS_PER_BLOCK>;  // [owned channel][head]
var<private> maximum: f32;  // of the head of the thread's number, where there is such a head; so is the sum
var<private> weight_sum: f32;

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

const SINK_SEGMENT = 0u;
const MIDDLE_SEGMENT = 1u;
const STREAM_SEGMENT = 2u;
const WINDOW_SEGMENT = 3u;

// Element of an f16 array, from the word that holds it.
fn half_of(word: u32, index: u32) -> f32 {
  let pair = unpack2x16float(word);
  return select(pair.x, pair.y, index % 2u == 1u);
}

// Element of an f16 array in the cache.
fn half_at(words: u32, index: u32) -> f32 {
  return half_of(cache[words + index / 2u], index);
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

fn latent_level_at(index: u32) -> f32 {
  return tables[LATENT_LEVELS + index];
}

var<private> latent_words: u32;
fn latent_word_at(index: u32) -> u32 {
  return cache[latent_words + index];
}

// One channel of a latent of the middle, as it was coded: scale times the value of its code.
fn latent_channel(token: u32, channel: u32) -> f32 {
  latent_words = field(AT_LATENT_CODES) + token * LATENT_WORDS;
  let unit = level_value(unpack_field_8(channel));
  let block = token * LATENT_SCALE_WORDS * 2u + channel / LATENT_SCALE_CHANNELS;
  return half_at(field(AT_LATENT_SCALES), block) * unit;
}

fn streamed_level_at(index: u32) -> f32 {
  return tables[index];
}

var<private> streamed_words: u32;
fn streamed_word_at(index: u32) -> u32 {
  return cache[streamed_words + index];
}

fn rotary_level_at(index: u32) -> f32 {
  return tables[ROTARY_LEVELS + index];
}

var<private> rotary_words: u32;
fn rotary_word_at(index: u32) -> u32 {
  return cache[rotary_words + index];
}

// One channel of a rotary part of the middle, as it was coded: scale times the value of its code.
fn rotary_channel(token: u32, channel: u32) -> f32 {
  rotary_words = field(AT_ROTARY_KEYS) + token * ROTARY_WORDS;
  let unit = level_value_with_rotary_level_at(unpack_field_8_with_rotary_word_at(channel));
  let block = token * ROTARY_SCALE_WORDS * 2u + channel / ROTARY_SCALE_CHANNELS;
  return half_at(field(AT_ROTARY_SCALES), block) * unit;
}

fn turned_level_at(index: u32) -> f32 {
  return tables[STREAM_ROTARY_LEVELS + index];
}

var<private> turned_words: u32;
fn turned_word_at(index: u32) -> u32 {
  return cache[turned_words + index];
}

// One channel of a stream token, in Hadamard space where it is coded.
fn stream_channel(token: u32, channel: u32) -> f32 {
  let norms = field(AT_STREAM_NORMS) + token;
  if (channel < LATENT_DIM) {
    streamed_words = field(AT_STREAM_LATENTS) + token * STREAM_LATENT_WORDS;
    return level_value_with_streamed_level_at(unpack_field_8_with_streamed_word_at(channel)) * half_at(norms, 0u);
  }
  let row = field(AT_STREAM_ROTARY_KEYS) + token * STREAM_ROTARY_WORDS;
  turned_words = row;
  return level_value_with_turned_level_at(unpack_field_8_with_turned_word_at(channel - LATENT_DIM)) * half_at(norms, 1u);
}

// One channel of a token as it is stored; tokens count from the first of their segment.
fn stored_channel(segment: u32, token: u32, channel: u32) -> f32 {
  switch segment {
    case SINK_SEGMENT: { return half_at(field(AT_SINK_KEYS) + token * TOKEN_WORDS, channel); }
    case MIDDLE_SEGMENT: {
      if (channel < LATENT_DIM) {
        return latent_channel(token, channel);
      }
      return rotary_channel(token, channel - LATENT_DIM);
    }
    case STREAM_SEGMENT: { return stream_channel(token, channel); }
    default: {
      let slot = (field(AT_WINDOW_START) + token) % WINDOW;
      return half_at(field(AT_WINDOW_KEYS) + slot * TOKEN_WORDS, channel);
    }
  }
}

// Turns back what was coded after the Hadamard transform, once `tile` is filled. All threads must call it with the same
// segment; afterwards every thread may read any channel.
fn restore(segment: u32, thread: u32) {
  if (segment == STREAM_SEGMENT) {
    turn(0u, LATENT_DIM, LATENT_SPAN, LATENT_HADAMARD_SCALE, thread);
  }
  if (segment == STREAM_SEGMENT) {
    turn(LATENT_DIM, ROTARY_DIM, ROTARY_SPAN, ROTARY_HADAMARD_SCALE, thread);
  }
  workgroupBarrier();  // the tile is complete
}

// Scores of a tile from the products of queries and keys, in base-2 exponents; MASKED past `count` tokens.
fn exponents(products: vec4f, q: u32, count: u32) -> vec4f {
  let all = SCORE_SCALE * products;
  return select(vec4f(MASKED), all, vec4u(q * 4u) + vec4u(0u, 1u, 2u, 3u) < vec4u(count));
}

// Decodes `count` tokens of a segment from `first` on; zeros past them.
fn load_tile(segment: u32, first: u32, count: u32, thread: u32) {
  for (var i = thread; i < TOKEN_DIM * TILE_QUADS; i += THREADS) {
    let channel = i % TOKEN_DIM;
    let quad = i / TOKEN_DIM;
    var tokens = vec4f();
    for (var k = 0u; k < 4u; k++) {
      if (quad * 4u + k < count) {
        tokens[k] = stored_channel(segment, first + quad * 4u + k, channel);
      }
    }
    tile[channel * TILE_QUADS + quad] = tokens;
  }
  restore(segment, thread);
}

// The tile's scores as base-2 exponents, then as weights; MASKED past `count` tokens. The query of the block's heads begins
// at the word `own_query`.
fn weigh_tile(own_query: u32, count: u32, thread: u32) {
  for (var i = thread; i < SCORE_SLICES * SCORE_QUADS; i += THREADS) {
    let head_query = own_query + i % SCORE_QUADS / TILE_QUADS * TOKEN_WORDS;
    let quad = i % TILE_QUADS;
    var sum = vec4f();
    for (var word = i / SCORE_QUADS; word < TOKEN_WORDS; word += SCORE_SLICES) {
      let two = unpack2x16float(query[head_query + word]);
      sum += two.x * tile[word * 2u * TILE_QUADS + quad];
      sum += two.y * tile[(word * 2u + 1u) * TILE_QUADS + quad];
    }
    scores[i] = sum;
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
  if (thread < HEADS_PER_BLOCK) {
    var top = maximum;
    for (var q = 0u; q < TILE_QUADS; q++) {
      let s = scores[thread * TILE_QUADS + q];
      top = max(top, max(max(s.x, s.y), max(s.z, s.w)));
    }
    let shrink = exp2(maximum - top);
    weight_sum *= shrink;
    for (var q = 0u; q < TILE_QUADS; q++) {
      let weights = exp2(scores[thread * TILE_QUADS + q] - top);
      weight_sum += dot(weights, vec4f(1.0));
      scores[thread * TILE_QUADS + q] = weights;
    }
    maximum = top;
    shrinks[thread] = shrink;
  }
  workgroupBarrier();  // weights are complete
}

// Tokens from..to of a segment that starts at token `start`, added to the running softmax of every head.
fn attend_segment(segment: u32, start: u32, own_query: u32, from_token: u32, to_token: u32, thread: u32) {
  for (var first = from_token; first < to_token; first += TILE_TOKENS) {
    let count = min(TILE_TOKENS, to_token - first);
    load_tile(segment, first - start, count, thread);
    weigh_tile(own_query, count, thread);
    for (var k = 0u; k < OUTPUTS; k++) {
      // Idle threads repeat the last channel, and store nothing.
      let channel = min(thread + k * THREADS, LATENT_DIM - 1u);
      for (var h = 0u; h < HEADS_PER_BLOCK; h++) {
        var sum = accumulated[k * HEADS_PER_BLOCK + h] * shrinks[h];
        for (var q = 0u; q < TILE_QUADS; q++) {
          sum += dot(scores[h * TILE_QUADS + q], tile[channel * TILE_QUADS + q]);
        }
        accumulated[k * HEADS_PER_BLOCK + h] = sum;
      }
    }
    workgroupBarrier();  // tile and weights have been read before the next tile's take their place
  }
}

@compute @workgroup_size(256)
fn attend(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let item = block.x;
  let own = work_item(item);
  let head_block = own.kv_head;  // all heads read the same tokens: an item is for HEADS_PER_BLOCK of them
  record = own.sequence * RECORD_WORDS;
  maximum = MASKED;

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
  let own_query = (own.row * HEADS + head_block * HEADS_PER_BLOCK) * TOKEN_WORDS;
  let middle_from = clamp(begin, sinks_end, middle_end);
  let middle_to = clamp(end, sinks_end, middle_end);
  let stream_from = clamp(begin, middle_end, stream_end);
  let stream_to = clamp(end, middle_end, stream_end);
  attend_segment(SINK_SEGMENT, 0u, own_query, min(begin, sinks_end), min(end, sinks_end), thread);
  attend_segment(MIDDLE_SEGMENT, sinks_end, own_query, middle_from, middle_to, thread);
  attend_segment(STREAM_SEGMENT, middle_end, own_query, stream_from, stream_to, thread);
  attend_segment(WINDOW_SEGMENT, stream_end, own_query, max(begin, stream_end), max(end, stream_end), thread);

  for (var h = 0u; h < HEADS_PER_BLOCK; h++) {
    let row = item * PARTIAL_WORDS + h * PARTIAL_ROW;
    for (var k = 0u; k < OUTPUTS; k++) {
      let channel = thread + k * THREADS;
      if (channel < LATENT_DIM) {
        partials[row + channel] = accumulated[k * HEADS_PER_BLOCK + h];
      }
    }
  }
  if (thread < HEADS_PER_BLOCK) {
    let row = item * PARTIAL_WORDS + thread * PARTIAL_ROW;
    partials[row + LATENT_DIM] = maximum;
    partials[row + LATENT_DIM + 1u] = weight_sum;
  }
}
