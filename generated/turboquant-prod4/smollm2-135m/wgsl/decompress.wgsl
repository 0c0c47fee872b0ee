// decompress: One tile of tokens of one KV head a block, in the order sinks, middle, stream, window; f16 output saturates.
// Stage decompress of scheme turboquant-prod4 for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   hadamard, perToken(lloydMax, 3 bits; a scale for a head of 1 token)
// values: hadamard, perToken(lloydMax, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 4, window 64
// tunables: tileTokens = 8

const HEAD_DIM = 64u;  // channels of a head
const PAIRS = 32u;  // pairs of channels of a head; those past the rotary ones have angle zero
const KV_HEADS = 3u;  // KV heads
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const KEY_ROW_WORDS = 18u;  // words of one token's key fields
const KEY_HEAD_WORDS = 6u;  // words of one head's key fields
const KEY_SCALE_TOKENS = 1u;  // middle tokens that share a scale; 0 for all of them
const KEY_SCALE_CHANNELS = 64u;  // channels of a head that share a scale
const KEY_SCALE_ROW_WORDS = 2u;  // words of a row of scales, two each
const RESIDUAL_SCALE = 0.0195830334;  // sqrt(pi / 2) / HEAD_DIM: what signs count, times the length of what they are of
const HADAMARD_BLOCK = 64u;  // channels of one Hadamard block
const HADAMARD_SCALE = 0.125;  // 1 / sqrt(HADAMARD_BLOCK)
const VALUE_ROW_WORDS = 24u;  // words of one token's value fields
const VALUE_HEAD_WORDS = 8u;  // words of one head's value fields
const VALUE_SCALE_TOKENS = 1u;  // middle tokens that share a scale; 0 for all of them
const VALUE_SCALE_CHANNELS = 64u;  // channels of a head that share a scale
const VALUE_SCALE_ROW_WORDS = 2u;  // words of a row of scales, two each
const STREAM_WORDS = 8u;  // words of one coded stream vector
const NORM_WORDS = 2u;  // words of one stream token's norms, two each
const WINDOW = 64u;  // slots of the exact ring at the end
const KEY_LEVELS = 16u;  // offset in the tables: values of the codes of keys, over their scales
const VALUE_LEVELS = 24u;  // offset in the tables: values of the codes of values, over their scales
const PROJECTION_SIGNS = 40u;  // offset in the tables: signs of channels before the projection of residuals
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_WINDOW_START = 4u;  // in the record, slot of the ring's oldest token
const AT_SINK_KEYS = 10u;  // in the record, first word of sinkKeys: f16 [sinks][3 KV heads][64], after RoPE
const AT_SINK_VALUES = 11u;  // in the record, first word of sinkValues: f16 [sinks][3 KV heads][64]
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][3 KV heads][64], after RoPE
const AT_WINDOW_VALUES = 13u;  // in the record, first word of windowValues: f16 ring [window][3 KV heads][64]
const AT_KEY_CODES = 14u;  // in the record, first word of keyCodes: 3-bit fields [middle][3 KV heads][64], after Hadamard
const AT_KEY_SCALES = 15u;  // in the record, first word of keyScales: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
const AT_VALUE_CODES = 19u;  // in the record, first word of valueCodes: 4-bit fields [middle][3 KV heads][64], after Hadamard
const AT_VALUE_SCALES = 29u;  // in the record, first word of valueScales: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
const AT_RESIDUAL_SIGNS = 47u;  // in the record, first word of residualSigns: bits [middle][3 KV heads][64]: 1 where the projection of what the codes leave is not below zero
const AT_RESIDUAL_NORMS = 48u;  // in the record, first word of residualNorms: f16 [middle][3 KV heads]: length of what the codes leave
const AT_STREAM_KEY_CODES = 22u;  // in the record, first word of streamKeyCodes: 4-bit fields [stream][3 KV heads][64], after RoPE and Hadamard
const AT_STREAM_KEY_NORMS = 23u;  // in the record, first word of streamKeyNorms: f16 [stream][3 KV heads]
const AT_STREAM_VALUE_CODES = 24u;  // in the record, first word of streamValueCodes: 4-bit fields [stream][3 KV heads][64], after Hadamard
const AT_STREAM_VALUE_NORMS = 25u;  // in the record, first word of streamValueNorms: f16 [stream][3 KV heads]
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 8u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(1) var<storage, read> cache: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(2) var<storage, read> tables: array<f32>;
// f16 [3 KV heads][tokens][64], after RoPE
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;
// f16 [3 KV heads][tokens][64]
@group(0) @binding(4) var<storage, read_write> values: array<u32>;

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value(code: u32) -> f32 {
  return key_level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 3
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_3(index: u32) -> u32 {
  let position: u32 = index * 3u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = key_word_at(word) >> shift;
  if (shift + 3u > 32u) {
    value = value | (key_word_at(word + 1u) << (32u - shift));
  }
  return value & 7u;
}

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value_with_value_level_at(code: u32) -> f32 {
  return value_level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 4
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_4(index: u32) -> u32 {
  let position: u32 = index * 4u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = value_word_at(word) >> shift;
  return value & 15u;
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

const HEAD_WORDS = HEAD_DIM / 2u;

// Word of the sequence's record.
fn field(index: u32) -> u32 {
  return sequence[index];
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

// Two numbers as a word of f16; what f16 cannot hold becomes its largest value, never infinity.
fn saturated_pair(low: f32, high: f32) -> u32 {
  return pack2x16float(clamp(vec2f(low, high), vec2f(-65504.0), vec2f(65504.0)));
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

// One channel of the projection of what the codes of a middle key leave: its sign, as the length of all of it counts.
fn residual_sign(token: u32, head: u32, channel: u32) -> f32 {
  let word = cache[field(AT_RESIDUAL_SIGNS) + (token * KV_HEADS + head) * (HEAD_DIM / 32u) + channel / 32u];
  let length = half_at(field(AT_RESIDUAL_NORMS) + token * NORM_WORDS, head);
  return select(-length, length, ((word >> (channel % 32u)) & 1u) == 1u) * RESIDUAL_SCALE;
}

fn key_level_at(index: u32) -> f32 {
  return tables[KEY_LEVELS + index];
}

var<private> key_words: u32;
fn key_word_at(index: u32) -> u32 {
  return cache[key_words + index];
}

// The offset, zero here, and the scale that a channel of the middle keys shares with its block.
fn block_of_keys(token: u32, head: u32, channel: u32) -> vec2f {
  let row = token / KEY_SCALE_TOKENS * KEY_SCALE_ROW_WORDS;
  let index = (head * HEAD_DIM + channel) / KEY_SCALE_CHANNELS;
  let scale = half_at(field(AT_KEY_SCALES) + row, index);
  return vec2f(0.0, scale);
}

// A channel of one head of a middle key, in Hadamard space.
fn middle_key(token: u32, head: u32, channel: u32) -> f32 {
  key_words = field(AT_KEY_CODES) + token * KEY_ROW_WORDS + head * KEY_HEAD_WORDS;
  let affine = block_of_keys(token, head, channel);
  return affine.y * level_value(unpack_field_3(channel));
}

fn value_level_at(index: u32) -> f32 {
  return tables[VALUE_LEVELS + index];
}

var<private> value_words: u32;
fn value_word_at(index: u32) -> u32 {
  return cache[value_words + index];
}

// The offset, zero here, and the scale that a channel of the middle values shares with its block.
fn block_of_values(token: u32, head: u32, channel: u32) -> vec2f {
  let row = token / VALUE_SCALE_TOKENS * VALUE_SCALE_ROW_WORDS;
  let index = (head * HEAD_DIM + channel) / VALUE_SCALE_CHANNELS;
  let scale = half_at(field(AT_VALUE_SCALES) + row, index);
  return vec2f(0.0, scale);
}

// A channel of one head of a middle value, in Hadamard space.
fn middle_value(token: u32, head: u32, channel: u32) -> f32 {
  value_words = field(AT_VALUE_CODES) + token * VALUE_ROW_WORDS + head * VALUE_HEAD_WORDS;
  let affine = block_of_values(token, head, channel);
  return affine.y * level_value_with_value_level_at(unpack_field_4(channel));
}

// One tile of tokens of one KV head a block, one channel a thread. A tile may lie in several segments.
@compute @workgroup_size(64)
fn decompress(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // Where the segments end, in tokens. Read-only, so that all threads take the same way through the barriers below.
  let sinks_end = field(AT_SINK_TOKENS);
  let middle_end = sinks_end + field(AT_MIDDLE_TOKENS);
  let stream_end = middle_end + field(AT_STREAM_TOKENS);
  let tokens = stream_end + field(AT_WINDOW_TOKENS);
  let head = block.y;
  let first = block.x * TILE_TOKENS;
  let end = min(first + TILE_TOKENS, tokens);

  for (var token = first; token < end; token++) {
    let row = (head * tokens + token) * HEAD_WORDS;
    if (token < sinks_end || token >= stream_end) {
      // Exact: copied as it is. The window is a ring.
      let is_sink = token < sinks_end;
      let slot = select((field(AT_WINDOW_START) + token - stream_end) % WINDOW, token, is_sink);
      let source = slot * (WIDTH / 2u) + head * HEAD_WORDS;
      let key_source = field(select(AT_WINDOW_KEYS, AT_SINK_KEYS, is_sink)) + source;
      let value_source = field(select(AT_WINDOW_VALUES, AT_SINK_VALUES, is_sink)) + source;
      for (var word = thread; word < HEAD_WORDS; word += THREADS) {
        keys[row + word] = cache[key_source + word];
        values[row + word] = cache[value_source + word];
      }
      continue;
    }
    {
      // The key, from the stream or the middle.
      var factor = HADAMARD_SCALE;
      if (token >= middle_end) {
        if (thread < HEAD_DIM) {
          let codes = field(AT_STREAM_KEY_CODES);
          vector[thread] = stream_channel(codes, field(AT_STREAM_KEY_NORMS), token - middle_end, head, thread);
        }
        transform_vector(thread);
      } else {
        if (thread < HEAD_DIM) {
          vector[thread] = residual_sign(token - sinks_end, head, thread);
        }
        transform_vector(thread);
        // A thread adds its own channel to what the signs of all stand for.
        if (thread < HEAD_DIM) {
          let residual = tables[PROJECTION_SIGNS + thread] * vector[thread];
          vector[thread] = middle_key(token - sinks_end, head, thread) + residual;
        }
        transform_vector(thread);
      }
      for (var word = thread; word < HEAD_WORDS; word += THREADS) {
        keys[row + word] = saturated_pair(vector[word * 2u] * factor, vector[word * 2u + 1u] * factor);
      }
      // All channels have been read before the next vector takes their place.
      workgroupBarrier();
    }
    {
      // The value, from the stream or the middle.
      var factor = HADAMARD_SCALE;
      if (token >= middle_end) {
        if (thread < HEAD_DIM) {
          let codes = field(AT_STREAM_VALUE_CODES);
          vector[thread] = stream_channel(codes, field(AT_STREAM_VALUE_NORMS), token - middle_end, head, thread);
        }
        transform_vector(thread);
      } else {
        if (thread < HEAD_DIM) {
          vector[thread] = middle_value(token - sinks_end, head, thread);
        }
        transform_vector(thread);
      }
      for (var word = thread; word < HEAD_WORDS; word += THREADS) {
        values[row + word] = saturated_pair(vector[word * 2u] * factor, vector[word * 2u + 1u] * factor);
      }
      // All channels have been read before the next vector takes their place.
      workgroupBarrier();
    }
  }
}
