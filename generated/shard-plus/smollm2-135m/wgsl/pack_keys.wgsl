// pack_keys: Quantises the coefficients and packs their fields; one word of one token a thread.
// Stage project of scheme shard-plus for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const RANK = 32u;  // components of a key
const ALLOCATED_GROUPS = 2u;  // groups of 16 components with widths of their own
const KEY_ROW_WORDS = 4u;  // words of one token's key fields
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_KEY_CODES = 14u;  // in the record, first word of keyCodes: 0- to 8-bit fields [middle][32 components]
const AT_KEY_WIDTHS = 26u;  // in the record, first word of keyWidths: u32 [2 groups of 16 components]: first bit in the row * 16 + bits a component
const THREADS = 128u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][32]
@group(0) @binding(1) var<storage, read> coefficients: array<f32>;
// [32]
@group(0) @binding(2) var<storage, read> scales: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

// dsl/codecs/midRise.ts:24 midRiseField
// The code of a coefficient as an unsigned field: floor(coefficient / step), clamped, plus 2^(bits-1).
fn mid_rise_field(coefficient: f32, step: f32, bits: u32) -> u32 {
  let half_: i32 = 1 << (bits - 1u);
  var code: f32 = 0.0;
  if (step > 0.0) {
    code = clamp(floor(coefficient / step), -f32(half_), f32(half_ - 1));
  }
  return u32(i32(code) + half_);
}

// dsl/packing.ts:65 packBits, count = 16
// The part of a row's 32-bit word that belongs to one group of fields: `count` of them, `bits` bits each (1 to 8, known when the kernel runs), from bit `first` of the row on.
fn pack_bits_16(word: u32, first: u32, bits: u32) -> u32 {
  let begin: u32 = word * 32u;
  var packed: u32 = 0u;
  for (var i: u32 = 0u; i < 16u; i++) {
    let position: u32 = first + i * bits;
    if (position < begin + 32u && position + bits > begin) {
      let value: u32 = group_field(i);
      if (position >= begin) {
        packed = packed | (value << (position - begin));
      } else {
        packed = packed | (value >> (begin - position));
      }
    }
  }
  return packed;
}

var<workgroup> widths: array<u32, ALLOCATED_GROUPS>;
// The group at hand: where its components begin in the coefficients, and its width.
var<private> row: u32;
var<private> first_component: u32;
var<private> bits: u32;

fn group_field(i: u32) -> u32 {
  let component = first_component + i;
  return mid_rise_field(coefficients[row + component], scales[component], bits);
}

// One thread a word of a token's row. A word may hold the end of one group, whole groups and the start of another.
@compute @workgroup_size(128)
fn pack_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  for (var i = thread; i < ALLOCATED_GROUPS; i += THREADS) {
    widths[i] = cache[sequence[AT_KEY_WIDTHS] + i];
  }
  // Every group's place is known before any thread looks for its own.
  workgroupBarrier();
  // Blocks lie side by side: one dimension of a grid may have no room for those of a long prompt.
  let i = (block.y * KEY_ROW_WORDS + block.x) * THREADS + thread;
  if (i >= sequence[AT_MIDDLE_TOKENS] * KEY_ROW_WORDS) {
    return;
  }
  row = (i / KEY_ROW_WORDS) * RANK;
  let word = i % KEY_ROW_WORDS;
  var packed = 0u;
  for (var group = 0u; group < ALLOCATED_GROUPS; group++) {
    bits = widths[group] & 15u;
    first_component = group * 16u;
    let first = widths[group] >> 4u;
    if (bits > 0u && first < word * 32u + 32u && first + bits * 16u > word * 32u) {
      packed |= pack_bits_16(word, first, bits);
    }
  }
  cache[sequence[AT_KEY_CODES] + i] = packed;
}
