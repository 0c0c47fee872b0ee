// decompress: One tile of tokens of one KV head a block, in the order sinks, middle, stream, window; f16 output saturates.
// Stage decompress of scheme tilt-fast for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 8

const HEAD_DIM = 128u;  // channels of a head
const PAIRS = 64u;  // pairs of channels of a head; those past the rotary ones have angle zero
const KV_HEADS = 8u;  // KV heads
const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const TILE = 64u;  // positions of a tile, whose keys are rotated together
const RANGE_BLOCK = 512u;  // positions that share the steps of components; 0 for all
const GROUP_COMPONENTS = 16u;  // components that share a width
const GROUPS = 8u;  // groups of components of a KV head
const FIELD_WORDS = 10u;  // words that describe the fields of a KV head's key codes
const ROW_POSITIONS = 64u;  // positions of a row of codes
const TILE_ROW_WORDS = 7424u;  // words of a row of codes, all KV heads
const HADAMARD_BLOCK = 128u;  // channels of one Hadamard block
const HADAMARD_SCALE = 0.0883883461;  // 1 / sqrt(HADAMARD_BLOCK)
const STREAM_WORDS = 32u;  // words of one coded stream vector
const NORM_WORDS = 4u;  // words of one stream token's norms, two each
const WINDOW = 64u;  // slots of the exact ring at the end
const ANGLE_TILE = 64u;  // rows of the fine angle table
const VALUE_LEVELS = 256u;  // offset in the tables: values of the codes of values, over their scales
const FINE_ANGLES = 260u;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
const TILE_ANGLES = 8452u;  // offset in the tables: [TILE][PAIRS](cosine, sine) of the place in a tile, position % TILE - (TILE - 1) / 2
const COARSE_ANGLES = 16644u;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_WINDOW_START = 4u;  // in the record, slot of the ring's oldest token
const AT_SINK_KEYS = 10u;  // in the record, first word of sinkKeys: f16 [sinks][8 KV heads][128], after RoPE
const AT_SINK_VALUES = 11u;  // in the record, first word of sinkValues: f16 [sinks][8 KV heads][128]
const AT_WINDOW_KEYS = 12u;  // in the record, first word of windowKeys: f16 ring [window][8 KV heads][128], after RoPE
const AT_WINDOW_VALUES = 13u;  // in the record, first word of windowValues: f16 ring [window][8 KV heads][128]
const AT_TILE_CODES = 43u;  // in the record, first word of tileCodes: [rows of 64 positions][8 KV heads]: planes of key fields, 2-bit value codes, f16 norms
const AT_KEY_STEPS = 44u;  // in the record, first word of keySteps: f16 [range blocks][8 KV heads][128] components, 128 times step and scale of the basis column
const AT_KEY_BASIS = 16u;  // in the record, first word of keyBasis: i8 [8 KV heads][128] components[128 channels, in the order of pairs]
const AT_KEY_MEAN = 18u;  // in the record, first word of keyMean: f16 [8 KV heads][128] channels, in the order of pairs, before RoPE
const AT_KEY_FIELDS = 45u;  // in the record, first word of keyFields: u32 [8 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
const AT_VALUE_GAINS = 46u;  // in the record, first word of valueGains: f16 [8 KV heads][128], after Hadamard
const AT_STREAM_KEY_CODES = 22u;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][8 KV heads][128], after RoPE and Hadamard
const AT_STREAM_KEY_NORMS = 23u;  // in the record, first word of streamKeyNorms: f16 [stream][8 KV heads]
const AT_STREAM_VALUE_CODES = 24u;  // in the record, first word of streamValueCodes: 8-bit fields [stream][8 KV heads][128], after Hadamard
const AT_STREAM_VALUE_NORMS = 25u;  // in the record, first word of streamValueNorms: f16 [stream][8 KV heads]
const AT_KEY_WEIGHTS = 27u;  // in the record, first word of keyWeights: f16 [1024 channels], above 0: keys are coded times this
const THREADS = 128u;  // threads of a block
const TILE_TOKENS = 8u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(1) var<storage, read> cache: array<u32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(2) var<storage, read> tables: array<f32>;
// f16 [8 KV heads][tokens][128], after RoPE
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;
// f16 [8 KV heads][tokens][128]
@group(0) @binding(4) var<storage, read_write> values: array<u32>;

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
fn add_angles(coarse: vec2f, fine: vec2f) -> vec2f {
  return vec2f(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 64, pairs = 64, interleaved = 0
// The first channel of a pair.
fn first_of_pair_64_64_0(pair: u32) -> u32 {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 64, pairs = 64, interleaved = 0
// The second channel of a pair.
fn second_of_pair_64_64_0(pair: u32) -> u32 {
  return pair + 64u;
}

// dsl/codecs/unrope.ts:16 rotatePair
// Turns the pair (a, b) by the angle whose cosine and sine are given.
fn rotate_pair(a: f32, b: f32, angle: vec2f) -> vec2f {
  return vec2f(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}

// dsl/codecs/unrope.ts:22 unrotatePair
// Undoes `rotatePair`.
fn unrotate_pair(a: f32, b: f32, angle: vec2f) -> vec2f {
  return vec2f(a * angle.x + b * angle.y, b * angle.x - a * angle.y);
}

// dsl/codecs/pca.ts:158 signedByte
// Byte `lane` (0 to 3) of a word as a signed integer.
fn signed_byte(word: u32, lane: u32) -> f32 {
  let byte: i32 = i32((word >> (lane * 8u)) & 255u);
  return f32(select(byte, byte - 256, byte > 127));
}

// dsl/codecs/midRise.ts:35 midRiseValue
// What a field stands for, in steps.
fn mid_rise_value(field: u32, bits: u32) -> f32 {
  return f32(i32(field) - (1 << (bits - 1u))) + 0.5;
}

// dsl/codecs/tileRows.ts:9 planeByte, components = 16
// Byte of a byte plane that holds the fields of a component of its group.
fn plane_byte_16(position: u32, component: u32) -> u32 {
  let in_half: u32 = position % 32u;
  let row: u32 = position / 32u * 8u + in_half % 8u;
  let word: u32 = (row * 4u + component / 4u) * 4u + in_half / 8u;
  return word * 4u + component % 4u;
}

// dsl/codecs/tileRows.ts:18 nibbleByte, components = 16
// Byte of a nibble plane; positions 0 to 31 of the row have its low nibble, the others its high one.
fn nibble_byte_16(position: u32, component: u32) -> u32 {
  let in_half: u32 = position % 32u;
  let word: u32 = (in_half % 8u * 4u + component / 4u) * 4u + in_half / 8u;
  return word * 4u + component % 4u;
}

// dsl/codecs/tileRows.ts:30 valueBit, headDim = 128, abreast = 4
// Bit of a head's value codes at which the code of a channel begins.
fn value_bit_128_4(position: u32, channel: u32) -> u32 {
  let in_half: u32 = position % 32u;
  let quad: u32 = channel / 4u;
  let word: u32 = quad / 8u;
  let lane: u32 = quad % 8u * 4u + in_half / 2u % 4u;
  let row: u32 = in_half % 2u * 1u + word / 4u;
  let at: u32 = position / 32u * 256u + ((row * 32u + lane) * 4u + word % 4u);
  return at * 32u + in_half / 8u * 8u + channel % 4u * 2u;
}

// dsl/codecs/tileRows.ts:45 normPlace
// Place of a position's norm among the 64 of a head.
fn norm_place(position: u32) -> u32 {
  let in_half: u32 = position % 32u;
  return position / 32u * 32u + in_half % 8u * 4u + in_half / 8u;
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

// Where the fields of one KV head lie.
struct HeadCodes {
  rows: u32,     // of the head in row 0
  fields: u32,   // of every group: bits + 16 * bit + 65536 * slot
  nibbles: u32,  // of all fields: two a byte plane, the last odd one a nibble plane
}

fn find_codes(head: u32) -> HeadCodes {
  let fields = field(AT_KEY_FIELDS) + head * FIELD_WORDS;
  return HeadCodes(field(AT_TILE_CODES) + cache[fields + GROUPS + 1u], fields, cache[fields + GROUPS]);
}

// A component of the key at a position, in steps; zero where its group has no bits.
fn key_component(codes: HeadCodes, position: u32, component: u32) -> f32 {
  let own = cache[codes.fields + component / GROUP_COMPONENTS];
  let bits = own & 15u;
  if (bits == 0u) {
    return 0.0;
  }
  let bit = (own >> 4u) & 0xfffu;
  let plane = bit / 8u;
  let in_row = position % ROW_POSITIONS;
  let in_group = component % GROUP_COMPONENTS;
  var byte = 0u;
  var shift = bit % 8u;
  if (codes.nibbles % 2u == 1u && plane == codes.nibbles / 2u) {
    byte = nibble_byte_16(in_row, in_group);
    shift += in_row / 32u * 4u;
  } else {
    byte = plane_byte_16(in_row, in_group);
  }
  let row = codes.rows + position / ROW_POSITIONS * TILE_ROW_WORDS;
  let word = cache[row + plane * ROW_POSITIONS * GROUP_COMPONENTS / 4u + byte / 4u];
  return mid_rise_value((word >> (byte % 4u * 8u + shift)) & ((1u << bits) - 1u), bits);
}

// The step of a component at a position, times the scale of its column of the basis.
fn step_at(position: u32, head: u32, component: u32) -> f32 {
  let block = position / RANGE_BLOCK;
  return half_at(field(AT_KEY_STEPS), (block * KV_HEADS + head) * HEAD_DIM + component) / 128.0;
}

// A channel of one head of a middle value, in Hadamard space, before its gain.
fn middle_value(token: u32, head: u32, channel: u32) -> f32 {
  let codes = find_codes(head);
  let position = field(AT_SINK_TOKENS) + token;
  let values = codes.rows + position / ROW_POSITIONS * TILE_ROW_WORDS + codes.nibbles * 8u * GROUP_COMPONENTS;
  let in_row = position % ROW_POSITIONS;
  let bit = value_bit_128_4(in_row, channel);
  let code = (cache[values + bit / 32u] >> (bit % 32u)) & 3u;
  return half_at(values + 4u * HEAD_DIM, norm_place(in_row)) * tables[VALUE_LEVELS + code];
}

// Components of one key, in steps of the int8 basis.
var<workgroup> components: array<f32, HEAD_DIM>;

// Puts the key at a position of the middle into `vector`. Barriers: all threads of the block must call it.
fn rebuild_key(position: u32, head: u32, thread: u32) {
  if (thread < HEAD_DIM) {
    let code = key_component(find_codes(head), position, thread);
    // A component without bits may have no step that is a number.
    components[thread] = 0.0;
    if (code != 0.0) {
      components[thread] = code * step_at(position, head, thread);
    }
  }
  workgroupBarrier();  // the components are there
  if (thread < HEAD_DIM) {
    let basis = field(AT_KEY_BASIS) + head * HEAD_DIM * (HEAD_DIM / 4u);
    var sum = 0.0;
    for (var r = 0u; r < HEAD_DIM; r++) {
      if (components[r] != 0.0) {
        sum += components[r] * signed_byte(cache[basis + r * (HEAD_DIM / 4u) + thread / 4u], thread % 4u);
      }
    }
    vector[thread] = sum / half_at(field(AT_KEY_WEIGHTS), head * HEAD_DIM + thread);
  }
  workgroupBarrier();  // the key about its mean is there, its channels in the order of pairs
  var turned = vec2f();
  if (thread < PAIRS) {
    let at = head * HEAD_DIM + thread;
    let mean = vec2f(half_at(field(AT_KEY_MEAN), at), half_at(field(AT_KEY_MEAN), at + PAIRS));
    let angle = TILE_ANGLES + (position % TILE * PAIRS + thread) * 2u;
    let centred = unrotate_pair(vector[thread], vector[PAIRS + thread], vec2f(tables[angle], tables[angle + 1u]));
    turned = rotate_pair(centred.x + mean.x, centred.y + mean.y, angle_of(position, thread));
  }
  workgroupBarrier();  // all pairs have been read before they are put where the model has them
  if (thread < PAIRS) {
    vector[first_of_pair_64_64_0(thread)] = turned.x;
    vector[second_of_pair_64_64_0(thread)] = turned.y;
  }
  workgroupBarrier();  // all channels are there
}

// One tile of tokens of one KV head a block, one channel a thread. A tile may lie in several segments.
@compute @workgroup_size(128)
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
    // The key.
    var factor = HADAMARD_SCALE;
    if (token >= middle_end) {
      if (thread < HEAD_DIM) {
        let codes = field(AT_STREAM_KEY_CODES);
        vector[thread] = stream_channel(codes, field(AT_STREAM_KEY_NORMS), token - middle_end, head, thread);
      }
      transform_vector(thread);
    } else {
      // A token's place in the sequence is its position.
      rebuild_key(token, head, thread);
      factor = 1.0;
    }
    for (var word = thread; word < HEAD_WORDS; word += THREADS) {
      keys[row + word] = saturated_pair(vector[word * 2u] * factor, vector[word * 2u + 1u] * factor);
    }
    workgroupBarrier();  // all channels have been read before the value takes their place
    // The value.
    if (thread < HEAD_DIM) {
      if (token >= middle_end) {
        let codes = field(AT_STREAM_VALUE_CODES);
        vector[thread] = stream_channel(codes, field(AT_STREAM_VALUE_NORMS), token - middle_end, head, thread);
      } else {
        vector[thread] = half_at(field(AT_VALUE_GAINS), head * HEAD_DIM + thread) * middle_value(token - sinks_end, head, thread);
      }
    }
    transform_vector(thread);
    for (var word = thread; word < HEAD_WORDS; word += THREADS) {
      values[row + word] = saturated_pair(vector[word * 2u] * HADAMARD_SCALE, vector[word * 2u + 1u] * HADAMARD_SCALE);
    }
    workgroupBarrier();  // all channels have been read before the next key takes their place
  }
}
