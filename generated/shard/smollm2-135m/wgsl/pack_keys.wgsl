// pack_keys: Quantises the coefficients and packs their fields; one word of one token a thread.
// Stage project of scheme shard for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const RANK = 32u;  // components of a key
const KEY_ROW_WORDS = 4u;  // words of one token's key fields
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_KEY_CODES = 14u;  // in the record, first word of keyCodes: 4-bit fields [middle][32 components]
const THREADS = 128u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][32]
@group(0) @binding(1) var<storage, read> coefficients: array<f32>;
// [32]
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
  if (word >= 0u && word < 0u + 4u) {
    first_component = 0u;
    packed = pack_word_4(word - 0u, 32u);
  }
  cache[sequence[AT_KEY_CODES] + i] = packed;
}
