// tilt_pack_values: Quantises the values and packs their codes and norms; one word of a row a thread.
// Stage codeValues of scheme tilt-fast for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const HEAD_DIM = 128u;  // channels of a head
const KV_HEADS = 8u;  // KV heads
const GROUP_COMPONENTS = 16u;  // components that share a width
const GROUPS = 8u;  // groups of components of a KV head
const FIELD_WORDS = 10u;  // words that describe the fields of a KV head's key codes
const ROW_POSITIONS = 64u;  // positions of a row of codes
const TILE_ROW_WORDS = 7424u;  // words of a row of codes, all KV heads
const ROW_VALUE_WORDS = 544u;  // words of a KV head's value codes and norms in a row
const VALUE_LEVELS = 256u;  // offset in the tables: values of the codes of values, over their scales
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_TILE_CODES = 43u;  // in the record, first word of tileCodes: [rows of 64 positions][8 KV heads]: planes of key fields, 2-bit value codes, f16 norms
const AT_KEY_FIELDS = 45u;  // in the record, first word of keyFields: u32 [8 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
const THREADS = 128u;  // threads of a block
const ABREAST = 4u;  // words of a lane's value codes that lie side by side

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][1024], after Hadamard
@group(0) @binding(1) var<storage, read> plain: array<f32>;
// [middle tokens][8 KV heads], rounded to f16
@group(0) @binding(2) var<storage, read> norms: array<f32>;
// stream levels, then fine and coarse angles as (cosine, sine)
@group(0) @binding(3) var<storage, read> tables: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(4) var<storage, read_write> cache: array<u32>;

// dsl/codecs/lloydMax.ts:65 nearestLevel, bits = 2
// Index of the level nearest to `x` (a channel over its norm), by bisection of the midpoints.
fn nearest_level_2(x: f32) -> u32 {
  var code: u32 = 0u;
  for (var step: u32 = 0u; step < 2u; step++) {
    let probe: u32 = code + (1u << (1u - step));
    if (x * 2.0 > level_at(probe - 1u) + level_at(probe)) {
      code = probe;
    }
  }
  return code;
}

// dsl/codecs/tileRows.ts:52 normPosition
// The position of the row whose norm lies at a place: the inverse of `normPlace`.
fn norm_position(place: u32) -> u32 {
  let in_half: u32 = place % 32u;
  return place / 32u * 32u + in_half % 4u * 8u + in_half / 4u;
}

fn level_at(index: u32) -> f32 {
  return tables[VALUE_LEVELS + index];
}

// Zero past the middle.
fn norm_at(position: u32, head: u32) -> f32 {
  let sinks = sequence[AT_SINK_TOKENS];
  if (position < sinks || position >= sinks + sequence[AT_MIDDLE_TOKENS]) {
    return 0.0;
  }
  return norms[(position - sinks) * KV_HEADS + head];
}

// One word of the value codes, or two norms, of a row a thread. Positions of a row that are not of the middle are zero.
@compute @workgroup_size(128)
fn tilt_pack_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let sinks = sequence[AT_SINK_TOKENS];
  let end = sinks + sequence[AT_MIDDLE_TOKENS];
  let first_position = block.x * ROW_POSITIONS;
  let word = block.y * THREADS + thread;
  if (first_position >= end || end == sinks || word >= KV_HEADS * ROW_VALUE_WORDS) {
    return;
  }
  let head = word / ROW_VALUE_WORDS;
  let inside = word % ROW_VALUE_WORDS;
  let fields = sequence[AT_KEY_FIELDS] + head * FIELD_WORDS;
  let values = sequence[AT_TILE_CODES] + block.x * TILE_ROW_WORDS + cache[fields + GROUPS + 1u]
    + cache[fields + GROUPS] * 8u * GROUP_COMPONENTS;
  if (inside >= 4u * HEAD_DIM) {
    let place = (inside - 4u * HEAD_DIM) * 2u;
    let low = norm_at(first_position + norm_position(place), head);
    let high = norm_at(first_position + norm_position(place + 1u), head);
    cache[values + inside] = pack2x16float(vec2f(low, high));
    return;
  }
  // Four channels of four positions, 8 apart. The order of lanes, as readers have it, the other way round.
  let rest = inside % (2u * HEAD_DIM);
  let place = rest / ABREAST % 32u;
  let line = rest / (32u * ABREAST);
  let lines = HEAD_DIM / 32u / ABREAST;  // of positions of one parity
  let quad = (line % lines * ABREAST + rest % ABREAST) * 8u + place / 4u;
  let first = first_position + inside / (2u * HEAD_DIM) * 32u + place % 4u * 2u + line / lines;
  var packed = 0u;
  for (var i = 0u; i < 16u; i++) {
    let position = first + i / 4u * 8u;
    if (position < sinks || position >= end) {
      continue;
    }
    let norm = norm_at(position, head);
    let channel = plain[((position - sinks) * KV_HEADS + head) * HEAD_DIM + quad * 4u + i % 4u];
    var over_norm = 0.0;
    if (norm > 0.0) {
      over_norm = channel / norm;
    }
    packed |= nearest_level_2(over_norm) << (i * 2u);
  }
  cache[values + inside] = packed;
}
