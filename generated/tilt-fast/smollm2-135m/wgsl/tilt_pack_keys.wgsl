// tilt_pack_keys: Quantises the components and packs their fields; one word of the key planes of a row a thread.
// Stage codeKeys of scheme tilt-fast for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

const HEAD_DIM = 64u;  // channels of a head
const KV_HEADS = 3u;  // KV heads
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const RANGE_BLOCK = 512u;  // positions that share the steps of components; 0 for all
const GROUP_COMPONENTS = 8u;  // components that share a width
const GROUPS = 8u;  // groups of components of a KV head
const FIELD_WORDS = 10u;  // words that describe the fields of a KV head's key codes
const ROW_POSITIONS = 64u;  // positions of a row of codes
const TILE_ROW_WORDS = 1440u;  // words of a row of codes, all KV heads
const ROW_VALUE_WORDS = 288u;  // words of a KV head's value codes and norms in a row
const KEY_NIBBLES = 9u;  // nibbles of a group that a row has for all KV heads
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_TILE_CODES = 43u;  // in the record, first word of tileCodes: [rows of 64 positions][3 KV heads]: planes of key fields, 2-bit value codes, f16 norms
const AT_KEY_FIELDS = 45u;  // in the record, first word of keyFields: u32 [3 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
const THREADS = 128u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][192 components]
@group(0) @binding(1) var<storage, read> coefficients: array<f32>;
// [range blocks][192 components], as the stored ones stand for
@group(0) @binding(2) var<storage, read> steps: array<f32>;
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

const PLANE_WORDS = ROW_POSITIONS * GROUP_COMPONENTS / 4u;  // of a byte plane
const KEY_WORDS = KEY_NIBBLES * PLANE_WORDS / 2u;           // of a row, all KV heads

// Fields of one position: four components from `first_component` on of every group that has its field in the plane.
fn fields_of(position: u32, head: u32, plane: u32, first_component: u32) -> u32 {
  let sinks = sequence[AT_SINK_TOKENS];
  if (position < sinks || position >= sinks + sequence[AT_MIDDLE_TOKENS]) {
    return 0u;
  }
  let row = (position - sinks) * WIDTH + head * HEAD_DIM;
  let own_steps = (position / RANGE_BLOCK * KV_HEADS + head) * HEAD_DIM;
  let fields = sequence[AT_KEY_FIELDS] + head * FIELD_WORDS;
  var packed = 0u;
  for (var group = 0u; group < GROUPS; group++) {
    let bits = cache[fields + group] & 15u;
    let bit = (cache[fields + group] >> 4u) & 0xfffu;
    if (bits == 0u || bit / 8u != plane) {
      continue;
    }
    for (var lane = 0u; lane < 4u; lane++) {
      let component = group * GROUP_COMPONENTS + first_component + lane;
      let code = mid_rise_field(coefficients[row + component], steps[own_steps + component], bits);
      packed |= code << (lane * 8u + bit % 8u);
    }
  }
  return packed;
}

// One word of the key planes of a row a thread: of a byte plane four components of one position, of a nibble plane those of
// two. Positions of a row that are not of the middle, and nibbles that no head takes, are zero.
@compute @workgroup_size(128)
fn tilt_pack_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let sinks = sequence[AT_SINK_TOKENS];
  let end = sinks + sequence[AT_MIDDLE_TOKENS];
  let first_position = block.x * ROW_POSITIONS;
  let word = block.y * THREADS + thread;
  if (first_position >= end || end == sinks || word >= KEY_WORDS) {
    return;
  }
  let codes = sequence[AT_TILE_CODES] + block.x * TILE_ROW_WORDS;
  var fields = sequence[AT_KEY_FIELDS];
  var head = 0u;
  var start = 0u;  // key words of the heads before
  while (head < KV_HEADS && word >= start + cache[fields + GROUPS] * (PLANE_WORDS / 2u)) {
    start += cache[fields + GROUPS] * (PLANE_WORDS / 2u);
    fields += FIELD_WORDS;
    head++;
  }
  if (head == KV_HEADS) {
    cache[codes + KV_HEADS * ROW_VALUE_WORDS + word] = 0u;
    return;
  }
  let inside = word - start;
  let plane = inside / PLANE_WORDS;
  let nibbles = cache[fields + GROUPS];
  let first_component = inside / 4u % (GROUP_COMPONENTS / 4u) * 4u;
  let line = inside % PLANE_WORDS / GROUP_COMPONENTS;
  let position = first_position + line / 8u * 32u + inside % 4u * 8u + line % 8u;
  var packed = fields_of(position, head, plane, first_component);
  if (nibbles % 2u == 1u && plane == nibbles / 2u) {
    packed |= fields_of(position + 32u, head, plane, first_component) << 4u;
  }
  cache[codes + cache[fields + GROUPS + 1u] + inside] = packed;
}
