// tilt_pack_keys: Quantises the components and packs their fields; one word of the key planes of a row a thread.
// Stage codeKeys of scheme tilt-fast for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 RANGE_BLOCK = 512;  // positions that share the steps of components; 0 for all
constexpr u32 GROUP_COMPONENTS = 16;  // components that share a width
constexpr u32 GROUPS = 8;  // groups of components of a KV head
constexpr u32 FIELD_WORDS = 10;  // words that describe the fields of a KV head's key codes
constexpr u32 ROW_POSITIONS = 64;  // positions of a row of codes
constexpr u32 TILE_ROW_WORDS = 7424;  // words of a row of codes, all KV heads
constexpr u32 ROW_VALUE_WORDS = 544;  // words of a KV head's value codes and norms in a row
constexpr u32 KEY_NIBBLES = 24;  // nibbles of a group that a row has for all KV heads
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_TILE_CODES = 43;  // in the record, first word of tileCodes: [rows of 64 positions][8 KV heads]: planes of key fields, 2-bit value codes, f16 norms
constexpr u32 AT_KEY_FIELDS = 45;  // in the record, first word of keyFields: u32 [8 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
constexpr u32 THREADS = 128;  // threads of a block

// dsl/codecs/midRise.ts:24 midRiseField
// The code of a coefficient as an unsigned field: floor(coefficient / step), clamped, plus 2^(bits-1).
__device__ __forceinline__ u32 mid_rise_field(float coefficient, float step, u32 bits) {
  const int half_ = 1 << (bits - 1u);
  float code = 0.0f;
  if (step > 0.0f) {
    code = fminf(fmaxf(floorf(coefficient / step), -float(half_)), float(half_ - 1));
  }
  return u32(int(code) + half_);
}

constexpr u32 plane_words = ROW_POSITIONS * GROUP_COMPONENTS / 4;  // of a byte plane
constexpr u32 key_words = KEY_NIBBLES * plane_words / 2;           // of a row, all KV heads

// One word of the key planes of a row a thread: of a byte plane four components of one position, of a nibble plane those of
// two. Positions of a row that are not of the middle, and nibbles that no head takes, are zero.
extern "C" __global__ void __launch_bounds__(128) tilt_pack_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ coefficients,  // [middle tokens][1024 components]
    const float* __restrict__ steps,  // [range blocks][1024 components], as the stored ones stand for
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  const u32 sinks = sequence[AT_SINK_TOKENS];
  const u32 end = sinks + sequence[AT_MIDDLE_TOKENS];
  const u32 row = blockIdx.x;
  const u32 word = blockIdx.y * THREADS + threadIdx.x;
  if (row * ROW_POSITIONS >= end || end == sinks || word >= key_words) return;

  u32* codes = cache + sequence[AT_TILE_CODES] + row * TILE_ROW_WORDS;
  const u32* fields = cache + sequence[AT_KEY_FIELDS];
  u32 head = 0;
  u32 start = 0;  // key words of the heads before
  while (head < KV_HEADS && word >= start + fields[GROUPS] * (plane_words / 2)) {
    start += fields[GROUPS] * (plane_words / 2);
    fields += FIELD_WORDS;
    ++head;
  }
  if (head == KV_HEADS) {
    codes[KV_HEADS * ROW_VALUE_WORDS + word] = 0;
    return;
  }

  const u32 inside = word - start;
  const u32 plane = inside / plane_words;
  const bool in_nibbles = fields[GROUPS] % 2 == 1 && plane == fields[GROUPS] / 2;
  const u32 first_component = inside / 4 % (GROUP_COMPONENTS / 4) * 4;
  const u32 line = inside % plane_words / GROUP_COMPONENTS;
  const u32 in_row = line / 8 * 32 + inside % 4 * 8 + line % 8;
  u32 packed = 0;
  // Fields of one position, four components of every group that has its field in this plane.
  const auto add_fields = [&](u32 position, u32 shift) {
    if (position < sinks || position >= end) return;
    const u32 row_at = (position - sinks) * WIDTH + head * HEAD_DIM;
    const u32 steps_at = (position / RANGE_BLOCK * KV_HEADS + head) * HEAD_DIM;
    for (u32 group = 0; group < GROUPS; ++group) {
      const u32 bits = fields[group] & 15u;
      const u32 bit = fields[group] >> 4 & 0xfffu;
      if (bits == 0 || bit / 8 != plane) continue;
      for (u32 lane = 0; lane < 4; ++lane) {
        const u32 component = group * GROUP_COMPONENTS + first_component + lane;
        const u32 field = mid_rise_field(coefficients[row_at + component], steps[steps_at + component], bits);
        packed |= field << lane * 8 + bit % 8 + shift;
      }
    }
  };
  add_fields(row * ROW_POSITIONS + in_row, 0);
  if (in_nibbles) add_fields(row * ROW_POSITIONS + 32 + in_row, 4);
  codes[fields[GROUPS + 1] + inside] = packed;
}
