// sparse_values: The outliers of the values, largest residual first; one vector a thread.
// Stage codeValues of scheme kvquant3 for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, perChannel(nuq, 3 bits; a scale for 1 channel of the prompt without 0.005 of its numbers at each end), 2 outliers a token and KV head
// values: perToken(nuq, 3 bits; a scale for a head of 1 token without 0.01 of its numbers at each end), 2 outliers a token and KV head
// stream: lloydMax(3 bits); sinks 5, window 64
// tunables: tileTokens = 16

const HEAD_DIM = 128u;  // channels of a head
const KV_HEADS = 8u;  // KV heads
const VALUE_HEAD_WORDS = 12u;  // words of one head's value fields
const VALUE_SCALE_TOKENS = 1u;  // middle tokens that share a scale; 0 for all of them
const VALUE_SCALE_CHANNELS = 128u;  // channels of a head that share a scale
const VALUE_SCALE_ROW_WORDS = 4u;  // words of a row of scales, two each
const VALUE_OUTLIER_CAP = 2u;  // outliers of a token and KV head, at most
const VALUE_LEVELS = 16u;  // offset in the tables: values of the codes of values, over their scales
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_VALUE_CODES = 19u;  // in the record, first word of valueCodes: 3-bit fields [middle][8 KV heads][128]
const AT_VALUE_SCALES = 29u;  // in the record, first word of valueScales: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
const AT_VALUE_OFFSETS = 30u;  // in the record, first word of valueOffsets: f16 [middle, 1 a row][8 KV heads][1 of 128 channels]
const AT_VALUE_OUTLIERS = 32u;  // in the record, first word of valueOutliers: u32 [middle][8 KV heads][2 largest residuals first]: channel + f16 residual * 2^16; 0 for none
const THREADS = 256u;  // threads of a block
const RANGE_LEAST = -1.0;  // least number over its scale that is no outlier
const RANGE_GREATEST = 1.0;  // greatest number over its scale that is no outlier

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][1024]
@group(0) @binding(1) var<storage, read> plain: array<f32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(2) var<storage, read> tables: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;
// [middle tokens][8 KV heads], outliers past the cap
@group(0) @binding(4) var<storage, read_write> clamped: array<u32>;

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
fn level_value(code: u32) -> f32 {
  return level_at(code);
}

// dsl/packing.ts:32 unpackField, bits = 3
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
fn unpack_field_3(index: u32) -> u32 {
  let position: u32 = index * 3u;
  let word: u32 = position / 32u;
  let shift: u32 = position % 32u;
  var value: u32 = word_at(word) >> shift;
  if (shift + 3u > 32u) {
    value = value | (word_at(word + 1u) << (32u - shift));
  }
  return value & 7u;
}

const CAP = VALUE_OUTLIER_CAP;

// Word of the sequence's record.
fn field(index: u32) -> u32 {
  return sequence[index];
}

fn level_at(index: u32) -> f32 {
  return tables[VALUE_LEVELS + index];
}

var<private> codes: u32;
fn word_at(index: u32) -> u32 {
  return cache[codes + index];
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

// Outliers of one token and KV head a thread: of the numbers beyond the range of their code those that it is farthest from.
@compute @workgroup_size(256)
fn sparse_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let vector = block.x * THREADS + thread;
  if (vector >= sequence[AT_MIDDLE_TOKENS] * KV_HEADS) {
    return;
  }
  codes = sequence[AT_VALUE_CODES] + vector * VALUE_HEAD_WORDS;
  var sizes: array<f32, CAP>;  // of the residuals kept, largest first
  var kept: array<u32, CAP>;
  var found = 0u;
  for (var channel = 0u; channel < HEAD_DIM; channel++) {
    let affine = block_of_values(vector / KV_HEADS, vector % KV_HEADS, channel);
    let x = plain[vector * HEAD_DIM + channel];
    let difference = x - affine.x;
    if (difference >= affine.y * RANGE_LEAST && difference <= affine.y * RANGE_GREATEST) {
      continue;
    }
    found++;
    let decoded = affine.x + affine.y * level_value(unpack_field_3(channel));
    let residual = x - decoded;
    var size = abs(residual);
    var entry = channel | (pack2x16float(vec2f(clamp(residual, -65504.0, 65504.0))) & 0xffff0000u);
    // Of residuals of one size the first channel's stays before the others.
    var moves = false;
    for (var i = 0u; i < CAP; i++) {
      moves = moves || size > sizes[i];
      if (moves) {
        let smaller = sizes[i];
        let next = kept[i];
        sizes[i] = size;
        kept[i] = entry;
        size = smaller;
        entry = next;
      }
    }
  }
  let outliers = sequence[AT_VALUE_OUTLIERS] + vector * CAP;
  for (var i = 0u; i < CAP; i++) {
    cache[outliers + i] = kept[i];
  }
  clamped[vector] = found - min(found, CAP);
}
