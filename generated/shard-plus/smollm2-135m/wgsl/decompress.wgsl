// decompress: One tile of tokens of one KV head a block, in the order sinks, middle, stream, window; f16 output saturates.
// Stage decompress of scheme shard-plus for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 8

const HEAD_DIM = 64u;  // channels of a head
const PAIRS = 32u;  // pairs of channels of a head; those past the rotary ones have angle zero
const KV_HEADS = 3u;  // KV heads
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const RANK_WORDS = 8u;  // words of a basis row, four int8 columns each
const ALLOCATED_GROUPS = 2u;  // groups of 16 components with widths of their own
const KEY_ROW_WORDS = 4u;  // words of one token's key fields
const HADAMARD_BLOCK = 64u;  // channels of one Hadamard block
const HADAMARD_SCALE = 0.125;  // 1 / sqrt(HADAMARD_BLOCK)
const CHANNELS = 4u;  // channels of a value vector
const VALUE_ROW_WORDS = 12u;  // words of one token's value indices, four each
const STREAM_WORDS = 16u;  // words of one coded stream vector
const NORM_WORDS = 2u;  // words of one stream token's norms, two each
const WINDOW = 64u;  // slots of the exact ring at the end
const ANGLE_TILE = 64u;  // rows of the fine angle table
const FINE_ANGLES = 256u;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
const COARSE_ANGLES = 5120u;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_WINDOW_START = 4u;  // in the record, slot of the ring's oldest token
const AT_SINK_KEYS = 10u;  // in the record, first word of sinkKeys: f16 [sinks][3 KV heads][64], after RoPE
const AT_SINK_VALUES = 11u;  // in the record, first word of sinkValues: f16 [sinks][3 KV heads][64]
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][3 KV heads][64], after RoPE
const AT_WINDOW_VALUES = 13u;  // in the record, first word of windowValues: f16 ring [window][3 KV heads][64]
const AT_KEY_CODES = 14u;  // in the record, first word of keyCodes: 0- to 8-bit fields [middle][32 components]
const AT_KEY_SCALES = 15u;  // in the record, first word of keyScales: f16 [32 components]
const AT_KEY_BASIS = 16u;  // in the record, first word of keyBasis: i8 [192 channels][32 components]
const AT_KEY_BASIS_SCALES = 17u;  // in the record, first word of keyBasisScales: f16 [32 components]
const AT_KEY_MEAN = 18u;  // in the record, first word of keyMean: f16 [192 channels], before RoPE
const AT_VALUE_CODES = 19u;  // in the record, first word of valueCodes: u8 [middle][48 vectors]
const AT_CODEBOOK = 20u;  // in the record, first word of codebook: f16 [256 entries][4]
const AT_CHANNEL_MAX = 21u;  // in the record, first word of channelMax: f16 [3 KV heads][64], after Hadamard
const AT_STREAM_KEY_CODES = 22u;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][3 KV heads][64], after RoPE and Hadamard
const AT_STREAM_KEY_NORMS = 23u;  // in the record, first word of streamKeyNorms: f16 [stream][3 KV heads]
const AT_STREAM_VALUE_CODES = 24u;  // in the record, first word of streamValueCodes: 8-bit fields [stream][3 KV heads][64], after Hadamard
const AT_STREAM_VALUE_NORMS = 25u;  // in the record, first word of streamValueNorms: f16 [stream][3 KV heads]
const AT_KEY_WIDTHS = 26u;  // in the record, first word of keyWidths: u32 [2 groups of 16 components]: first bit in the row * 16 + bits a component
const AT_KEY_WEIGHTS = 27u;  // in the record, first word of keyWeights: f16 [192 channels], above 0: keys are coded times this
const THREADS = 64u;  // threads of a block
const TILE_TOKENS = 8u;  // tokens of a tile
const GROUP_COMPONENTS = 16u;  // most components whose codes are unpacked together

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

// dsl/codecs/pca.ts:158 signedByte
// Byte `lane` (0 to 3) of a word as a signed integer.
fn signed_byte(word: u32, lane: u32) -> f32 {
  let byte: i32 = i32((word >> (lane * 8u)) & 255u);
  return f32(select(byte, byte - 256, byte > 127));
}

// dsl/packing.ts:50 unpackBits
// Reads `bits` bits (1 to 32, known when the kernel runs) from bit `position` of a row on; touches the second word only when the field straddles.
fn unpack_bits(position: u32, bits: u32) -> u32 {
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = key_word_at(word) >> shift;
  if (shift + bits > 32u) {
    value = value | (key_word_at(word + 1u) << (32u - shift));
  }
  return value & (0xffffffffu >> (32u - bits));
}

// dsl/codecs/midRise.ts:35 midRiseValue
// What a field stands for, in steps.
fn mid_rise_value(field: u32, bits: u32) -> f32 {
  return f32(i32(field) - (1 << (bits - 1u))) + 0.5;
}

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
fn butterfly(a: f32, b: f32) -> vec2f {
  return vec2f(a + b, a - b);
}

// dsl/codecs/lloydMax.ts:78 levelValue
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

const HEAD_WORDS = HEAD_DIM / 2u;

var<workgroup> coefficients: array<f32, TILE_TOKENS * GROUP_COMPONENTS>;
var<workgroup> tile_keys: array<f32, TILE_TOKENS * HEAD_DIM>;

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

// Cosine and sine of a position's angle, from one row of the coarse and one of the fine table.
fn angle_of(position: u32, pair: u32) -> vec2f {
  let coarse = COARSE_ANGLES + ((position / ANGLE_TILE) * PAIRS + pair) * 2u;
  let fine = FINE_ANGLES + ((position % ANGLE_TILE) * PAIRS + pair) * 2u;
  return add_angles(vec2f(tables[coarse], tables[coarse + 1u]), vec2f(tables[fine], tables[fine + 1u]));
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

// Components of a key that share a width; a token's row of codes holds their fields side by side.
struct KeyGroup {
  first_component: u32,
  components: u32,
  bits: u32,  // of a field; 0 where nothing is stored
  first_bit: u32,  // of the row
}

const KEY_GROUPS = ALLOCATED_GROUPS;

// The sequence's own widths: bits in the low four bits of a word, where the fields begin in those above.
fn key_group(group: u32) -> KeyGroup {
  let width = cache[field(AT_KEY_WIDTHS) + group];
  return KeyGroup(group * 16u, 16u, width % 16u, width / 16u);
}

var<private> key_words: u32;
fn key_word_at(index: u32) -> u32 {
  return cache[key_words + index];
}

// What component `i` of a group that is stored holds in a token's row, in steps of its scale.
fn key_code(group: KeyGroup, row: u32, i: u32) -> f32 {
  key_words = row;
  return mid_rise_value(unpack_bits(group.first_bit + i * group.bits, group.bits), group.bits);
}

// What a code is multiplied with before it weighs the int8 basis: the component's scale and its basis column's.
fn component_scale(component: u32) -> f32 {
  return half_at(field(AT_KEY_SCALES), component) * half_at(field(AT_KEY_BASIS_SCALES), component);
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
  return level_value(unpack_field_8(channel)) * half_at(norms + token * NORM_WORDS, head);
}

// Coefficients of one group for all tokens of the tile; tokens of other segments get zero.
fn load_coefficients(first: u32, group: KeyGroup, thread: u32) {
  let sinks = field(AT_SINK_TOKENS);
  for (var i = thread; i < TILE_TOKENS * group.components; i += THREADS) {
    let slot = i / group.components;
    let index = i % group.components;
    let token = first + slot - sinks;
    var coefficient = 0.0;
    if (first + slot >= sinks && token < field(AT_MIDDLE_TOKENS)) {
      let row = field(AT_KEY_CODES) + token * KEY_ROW_WORDS;
      coefficient = key_code(group, row, index) * component_scale(group.first_component + index);
    }
    coefficients[slot * GROUP_COMPONENTS + index] = coefficient;
  }
}

// Middle keys of the tile before RoPE, into `tile_keys`: one channel a thread, all tokens at once.
fn rebuild_keys(first: u32, head: u32, thread: u32) {
  let channel = head * HEAD_DIM + thread;
  var sums = array<f32, TILE_TOKENS>();
  for (var g = 0u; g < KEY_GROUPS; g++) {
    let group = key_group(g);
    if (group.bits == 0u) {
      continue;
    }
    load_coefficients(first, group, thread);
    // The group's coefficients are there.
    workgroupBarrier();
    if (thread < HEAD_DIM) {
      for (var i = 0u; i < group.components; i++) {
        let component = group.first_component + i;
        let word = cache[field(AT_KEY_BASIS) + channel * RANK_WORDS + component / 4u];
        let entry = signed_byte(word, component % 4u);
        for (var slot = 0u; slot < TILE_TOKENS; slot++) {
          sums[slot] += coefficients[slot * GROUP_COMPONENTS + i] * entry;
        }
      }
    }
    // They have been used before the next group's take their place.
    workgroupBarrier();
  }
  if (thread < HEAD_DIM) {
    let mean = half_at(field(AT_KEY_MEAN), channel);
    let weight = half_at(field(AT_KEY_WEIGHTS), channel);
    for (var slot = 0u; slot < TILE_TOKENS; slot++) {
      tile_keys[slot * HEAD_DIM + thread] = mean + sums[slot] / weight;
    }
  }
}

// RoPE for the tokens of the tile before `end`, the end of the middle; a token's place in the sequence is its position.
fn rotate_keys(first: u32, end: u32, thread: u32) {
  for (var i = thread; i < TILE_TOKENS * PAIRS; i += THREADS) {
    let position = first + i / PAIRS;
    if (position >= end) {
      break;
    }
    let pair = i % PAIRS;
    let a = i / PAIRS * HEAD_DIM + first_of_pair_32_32_0(pair);
    let b = i / PAIRS * HEAD_DIM + second_of_pair_32_32_0(pair);
    let turned = rotate_pair(tile_keys[a], tile_keys[b], angle_of(position, pair));
    tile_keys[a] = turned.x;
    tile_keys[b] = turned.y;
  }
}

// One channel of one head of a middle value, before the inverse transform.
fn middle_value(token: u32, channel: u32) -> f32 {
  let point = channel / CHANNELS;
  let word = cache[field(AT_VALUE_CODES) + token * VALUE_ROW_WORDS + point / 4u];
  let entry = extractBits(word, (point % 4u) * 8u, 8u);
  return half_at(field(AT_CODEBOOK), entry * CHANNELS + channel % CHANNELS)
    * half_at(field(AT_CHANNEL_MAX), channel);
}

// A word of `vector` after the transform.
fn turned_word(word: u32) -> u32 {
  return saturated_pair(vector[word * 2u] * HADAMARD_SCALE, vector[word * 2u + 1u] * HADAMARD_SCALE);
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

  if (sinks_end < middle_end && first < middle_end && end > sinks_end) {
    rebuild_keys(first, head, thread);
    // Both channels of every pair are there.
    workgroupBarrier();
    rotate_keys(first, middle_end, thread);
    // The pairs are turned.
    workgroupBarrier();
    for (var i = thread; i < TILE_TOKENS * HEAD_WORDS; i += THREADS) {
      let token = first + i / HEAD_WORDS;
      if (token >= sinks_end && token < middle_end) {
        keys[head * tokens * HEAD_WORDS + first * HEAD_WORDS + i] =
          saturated_pair(tile_keys[i * 2u], tile_keys[i * 2u + 1u]);
      }
    }
  }

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
    if (token >= middle_end) {
      if (thread < HEAD_DIM) {
        let codes = field(AT_STREAM_KEY_CODES);
        vector[thread] = stream_channel(codes, field(AT_STREAM_KEY_NORMS), token - middle_end, head, thread);
      }
      transform_vector(thread);
      for (var word = thread; word < HEAD_WORDS; word += THREADS) {
        keys[row + word] = turned_word(word);
      }
      // All channels of the key have been read before the value takes their place.
      workgroupBarrier();
    }
    if (thread < HEAD_DIM) {
      if (token < middle_end) {
        vector[thread] = middle_value(token - sinks_end, head * HEAD_DIM + thread);
      } else {
        let codes = field(AT_STREAM_VALUE_CODES);
        vector[thread] = stream_channel(codes, field(AT_STREAM_VALUE_NORMS), token - middle_end, head, thread);
      }
    }
    transform_vector(thread);
    for (var word = thread; word < HEAD_WORDS; word += THREADS) {
      values[row + word] = turned_word(word);
    }
    // All channels have been read before the next token takes their place.
    workgroupBarrier();
  }
}
