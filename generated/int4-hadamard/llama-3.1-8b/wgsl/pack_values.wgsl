// pack_values: Quantises the values and packs their codes; one word of one vector a thread.
// Stage codeValues of scheme int4-hadamard for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   hadamard, perToken(asymmetric, 4 bits; a scale for a head of 1 token)
// values: hadamard, perToken(asymmetric, 4 bits; a scale for a head of 1 token)
// stream: lloydMax(4 bits); sinks 4, window 64
// tunables: tileTokens = 16

const HEAD_DIM = 128u;  // channels of a head
const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const VALUE_ROW_WORDS = 128u;  // words of one token's value fields
const VALUE_HEAD_WORDS = 16u;  // words of one head's value fields
const VALUE_SCALE_TOKENS = 1u;  // middle tokens that share a scale; 0 for all of them
const VALUE_SCALE_CHANNELS = 128u;  // channels of a head that share a scale
const VALUE_SCALE_ROW_WORDS = 4u;  // words of a row of scales, two each
const VALUE_LEVELS = 32u;  // offset in the tables: values of the codes of values, over their scales
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_VALUE_CODES = 19u;  // in the record, first word of valueCodes: 4-bit fields [middle][8 KV heads][128], after Hadamard
const AT_VALUE_SCALES = 29u;  // in the record, first word of valueScales: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
const AT_VALUE_OFFSETS = 30u;  // in the record, first word of valueOffsets: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
const THREADS = 256u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][1024], after Hadamard
@group(0) @binding(1) var<storage, read> plain: array<f32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(2) var<storage, read> tables: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

// dsl/codecs/uniform.ts:85 asymmetricCode, bits = 4
// The nearest of the codes 0 to 2^bits - 1, the first for zero and the last for one.
fn asymmetric_code_4(x: f32) -> u32 {
  return u32(clamp(round(x * 15.0), 0.0, 15.0));
}

// dsl/packing.ts:11 packWord, bits = 4
// Builds one 32-bit word of a little-endian bit-field row: field `i` occupies bits `[i*bits, (i+1)*bits)` of the row.
fn pack_word_4(word: u32, count: u32) -> u32 {
  let first_bit: u32 = word * 32u;
  let first: u32 = first_bit / 4u;
  var packed: u32 = 0u;
  for (var i: u32 = 0u; i < 9u; i++) {
    let field: u32 = first + i;
    let position: u32 = field * 4u;
    if (field < count && position < first_bit + 32u) {
      let value: u32 = field_at(field);
      if (position >= first_bit) {
        packed = packed | (value << (position - first_bit));
      } else {
        packed = packed | (value >> (first_bit - position));
      }
    }
  }
  return packed;
}

// The vector of which a word is packed.
var<private> token: u32;
var<private> head: u32;

// Word of the sequence's record.
fn field(index: u32) -> u32 {
  return sequence[index];
}

fn level_at(index: u32) -> f32 {
  return tables[VALUE_LEVELS + index];
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

// The offset and the scale that a channel of the middle values shares with its block.
fn block_of_values(token: u32, head: u32, channel: u32) -> vec2f {
  let row = token / VALUE_SCALE_TOKENS * VALUE_SCALE_ROW_WORDS;
  let index = (head * HEAD_DIM + channel) / VALUE_SCALE_CHANNELS;
  let scale = half_at(field(AT_VALUE_SCALES) + row, index);
  return vec2f(half_at(field(AT_VALUE_OFFSETS) + row, index), scale);
}

// The code of a channel.
fn field_at(channel: u32) -> u32 {
  let affine = block_of_values(token, head, channel);
  let x = plain[token * WIDTH + head * HEAD_DIM + channel] - affine.x;
  var over_scale = 0.0;
  if (affine.y > 0.0) {
    over_scale = x / affine.y;
  }
  return asymmetric_code_4(over_scale);
}

// One thread a word of a token's row.
@compute @workgroup_size(256)
fn pack_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // Blocks of THREADS tokens lie side by side: one dimension of a grid may have no room for those of a long prompt.
  let i = (block.y * VALUE_ROW_WORDS + block.x) * THREADS + thread;
  if (i >= sequence[AT_MIDDLE_TOKENS] * VALUE_ROW_WORDS) {
    return;
  }
  token = i / VALUE_ROW_WORDS;
  head = i % VALUE_ROW_WORDS / VALUE_HEAD_WORDS;
  cache[sequence[AT_VALUE_CODES] + i] = pack_word_4(i % VALUE_HEAD_WORDS, HEAD_DIM);
}
