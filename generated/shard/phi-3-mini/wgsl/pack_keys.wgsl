// pack_keys: Quantises the coefficients and packs their fields; one word of one token a thread.
// Stage project of scheme shard for phi-3-mini. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 576, bits 4/4/4/4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const RANK = 576u;  // components of a key
const KEY_ROW_WORDS = 72u;  // words of one token's key fields
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_KEY_CODES = 14u;  // in the record, first word of keyCodes: 4-bit fields [middle][576 components]
const THREADS = 128u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][576]
@group(0) @binding(1) var<storage, read> coefficients: array<f32>;
// [576]
@group(0) @binding(2) var<storage, read> scales: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

// dsl/codecs/pca.ts:125 coefficientField, bits = 4
// The code of a coefficient as an unsigned field (offset binary): code + 2^(bits-1), code in [-limit, limit].
fn coefficient_field_4(coefficient: f32, scale: f32) -> u32 {
  var code: f32 = 0.0;
  if (scale > 0.0) {
    code = clamp(round(coefficient / scale), -7.0, 7.0);
  }
  return u32(i32(code) + 8);
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
      let value: u32 = group_field_4(field);
      if (position >= first_bit) {
        packed = packed | (value << (position - first_bit));
      } else {
        packed = packed | (value >> (first_bit - position));
      }
    }
  }
  return packed;
}

// What the word at hand belongs to.
var<private> token: u32;
var<private> first_component: u32;

// Field i of the group, at 4 bits.
fn group_field_4(i: u32) -> u32 {
  let component = first_component + i;
  return coefficient_field_4(coefficients[token * RANK + component], scales[component]);
}

// One thread a word of a token's row.
@compute @workgroup_size(128)
fn pack_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // Blocks lie side by side: one dimension of a grid may have no room for those of a long prompt.
  let i = (block.y * KEY_ROW_WORDS + block.x) * THREADS + thread;
  if (i >= sequence[AT_MIDDLE_TOKENS] * KEY_ROW_WORDS) {
    return;
  }
  token = i / KEY_ROW_WORDS;
  let word = i % KEY_ROW_WORDS;
  var packed = 0u;
  // Group 0: components 0 on, 4 bits each.
  if (word >= 0u && word < 0u + 8u) {
    first_component = 0u;
    packed = pack_word_4(word - 0u, 64u);
  }
  // Group 1: components 64 on, 4 bits each.
  if (word >= 8u && word < 8u + 8u) {
    first_component = 64u;
    packed = pack_word_4(word - 8u, 64u);
  }
  // Group 2: components 128 on, 4 bits each.
  if (word >= 16u && word < 16u + 8u) {
    first_component = 128u;
    packed = pack_word_4(word - 16u, 64u);
  }
  // Group 3: components 192 on, 4 bits each.
  if (word >= 24u && word < 24u + 8u) {
    first_component = 192u;
    packed = pack_word_4(word - 24u, 64u);
  }
  // Group 4: components 256 on, 4 bits each.
  if (word >= 32u && word < 32u + 8u) {
    first_component = 256u;
    packed = pack_word_4(word - 32u, 64u);
  }
  // Group 5: components 320 on, 4 bits each.
  if (word >= 40u && word < 40u + 8u) {
    first_component = 320u;
    packed = pack_word_4(word - 40u, 64u);
  }
  // Group 6: components 384 on, 4 bits each.
  if (word >= 48u && word < 48u + 8u) {
    first_component = 384u;
    packed = pack_word_4(word - 48u, 64u);
  }
  // Group 7: components 448 on, 4 bits each.
  if (word >= 56u && word < 56u + 8u) {
    first_component = 448u;
    packed = pack_word_4(word - 56u, 64u);
  }
  // Group 8: components 512 on, 4 bits each.
  if (word >= 64u && word < 64u + 8u) {
    first_component = 512u;
    packed = pack_word_4(word - 64u, 64u);
  }
  cache[sequence[AT_KEY_CODES] + i] = packed;
}
