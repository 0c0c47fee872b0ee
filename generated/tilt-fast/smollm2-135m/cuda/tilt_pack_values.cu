// tilt_pack_values: Quantises the values and packs their codes and norms; one word of a row a thread.
// Stage codeValues of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 GROUP_COMPONENTS = 8;  // components that share a width
constexpr u32 GROUPS = 8;  // groups of components of a KV head
constexpr u32 FIELD_WORDS = 10;  // words that describe the fields of a KV head's key codes
constexpr u32 ROW_POSITIONS = 64;  // positions of a row of codes
constexpr u32 TILE_ROW_WORDS = 1440;  // words of a row of codes, all KV heads
constexpr u32 ROW_VALUE_WORDS = 288;  // words of a KV head's value codes and norms in a row
constexpr u32 VALUE_LEVELS = 256;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_TILE_CODES = 43;  // in the record, first word of tileCodes: [rows of 64 positions][3 KV heads]: planes of key fields, 2-bit value codes, f16 norms
constexpr u32 AT_KEY_FIELDS = 45;  // in the record, first word of keyFields: u32 [3 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 ABREAST = 2;  // words of a lane's value codes that lie side by side

// dsl/codecs/lloydMax.ts:65 nearestLevel, bits = 2
// Index of the level nearest to `x` (a channel over its norm), by bisection of the midpoints.
template <typename Levels>
__device__ __forceinline__ u32 nearest_level_2(float x, Levels levels) {
  u32 code = 0u;
  #pragma unroll
  for (u32 step = 0u; step < 2u; step++) {
    const u32 probe = code + (1u << (1u - step));
    if (x * 2.0f > levels(probe - 1u) + levels(probe)) {
      code = probe;
    }
  }
  return code;
}

// dsl/codecs/tileRows.ts:52 normPosition
// The position of the row whose norm lies at a place: the inverse of `normPlace`.
__device__ __forceinline__ u32 norm_position(u32 place) {
  const u32 in_half = place % 32u;
  return place / 32u * 32u + in_half % 4u * 8u + in_half / 4u;
}

// One word of the value codes, or two norms, of a row a thread. Positions of a row that are not of the middle are zero.
extern "C" __global__ void __launch_bounds__(128) tilt_pack_values(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][192], after Hadamard
    const float* __restrict__ norms,  // [middle tokens][3 KV heads], rounded to f16
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  const u32 sinks = sequence[AT_SINK_TOKENS];
  const u32 end = sinks + sequence[AT_MIDDLE_TOKENS];
  const u32 row = blockIdx.x;
  const u32 word = blockIdx.y * THREADS + threadIdx.x;
  if (row * ROW_POSITIONS >= end || end == sinks || word >= KV_HEADS * ROW_VALUE_WORDS) return;

  const u32 head = word / ROW_VALUE_WORDS;
  const u32 inside = word % ROW_VALUE_WORDS;
  const u32* fields = cache + sequence[AT_KEY_FIELDS] + head * FIELD_WORDS;
  u32* values = cache + sequence[AT_TILE_CODES] + row * TILE_ROW_WORDS + fields[GROUPS + 1] +
                fields[GROUPS] * 8 * GROUP_COMPONENTS;
  const auto norm_at = [&](u32 position) {
    return position >= sinks && position < end ? norms[(position - sinks) * KV_HEADS + head] : 0.0f;
  };
  if (inside >= 4 * HEAD_DIM) {
    const u32 place = (inside - 4 * HEAD_DIM) * 2;
    const u32 first = row * ROW_POSITIONS;
    values[inside] = pack_half2(norm_at(first + norm_position(place)), norm_at(first + norm_position(place + 1)));
    return;
  }

  // Four channels of four positions, 8 apart. The order of lanes, as valueBit() has it, the other way round.
  const u32 rest = inside % (2 * HEAD_DIM);
  const u32 lane = rest / ABREAST % 32;
  const u32 line = rest / (32 * ABREAST);
  const u32 lines = HEAD_DIM / 32 / ABREAST;  // of positions of one parity
  const u32 quad = (line % lines * ABREAST + rest % ABREAST) * 8 + lane / 4;
  const u32 first = row * ROW_POSITIONS + inside / (2 * HEAD_DIM) * 32 + lane % 4 * 2 + line / lines;
  u32 packed = 0;
  for (u32 i = 0; i < 16; ++i) {
    const u32 position = first + i / 4 * 8;
    if (position < sinks || position >= end) continue;
    const float norm = norm_at(position);
    const float channel = plain[((position - sinks) * KV_HEADS + head) * HEAD_DIM + quad * 4 + i % 4];
    const u32 code = nearest_level_2(norm > 0.0f ? channel / norm : 0.0f, [&](u32 level) { return tables[VALUE_LEVELS + level]; });
    packed |= code << i * 2;
  }
  values[inside] = packed;
}
