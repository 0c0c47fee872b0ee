// sign_keys: What the codes of keys leave: the signs of its random projection, and its length; one channel a thread.
// Stage codeKeys of scheme turboquant-prod4 for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   hadamard, perToken(lloydMax, 3 bits; a scale for a head of 1 token)
// values: hadamard, perToken(lloydMax, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 4, window 64
// tunables: tileTokens = 16

const HEAD_DIM = 64u;  // channels of a head
const PAIRS = 32u;  // pairs of channels of a head; those past the rotary ones have angle zero
const KV_HEADS = 3u;  // KV heads
const KEY_ROW_WORDS = 18u;  // words of one token's key fields
const KEY_HEAD_WORDS = 6u;  // words of one head's key fields
const KEY_SCALE_TOKENS = 1u;  // middle tokens that share a scale; 0 for all of them
const KEY_SCALE_CHANNELS = 64u;  // channels of a head that share a scale
const KEY_SCALE_ROW_WORDS = 2u;  // words of a row of scales, two each
const HADAMARD_BLOCK = 64u;  // channels of one Hadamard block
const HADAMARD_SCALE = 0.125;  // 1 / sqrt(HADAMARD_BLOCK)
const NORM_WORDS = 2u;  // words of one stream token's norms, two each
const KEY_LEVELS = 16u;  // offset in the tables: values of the codes of keys, over their scales
const PROJECTION_SIGNS = 40u;  // offset in the tables: signs of channels before the projection of residuals
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_KEY_CODES = 14u;  // in the record, first word of keyCodes: 3-bit fields [middle][3 KV heads][64], after Hadamard
const AT_KEY_SCALES = 15u;  // in the record, first word of keyScales: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
const AT_RESIDUAL_SIGNS = 47u;  // in the record, first word of residualSigns: bits [middle][3 KV heads][64]: 1 where the projection of what the codes leave is not below zero
const AT_RESIDUAL_NORMS = 48u;  // in the record, first word of residualNorms: f16 [middle][3 KV heads]: length of what the codes leave
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][192], after Hadamard
@group(0) @binding(1) var<storage, read> plain: array<f32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(2) var<storage, read> tables: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

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

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
fn butterfly(a: f32, b: f32) -> vec2f {
  return vec2f(a + b, a - b);
}

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

var<workgroup> squares: array<f32, HEAD_DIM / 32u>;

// A tile of middle tokens of two KV heads, whose lengths share a word.
@compute @workgroup_size(64)
fn sign_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let first = block.x * TILE_TOKENS;
  let end = min(first + TILE_TOKENS, sequence[AT_MIDDLE_TOKENS]);
  for (var token = first; token < end; token++) {
    var lengths = vec2f();
    for (var side = 0u; side < 2u; side++) {
      let head = block.y * 2u + side;
      if (head >= KV_HEADS) {
        break;
      }
      let row = token * KV_HEADS + head;
      let residual = plain[row * HEAD_DIM + thread] - middle_key(token, head, thread);
      vector[thread] = residual * tables[PROJECTION_SIGNS + thread];
      transform_vector(thread);
      // Signs come 32 to a word; the length of a vector is that of its projection.
      if (thread < HEAD_DIM / 32u) {
        var signs = 0u;
        var sum = 0.0;
        for (var i = 0u; i < 32u; i++) {
          let x = vector[thread * 32u + i] * HADAMARD_SCALE;
          signs |= select(1u, 0u, x < 0.0) << i;
          sum += x * x;
        }
        cache[sequence[AT_RESIDUAL_SIGNS] + row * (HEAD_DIM / 32u) + thread] = signs;
        squares[thread] = sum;
      }
      workgroupBarrier();  // the squares are summed up, and the channels have been read
      var square = 0.0;
      for (var i = 0u; i < HEAD_DIM / 32u; i++) {
        square += squares[i];
      }
      lengths[side] = min(sqrt(square), 65504.0);
    }
    if (thread == 0u) {
      cache[sequence[AT_RESIDUAL_NORMS] + token * NORM_WORDS + block.y] = pack2x16float(lengths);
    }
  }
}
