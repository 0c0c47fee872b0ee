// decompress: One tile of tokens a block, in the order sinks, middle, stream, window; f16 output saturates.
// Stage decompress of scheme latent-int4-hadamard for deepseek-v2-lite. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// latent: hadamard, perToken(asymmetric, 4 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64

const LATENT_DIM = 512u;  // channels of a latent, the first of a token
const ROTARY_DIM = 64u;  // channels of a rotary part
const TOKEN_DIM = 576u;  // channels of a token: latent, then rotary part
const TOKEN_WORDS = 288u;  // words of a token in f16
const LATENT_WORDS = 64u;  // words of a middle token's latent
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
const ROTARY_LEVELS = 272u;  // offset in the tables: values of the codes of rotary parts, over their scales
const STREAM_ROTARY_LEVELS = 528u;  // offset in the tables: stream levels of rotary parts
const WINDOW = 64u;  // slots of the exact ring at the end
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_WINDOW_START = 4u;  // in the record, slot of the ring's oldest token
const AT_SINK_KEYS = 10u;  // in the record, first word of sinkKeys: f16 [sinks][512 latent, 64 rotary after RoPE]
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][512 latent, 64 rotary after RoPE]
const AT_LATENT_CODES = 34u;  // in the record, first word of latentCodes: 4-bit fields [middle][512], after Hadamard
const AT_LATENT_SCALES = 35u;  // in the record, first word of latentScales: f16 [middle][4 of 128 channels]
const AT_LATENT_OFFSETS = 36u;  // in the record, first word of latentOffsets: f16 [middle][4 of 128 channels]
const AT_ROTARY_KEYS = 37u;  // in the record, first word of rotaryKeys: 8-bit fields [middle][64]
const AT_ROTARY_SCALES = 38u;  // in the record, first word of rotaryScales: f16 [middle][1 of 64 channels]
const AT_STREAM_LATENTS = 40u;  // in the record, first word of streamLatents: 8-bit fields [stream][512], after Hadamard
const AT_STREAM_ROTARY_KEYS = 41u;  // in the record, first word of streamRotaryKeys: 8-bit fields [stream][64], after Hadamard
const AT_STREAM_NORMS = 42u;  // in the record, first word of streamNorms: f16 [stream][of the latent, of the rotary part]
const THREADS = 128u;  // threads of a block
const TILE_TOKENS = 8u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(1) var<storage, read> cache: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(2) var<storage, read> tables: array<f32>;
// f16 [tokens][512 latent, 64 rotary after RoPE]
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value(code: u32) -> f32 {
  return latent_level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 4
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_4(index: u32) -> u32 {
  let position: u32 = index * 4u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = latent_word_at(word) >> shift;
  return value & 15u;
}

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value_with_streamed_level_at(code: u32) -> f32 {
  return streamed_level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 8
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_8(index: u32) -> u32 {
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

const COLUMNS = 1u;

var<workgroup> tile: array<f32, TOKEN_DIM>;

// Word of the sequence's record.
fn field(index: u32) -> u32 {
  return sequence[index];
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

// One channel of a latent of the middle, as it was coded: offset plus scale times the value of its code.
fn latent_channel(token: u32, channel: u32) -> f32 {
  latent_words = field(AT_LATENT_CODES) + token * LATENT_WORDS;
  let unit = level_value(unpack_field_4(channel));
  let block = token * LATENT_SCALE_WORDS * 2u + channel / LATENT_SCALE_CHANNELS;
  return half_at(field(AT_LATENT_OFFSETS), block) + half_at(field(AT_LATENT_SCALES), block) * unit;
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
    return level_value_with_streamed_level_at(unpack_field_8(channel)) * half_at(norms, 0u);
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
  if (segment == STREAM_SEGMENT || segment == MIDDLE_SEGMENT) {
    turn(0u, LATENT_DIM, LATENT_SPAN, LATENT_HADAMARD_SCALE, thread);
  }
  if (segment == STREAM_SEGMENT) {
    turn(LATENT_DIM, ROTARY_DIM, ROTARY_SPAN, ROTARY_HADAMARD_SCALE, thread);
  }
  workgroupBarrier();  // the tile is complete
}

// Two numbers as a word of f16; what f16 cannot hold becomes its largest value, never infinity.
fn saturated_pair(low: f32, high: f32) -> u32 {
  return pack2x16float(clamp(vec2f(low, high), vec2f(-65504.0), vec2f(65504.0)));
}

// One tile of tokens a block, a token at a time. A tile may lie in several segments.
@compute @workgroup_size(128)
fn decompress(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let sinks_end = field(AT_SINK_TOKENS);
  let middle_end = sinks_end + field(AT_MIDDLE_TOKENS);
  let stream_end = middle_end + field(AT_STREAM_TOKENS);
  let first = block.x * TILE_TOKENS;
  let end = min(first + TILE_TOKENS, stream_end + field(AT_WINDOW_TOKENS));
  for (var token = first; token < end; token++) {
    var segment = WINDOW_SEGMENT;
    var start = stream_end;
    if (token < sinks_end) {
      segment = SINK_SEGMENT;
      start = 0u;
    } else if (token < middle_end) {
      segment = MIDDLE_SEGMENT;
      start = sinks_end;
    } else if (token < stream_end) {
      segment = STREAM_SEGMENT;
      start = middle_end;
    }
    for (var channel = thread; channel < TOKEN_DIM; channel += THREADS) {
      tile[channel] = stored_channel(segment, token - start, channel);
    }
    restore(segment, thread);
    for (var word = thread; word < TOKEN_WORDS; word += THREADS) {
      keys[token * TOKEN_WORDS + word] = saturated_pair(tile[word * 2u], tile[word * 2u + 1u]);
    }
    workgroupBarrier();  // all channels have been read before the next token's take their place
  }
}
