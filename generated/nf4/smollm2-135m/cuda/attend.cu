// attend: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attend of scheme nf4 for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   perToken(nf4, 4 bits; a scale for 64 channels of 1 token)
// values: perToken(nf4, 4 bits; a scale for 64 channels of 1 token)
// stream: nf4(4 bits); sinks 4, window 64
// tunables: products = 1, warps = 8, stages = 3, tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 HEADS = 9;  // query heads
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 GROUP_SIZE = 3;  // query heads that share a KV head
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 KEY_ROW_WORDS = 24;  // words of one token's key fields
constexpr u32 KEY_BITS = 4;  // bits of a channel of a key
constexpr u32 KEY_HEAD_WORDS = 8;  // words of one head's key fields
constexpr u32 KEY_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 KEY_SCALE_CHANNELS = 64;  // channels of a head that share a scale
constexpr u32 KEY_SCALE_ROW_WORDS = 2;  // words of a row of scales, two each
constexpr u32 HADAMARD_BLOCK = 64;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.125f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 VALUE_ROW_WORDS = 24;  // words of one token's value fields
constexpr u32 VALUE_BITS = 4;  // bits of a channel of a value
constexpr u32 VALUE_HEAD_WORDS = 8;  // words of one head's value fields
constexpr u32 VALUE_SCALE_TOKENS = 1;  // middle tokens that share a scale; 0 for all of them
constexpr u32 VALUE_SCALE_CHANNELS = 64;  // channels of a head that share a scale
constexpr u32 VALUE_SCALE_ROW_WORDS = 2;  // words of a row of scales, two each
constexpr u32 STREAM_WORDS = 8;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 2;  // words of one stream token's norms, two each
constexpr u32 SINKS = 4;  // exact tokens at the start
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 KEY_LEVELS = 16;  // offset in the tables: values of the codes of keys, over their scales
constexpr u32 VALUE_LEVELS = 32;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 RECORD_WORDS = 64;  // words of a sequence record
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_SLIDING_WINDOW = 8;  // in the record, tokens that a query sees, itself included; 0 for all
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][3 KV heads][64], after RoPE
constexpr u32 AT_SINK_VALUES = 11;  // in the record, first word of sinkValues: f16 [sinks][3 KV heads][64]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][3 KV heads][64], after RoPE
constexpr u32 AT_WINDOW_VALUES = 13;  // in the record, first word of windowValues: f16 ring [window][3 KV heads][64]
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 4-bit fields [middle][3 KV heads][64]
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: 4-bit fields [middle][3 KV heads][64]
constexpr u32 AT_VALUE_SCALES = 29;  // in the record, first word of valueScales: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 4-bit fields [stream][3 KV heads][64], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][3 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 4-bit fields [stream][3 KV heads][64], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][3 KV heads]
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 WARPS = 8;  // warps of a block
constexpr u32 STAGES = 3;  // tiles of a warp in shared memory, most of them on their way
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile
constexpr u32 KEY_AFFINE = 0;  // 1 where equal steps lie between the values of codes of keys
constexpr u32 KEY_CENTERED = 0;  // 1 where code 0 of keys does not stand for zero
constexpr u32 KEY_FLOAT_SHIFT = 0;  // bits by which a byte of keys, as an 8-bit float, is widened to be an f16 number; 0 if it is none
constexpr u32 KEY_TABLE_HALVES = 2;  // f16 numbers whose sum is a level of the keys, where there is a table of them
constexpr float KEY_TABLE_FACTOR = 0.838840485f;  // what a table of levels of keys is times, so that f16 numbers hold them best
constexpr u32 KEY_FOLDED = 0;  // 1 where the query takes the scales of keys in, a block of tokens at a time
constexpr u32 VALUE_AFFINE = 0;  // 1 where equal steps lie between the values of codes of values
constexpr u32 VALUE_FLOAT_SHIFT = 0;  // bits by which a byte of values, as an 8-bit float, is widened to be an f16 number; 0 if it is none
constexpr float VALUE_TABLE_FACTOR = 0.838840485f;  // what a table of levels of values is times, so that f16 numbers hold them best
constexpr u32 VALUE_CENTERED = 0;  // 1 where code 0 of values does not stand for zero
constexpr u32 PASS_TILES = 4;  // pairs of 8-channel tiles that a warp rebuilds at a time
constexpr u32 SHARED_BYTES = 130680;  // shared memory that a launch asks for
constexpr u32 WORK_ITEM_WORDS = 6;  // words of a work item
constexpr u32 PARTIAL_WORDS = 198;  // numbers of one partial result
constexpr u32 CHUNK_UNIT = 16;  // a split gets a multiple of so many tokens
constexpr float SCORE_SCALE = 0.180336878f;  // what q.k is multiplied with first

// dsl/codecs/lloydMax.ts:78 levelValue
// The value of a code on the unit sphere.
template <typename Levels>
__device__ __forceinline__ float level_value(u32 code, Levels levels) {
  return levels(code);
}

// dsl/packing.ts:32 unpackField, bits = 4
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
template <typename Words>
__device__ __forceinline__ u32 unpack_field_4(u32 index, Words words) {
  const u32 position = index * 4u;
  const u32 word = position / 32u;
  const u32 shift = position % 32u;
  u32 value = words(word) >> shift;
  return value & 15u;
}

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
__device__ __forceinline__ float2 butterfly(float a, float b) {
  return make_float2(a + b, a - b);
}

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// Two channels as one word of f16; what f16 cannot hold becomes its largest value, never infinity.
__device__ __forceinline__ u32 saturated_pair(float low, float high) {
  return static_cast<u32>(float_to_half_saturated(low)) | static_cast<u32>(float_to_half_saturated(high)) << 16;
}

// One block's work: a KV head of a sequence, for one query row, over one of the splits of the tokens that the query sees.
struct WorkItem {
  u32 sequence, kv_head, row, after, split, splits;
};

__device__ __forceinline__ WorkItem work_item(const u32* work, u32 item) {
  const u32* words = work + item * WORK_ITEM_WORDS;
  return WorkItem{words[0], words[1], words[2], words[3], words[4], words[5]};
}

// Tokens from `begin` up to `end`, counted from the first token of the sequence.
struct TokenRange {
  u32 begin, end;
};

// Tokens lie in the order of positions: a query sees none of the `after` last ones, and with a sliding window only the
// nearest of the others. The splits share these.
__device__ __forceinline__ TokenRange share_of(const WorkItem& own, const u32* record, u32 tokens) {
  const u32 visible_end = tokens - min(own.after, tokens);
  const u32 sliding = record[AT_SLIDING_WINDOW];
  const u32 visible_begin = sliding == 0 ? 0 : visible_end - min(sliding, visible_end);
  const u32 visible = visible_end - visible_begin;
  const u32 chunk = ((visible + own.splits - 1) / own.splits + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT;
  const u32 begin = visible_begin + min(own.split * chunk, visible);
  return TokenRange{begin, min(begin + chunk, visible_end)};
}

// The exponent of a token that is not seen: below every other, and finite, so that differences stay numbers.
constexpr float MASKED = -1e30f;

// The base-2 exponent of a token's weight, from its scaled score.
__device__ __forceinline__ float score_exponent(float scaled) { return scaled; }

// Hadamard transform (Sylvester order) of `count` channels in shared memory, one head or several, in place, in blocks of
// HADAMARD_BLOCK channels. Not yet scaled by HADAMARD_SCALE. Barriers on entry and exit: stores before and loads after
// need none of their own.
__device__ __forceinline__ void hadamard(float* channels, u32 count = HEAD_DIM) {
  for (u32 stride = 1; stride < HADAMARD_BLOCK; stride *= 2) {
    __syncthreads();  // the caller's stores, then the stores of the previous stride, are complete
    for (u32 i = threadIdx.x; i < count / 2; i += THREADS) {
      const u32 low = i / stride * stride * 2 + i % stride;
      const float2 turned = butterfly(channels[low], channels[low + stride]);
      channels[low] = turned.x;
      channels[low + stride] = turned.y;
    }
  }
  __syncthreads();  // the last stride is complete
}

// Codes meet f16 products as they are: a field of at most ten bits at the end of a half is a subnormal number, its code
// times 2^(place - 24), where `place` is the bit it begins at. So one AND makes two operands; what a place multiplies is
// divided out of the query, and out of the output.
constexpr u32 SETS = (GROUP_SIZE + 3) / 4;      // a set has two columns of a product for each of four query heads
constexpr u32 TOKEN_TILES = TILE_TOKENS / 16;   // m = 16 tiles of the scores, k = 16 steps of the output
constexpr u32 CHANNEL_STEPS = HEAD_DIM / 16;    // k = 16 steps of the scores
constexpr float CODE_UNIT = 0x1p+24f;           // brings a product with codes to codes
constexpr u32 HALF_ONE = 0x3c00;                // the half 1

// A unit is what fields are taken out of together: halves of 16 bits, each word of which holds two streams side by side.
__device__ __forceinline__ constexpr u32 unit_words(u32 bits) { return bits == 3 ? 3 : 1; }
__device__ __forceinline__ constexpr u32 unit_fields(u32 bits) { return bits == 3 ? 16 : 16 / bits; }

// The bit at which field `i` of a unit begins, once unpack_fields() has taken it out.
__device__ __forceinline__ constexpr u32 field_place(u32 bits, u32 i) {
  return bits == 2   ? (i < 5 ? 2 * i : 2 * (i - 5))
         : bits == 4 ? i % 2 * 4
         : bits == 8 ? 0
         : i < 6     ? i % 3 * 3
         : i < 8     ? i * 3 - 16
         : i < 11    ? (i - 8) * 3
         : i < 14    ? (i - 11) * 3 + 1
                     : (i - 14) * 3;
}

// The fields of both streams of a unit, two operands a word.
template <u32 bits>
__device__ __forceinline__ void unpack_fields(u32 (&fields)[unit_fields(bits)], const u32* unit) {
  if (bits == 2) {
    const u32 upper = unit[0] >> 10;
#pragma unroll
    for (u32 i = 0; i < unit_fields(bits); ++i) fields[i] = (i < 5 ? unit[0] : upper) & (0x00030003u << field_place(bits, i));
  } else if (bits == 4) {
    const u32 upper = unit[0] >> 8;
#pragma unroll
    for (u32 i = 0; i < unit_fields(bits); ++i) fields[i] = (i < 2 ? unit[0] : upper) & (0x000f000fu << field_place(bits, i));
  } else if (bits == 8) {
    fields[0] = unit[0] & 0x00ff00ffu;
    fields[1] = __byte_perm(unit[0], 0u, 0x4341);
  } else {
    // 48 bits a stream in three words; fields 5 and 10 straddle two of them.
    const u32 sources[6] = {unit[0], unit[0] >> 9, unit[1 % unit_words(bits)], unit[1 % unit_words(bits)] >> 8,
                            unit[2 % unit_words(bits)], unit[2 % unit_words(bits)] >> 10};
#pragma unroll
    for (u32 i = 0; i < unit_fields(bits); ++i) {
      const u32 source = i < 3 ? 0 : i < 6 ? 1 : i < 8 ? 2 : i < 11 ? 3 : i < 14 ? 4 : 5;
      fields[i] = sources[source] & (0x00070007u << field_place(bits, i));
    }
    fields[5 % unit_fields(bits)] = (sources[1] & 0x00400040u) | ((sources[2] << 7) & 0x01800180u);
    fields[10 % unit_fields(bits)] = (sources[3] & 0x00c000c0u) | ((sources[4] << 8) & 0x01000100u);
  }
}

// Keys: lane % 4 has a quarter of the channels, KEY_LANE_WORDS words of every token. Pair i of a lane has two of its
// channels, which are neighbours along k; so the order of channels along k is not theirs in memory, in both operands.
constexpr u32 KEY_LANE_WORDS = KEY_HEAD_WORDS / 4;
constexpr u32 KEY_UNITS = KEY_LANE_WORDS / unit_words(KEY_BITS);
constexpr u32 KEY_FIELDS = unit_fields(KEY_BITS);
constexpr u32 PAIRS_OF_LANE = HEAD_DIM / 8;
constexpr u32 KEY_PIECES = KEY_HEAD_WORDS / 4;  // of 16 bytes, of a token's keys
constexpr bool KEY_SPREAD = KEY_LANE_WORDS > 4 && KEY_BITS != 3;  // a lane's words come four at a time, a row apart

// Where channels of a token have scales of their own, a group of them after the other: no product has channels of two.
constexpr u32 KEY_GROUPS = KEY_SCALE_TOKENS == 1 ? HEAD_DIM / KEY_SCALE_CHANNELS : 1;
constexpr u32 GROUP_LANE_WORDS = KEY_LANE_WORDS / KEY_GROUPS;
constexpr u32 KEY_CHUNK = KEY_GROUPS > 1 ? (GROUP_LANE_WORDS < 4 ? GROUP_LANE_WORDS : 4) : KEY_SPREAD ? 4 : KEY_LANE_WORDS;

// A level of keys that takes two halves takes two products.
constexpr u32 PRODUCT_SETS = !KEY_AFFINE && KEY_FLOAT_SHIFT == 0 && KEY_TABLE_HALVES == 2 ? 2 : 1;

// Word `i` of those of `lane_column` in a token's row: KEY_CHUNK side by side.
__device__ __forceinline__ constexpr u32 key_word(u32 lane_column, u32 i) {
  return (i / KEY_CHUNK * 4 + lane_column) * KEY_CHUNK + i % KEY_CHUNK;
}
// Codes that name an entry of a table are neighbours in memory as well, so that no bit has to move for it.
constexpr bool KEY_NEIGHBOURS = !KEY_AFFINE && KEY_BITS != 8;
constexpr u32 PAIR_STRIDE = KEY_NEIGHBOURS ? 1 : KEY_FIELDS;
// The first channel of pair `i`; the second is PAIR_STRIDE channels on.
__device__ __forceinline__ constexpr u32 pair_channel(u32 lane_column, u32 i) {
  return key_word(lane_column, i / KEY_FIELDS * unit_words(KEY_BITS)) * 32 / KEY_BITS + i % KEY_FIELDS * (KEY_NEIGHBOURS ? 2 : 1);
}
__device__ __forceinline__ constexpr u32 pair_place(u32 i) { return KEY_AFFINE ? field_place(KEY_BITS, i % KEY_FIELDS) : 0; }

// Values: lane / 4 has VALUE_UNIT_CHANNELS channels of every 8 * VALUE_UNIT_CHANNELS, as two rows of the product at a time.
constexpr u32 VALUE_UNIT_CHANNELS = VALUE_BITS == 3 ? 16 : 8;
constexpr u32 VALUE_UNITS = HEAD_DIM / (8 * VALUE_UNIT_CHANNELS);
constexpr u32 UNIT_PIECES = VALUE_UNIT_CHANNELS * VALUE_BITS / 16;  // of 16 bits
constexpr u32 UNIT_TILES = VALUE_UNIT_CHANNELS / 2;                 // m = 16 tiles of the output
constexpr u32 VALUE_PIECES = VALUE_HEAD_WORDS / 4;                  // of 16 bytes, of a token's values
constexpr u32 VALUE_GROUPS = VALUE_SCALE_TOKENS == 1 ? HEAD_DIM / VALUE_SCALE_CHANNELS : 1;  // whose weights differ
// Codes of values in equal steps count from their middle where they have an offset: what a weight loses in a half is the same
// for all channels of a token, and offset and codes that are all of one sign would leave it as it is.
constexpr bool MIDDLE_CODES = VALUE_AFFINE && false;
constexpr float MIDDLE_CODE = ((1u << VALUE_BITS) - 1u) * 0.5f;
constexpr bool SUMS_WEIGHTS = VALUE_CENTERED || MIDDLE_CODES;
// Of two groups one has the even columns of the product and the other the odd ones, also where they share a unit.
constexpr bool PAIRED_GROUPS = VALUE_SCALE_TOKENS == 1 && VALUE_GROUPS % 2 == 0;
constexpr bool SHARED_UNITS = VALUE_SCALE_TOKENS == 1 && VALUE_SCALE_CHANNELS * 2 == 8 * VALUE_UNIT_CHANNELS;
constexpr u32 WEIGHT_SETS = PAIRED_GROUPS ? VALUE_GROUPS / 2 : VALUE_GROUPS;  // of operands of weights
constexpr u32 GROUP_PAIRS = PAIRED_GROUPS ? VALUE_GROUPS / 2 : 1;

// Where all channels have one weight, a lane's units may lie side by side, two of them to a load.
constexpr u32 UNITS_AT_ONCE = VALUE_GROUPS == 1 && VALUE_UNITS % 2 == 0 && VALUE_BITS != 3 ? 2 : 1;
__device__ __forceinline__ constexpr u32 value_channel(u32 unit, u32 row) {
  return ((unit / UNITS_AT_ONCE * 8 + row) * UNITS_AT_ONCE + unit % UNITS_AT_ONCE) * VALUE_UNIT_CHANNELS;
}
__device__ __forceinline__ constexpr u32 value_byte(u32 unit, u32 row) { return value_channel(unit, row) * VALUE_BITS / 8; }

// Pairs of codes that name an entry of a table are taken out of two tokens' words, every other channel at a time.
constexpr bool VALUE_ALTERNATES = !VALUE_AFFINE && (VALUE_BITS == 3 || VALUE_BITS == 4);
// The channel of a unit that its field `i` is of.
__device__ __forceinline__ constexpr u32 value_field_channel(u32 i) {
  constexpr u32 half = VALUE_UNIT_CHANNELS / 2;
  return VALUE_ALTERNATES ? i % half * 2 + i / half : i;
}
// Words of two tokens' codes of a unit, side by side; of 3-bit pairs, four to a word.
constexpr u32 UNIT_STREAMS = VALUE_ALTERNATES && VALUE_BITS == 3 ? 4 : UNIT_PIECES;

__device__ __forceinline__ constexpr u32 value_place(u32 channel) {
  return VALUE_AFFINE ? field_place(VALUE_BITS, channel % unit_fields(VALUE_BITS)) : 0;
}
__device__ __forceinline__ constexpr u32 weight_set(u32 unit) { return unit * WEIGHT_SETS / VALUE_UNITS; }
__device__ __forceinline__ constexpr bool is_odd_group(u32 unit, u32 row) {
  return SHARED_UNITS ? row >= 4 : PAIRED_GROUPS && unit * VALUE_GROUPS / VALUE_UNITS % 2 == 1;
}

// Where the pieces of a token lie in a staged tile, so that reads of a warp meet in no bank: row, then piece of its row.
__device__ __forceinline__ u32 key_piece_at(u32 token, u32 piece) {
  const u32 turn = KEY_SPREAD ? token % 2 * 4 : KEY_GROUPS > 1 && KEY_PIECES == 4 ? token / 2 % 2 * 2 : 0;
  return token * KEY_PIECES + (piece ^ turn);
}
__device__ __forceinline__ u32 value_piece_at(u32 token, u32 piece) {
  const u32 row = token / 16 * 16 + token / 8 % 2 * 8 + token % 2 * 4 + token / 2 % 4;
  const u32 turn = VALUE_PIECES == 4 ? row / 2 % 2 * 2 : VALUE_PIECES >= 8 ? row % 4 * 2 : 0;
  return row * VALUE_PIECES + (piece ^ turn);
}

// Words of a token's scales of this head, and of offsets, if they are the token's own; else words of a row of scales.
constexpr u32 KEY_SCALE_WORDS = (HEAD_DIM / KEY_SCALE_CHANNELS + 1) / 2;
constexpr u32 VALUE_SCALE_WORDS = (HEAD_DIM / VALUE_SCALE_CHANNELS + 1) / 2;
constexpr u32 KEY_SCALE_ROWS = KEY_SCALE_TOKENS == 0 ? 0 : KEY_SCALE_TOKENS < TILE_TOKENS ? TILE_TOKENS / KEY_SCALE_TOKENS : 1;
constexpr u32 VALUE_SCALE_ROWS = VALUE_SCALE_TOKENS == 0 ? 0 : TILE_TOKENS;

// A staged tile of a warp, in bytes.
constexpr u32 TILE_VALUES = TILE_TOKENS * KEY_HEAD_WORDS * 4;
constexpr u32 TILE_KEY_SCALES = TILE_VALUES + TILE_TOKENS * VALUE_HEAD_WORDS * 4;
constexpr u32 TILE_KEY_OFFSETS = TILE_KEY_SCALES + KEY_SCALE_ROWS * KEY_SCALE_WORDS * 4;
constexpr u32 TILE_VALUE_SCALES = TILE_KEY_OFFSETS + 0;
constexpr u32 TILE_VALUE_OFFSETS = TILE_VALUE_SCALES + VALUE_SCALE_ROWS * VALUE_SCALE_WORDS * 4;
constexpr u32 TILE_BYTES = TILE_VALUE_OFFSETS + 0;
static_assert(TILE_BYTES % 16 == 0, "tiles begin at multiples of 16 bytes");

constexpr u32 CHANNELS = 8;                                // of a vector, as the other segments take their values
constexpr u32 VECTORS = HEAD_DIM / CHANNELS;
constexpr u32 VECTOR_STEPS = (VECTORS + 7) / 8;            // eight vectors at a time, one for each lane / 4
constexpr u32 OUTPUT_TILES = VECTOR_STEPS * CHANNELS / 2;  // m = 16 tiles of output channels
constexpr u32 HEAD_TILES = (GROUP_SIZE + 7) / 8;           // n = 8 tiles of query heads in their output product
constexpr u32 QUERY_STRIDE = HEAD_DIM + 8;                 // halves
constexpr u32 QUERY_BYTES = 16 * QUERY_STRIDE * 2;

// Offsets in shared memory, in bytes: tables of levels, 256 bytes an entry, of which keys have the first half and values the
// other; the query as float32, as operands of codes and, for exact tokens, as it is; then the rings.
constexpr u32 KEY_TABLE_ENTRIES = KEY_AFFINE || KEY_FLOAT_SHIFT > 0 ? 0 : KEY_BITS == 3 ? 64 : 256;
constexpr u32 VALUE_TABLE_ENTRIES = VALUE_AFFINE || VALUE_FLOAT_SHIFT > 0 ? 0 : VALUE_BITS == 3 ? 64 : 256;
constexpr u32 SHARED_CHANNELS = (KEY_TABLE_ENTRIES > VALUE_TABLE_ENTRIES ? KEY_TABLE_ENTRIES : VALUE_TABLE_ENTRIES) * 256;
constexpr u32 SHARED_SUMS = SHARED_CHANNELS + GROUP_SIZE * HEAD_DIM * 4;
constexpr u32 SHARED_OPERANDS = SHARED_SUMS + GROUP_SIZE * 384;
constexpr u32 SHARED_QUERY = SHARED_OPERANDS + SETS * PAIRS_OF_LANE * 128;
constexpr u32 SHARED_RINGS = SHARED_QUERY + QUERY_BYTES;
constexpr u32 MIDDLE_BYTES = SHARED_RINGS + WARPS * STAGES * TILE_BYTES;
// After the middle the merge takes the place of all this: a slot for what each warp found there, and one for the stream,
// for which the transformed query follows, as two halves.
constexpr u32 SLOT_BYTES = GROUP_SIZE * (HEAD_DIM + 2) * 4;
constexpr u32 SHARED_TURNED_QUERY = (2 * WARPS * SLOT_BYTES + 15) / 16 * 16;
constexpr u32 SHARED_SCRATCH = SHARED_TURNED_QUERY + 2 * QUERY_BYTES;
constexpr u32 OTHERS_BYTES = SHARED_SCRATCH + GROUP_SIZE * HEAD_DIM * 4;
// Exact tokens come before the middle: their slots lie behind.
constexpr u32 EXACT_TILES = (SINKS + 15) / 16 + (WINDOW + 15) / 16;
constexpr u32 EXACT_SLOTS = EXACT_TILES < WARPS ? EXACT_TILES : WARPS;
constexpr u32 FIRST_EXACT_SLOT = ((MIDDLE_BYTES > OTHERS_BYTES ? MIDDLE_BYTES : OTHERS_BYTES) + SLOT_BYTES - 1) / SLOT_BYTES;

static_assert((FIRST_EXACT_SLOT + EXACT_SLOTS) * SLOT_BYTES == SHARED_BYTES, "what is placed is what a launch asks for");

extern __shared__ __align__(128) unsigned char shared_memory[];

// `words` words at an address that is a multiple of as many.
template <u32 words>
__device__ __forceinline__ void load_words(u32* to, const unsigned char* from) {
  if (words == 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    to[0] = four.x;
    to[1 % words] = four.y;
    to[2 % words] = four.z;
    to[3 % words] = four.w;
  } else if (words == 2) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    to[0] = two.x;
    to[1 % words] = two.y;
  } else {
    to[0] = *reinterpret_cast<const u32*>(from);
  }
}

// The power of two that brings a magnitude to [2^8, 2^9), and its inverse: a half keeps eleven bits only above 2^-14, so
// what is split into two halves is brought there first. Exact in float32; 1 for zero.
__device__ __forceinline__ u32 scaling_exponent(float largest) {
  const u32 exponent = __float_as_uint(largest) >> 23 & 0xffu;
  return largest > 0.0f ? min(262u - exponent, 253u) : 127u;
}
__device__ __forceinline__ float power_of_two(u32 exponent) { return __uint_as_float(exponent << 23); }

__device__ __forceinline__ float warp_largest(float value) {
#pragma unroll
  for (u32 lanes = 16; lanes > 0; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  return value;
}

// What two halves leave of two numbers, as halves again. One half alone puts errors of 1e-2 into scores of 40, and
// these go straight into the weights.
__device__ __forceinline__ u32 remainder_pair(u32 high, float first, float second) {
  const float2 rounded = unpack_half2(high);
  return pack_half2(first - rounded.x, second - rounded.y);
}

// What one warp carries through a run of tokens: the running maximum and weight sum of query heads lane / 4 and
// lane / 4 + 8, and the unnormalised output, channels by heads, in mma accumulator layout.
struct Softmax {
  float largest[2];
  float weight[2];
  float output[OUTPUT_TILES][HEAD_TILES][4];
};

__device__ __forceinline__ void reset(Softmax& state) {
  state.largest[0] = state.largest[1] = MASKED;
  state.weight[0] = state.weight[1] = 0.0f;
#pragma unroll
  for (u32 tile = 0; tile < OUTPUT_TILES; ++tile) {
#pragma unroll
    for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) state.output[tile][heads][i] = 0.0f;
    }
  }
}

// Channel of row `lane / 4 + 8 * upper` of an output tile: each lane / 4 owns whole value vectors.
__device__ __forceinline__ u32 output_channel(u32 tile, u32 upper, u32 row) {
  return (tile / (CHANNELS / 2) * 8 + row) * CHANNELS + tile % (CHANNELS / 2) * 2 + upper;
}

// Adds what places 16 * step on give to the scores of 16 tokens: `query` is where a form of the query lies in shared
// memory, `keys` the B operands of tokens 0 to 7 and 8 to 15.
__device__ __forceinline__ void add_scores(float (&scores)[2][4], u32 query, u32 step, const u32 (&keys)[2][2]) {
  u32 fragment[4];
  ldmatrix_x4(fragment, shared_memory + query + ((lane_id() % 16) * QUERY_STRIDE + step * 16 + lane_id() / 16 * 8) * 2);
  mma_m16n8k16(scores[0], fragment, keys[0]);
  mma_m16n8k16(scores[1], fragment, keys[1]);
}

// Takes 16 tokens into the softmax. `scale` goes with the scores, which are products of query and key as they are
// stored; `valid` has a bit for each token; `value(token, vector, k)` gives channels 2k and 2k + 1 of a value vector as
// two halves.
template <typename Value>
__device__ __forceinline__ void take_tokens(Softmax& state, float (&scores)[2][4], float scale, u32 valid, Value value) {
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;

  float largest[2] = {state.largest[0], state.largest[1]};
#pragma unroll
  for (u32 tokens = 0; tokens < 2; ++tokens) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const bool seen = (valid >> (tokens * 8 + column + i % 2)) & 1u;
      scores[tokens][i] = seen ? score_exponent(scores[tokens][i] * scale) : MASKED;
      largest[i / 2] = fmaxf(largest[i / 2], scores[tokens][i]);
    }
  }
  float shrink[2];
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 1));
    largest[half] = fmaxf(largest[half], __shfl_xor_sync(0xffffffffu, largest[half], 2));
    shrink[half] = exp2f(state.largest[half] - largest[half]);
    state.largest[half] = largest[half];
  }

  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (u32 tokens = 0; tokens < 2; ++tokens) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      scores[tokens][i] = exp2f(scores[tokens][i] - largest[i / 2]);
      sum[i / 2] += scores[tokens][i];
    }
  }
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    state.weight[half] = state.weight[half] * shrink[half] + sum[half];
  }

  // The output holds heads in columns: its factor comes from the lanes that hold those heads in rows.
#pragma unroll
  for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
    const float first = __shfl_sync(0xffffffffu, shrink[heads], column * 4);
    const float second = __shfl_sync(0xffffffffu, shrink[heads], (column + 1) * 4);
#pragma unroll
    for (u32 tile = 0; tile < OUTPUT_TILES; ++tile) {
      state.output[tile][heads][0] *= first;
      state.output[tile][heads][1] *= second;
      state.output[tile][heads][2] *= first;
      state.output[tile][heads][3] *= second;
    }
  }

  u32 weights[HEAD_TILES][2];
#pragma unroll
  for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
    weights[heads][0] = pack_half2(scores[0][heads * 2], scores[0][heads * 2 + 1]);
    weights[heads][1] = pack_half2(scores[1][heads * 2], scores[1][heads * 2 + 1]);
  }
#pragma unroll
  for (u32 step = 0; step < VECTOR_STEPS; ++step) {
    const u32 vector = step * 8 + row;
#pragma unroll
    for (u32 k = 0; k < CHANNELS / 2; ++k) {
      u32 pairs[4] = {0u, 0u, 0u, 0u};
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 token = column + i % 2 + i / 2 * 8;
        // A masked token weighs nothing, but zero times a stale NaN would not be nothing: it is not read.
        if (vector < VECTORS && ((valid >> token) & 1u)) pairs[i] = value(token, vector, k);
      }
      const u32 fragment[4] = {__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[0], pairs[1], 0x7632),
                               __byte_perm(pairs[2], pairs[3], 0x5410), __byte_perm(pairs[2], pairs[3], 0x7632)};
#pragma unroll
      for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
        mma_m16n8k16(state.output[step * (CHANNELS / 2) + k][heads], fragment, weights[heads]);
      }
    }
  }
}

// Puts what a warp carries into a slot of the merge: outputs, maximum and weight sum of every query head.
__device__ __forceinline__ void store_state(const Softmax& state, u32 slot) {
  float* merge = reinterpret_cast<float*>(shared_memory);
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;
#pragma unroll
  for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 head = heads * 8 + column + i % 2;
#pragma unroll
      for (u32 tile = 0; tile < OUTPUT_TILES; ++tile) {
        const u32 channel = output_channel(tile, i / 2, row);
        if (head < GROUP_SIZE && channel < HEAD_DIM) {
          merge[(slot * GROUP_SIZE + head) * (HEAD_DIM + 2) + channel] = state.output[tile][heads][i];
        }
      }
    }
    if (heads * 8 + row < GROUP_SIZE && column == 0) {
      float* own = merge + (slot * GROUP_SIZE + heads * 8 + row) * (HEAD_DIM + 2) + HEAD_DIM;
      own[0] = state.largest[heads];
      own[1] = state.weight[heads];
    }
  }
}

// Merges `slots` from the first one on, and writes one partial result.
__device__ __forceinline__ void merge_states(u32 first, u32 slots, float* partial) {
  const float* merge = reinterpret_cast<const float*>(shared_memory) + first * GROUP_SIZE * (HEAD_DIM + 2);
  for (u32 i = threadIdx.x; i < GROUP_SIZE * (HEAD_DIM + 2); i += THREADS) {
    const u32 head = i / (HEAD_DIM + 2);
    const u32 place = i % (HEAD_DIM + 2);
    float largest = MASKED;
    for (u32 slot = 0; slot < slots; ++slot) {
      largest = fmaxf(largest, merge[(slot * GROUP_SIZE + head) * (HEAD_DIM + 2) + HEAD_DIM]);
    }
    float sum = 0.0f;
    for (u32 slot = 0; slot < slots; ++slot) {
      const float* own = merge + (slot * GROUP_SIZE + head) * (HEAD_DIM + 2);
      sum += own[place] * exp2f(own[HEAD_DIM] - largest);
    }
    partial[i] = place == HEAD_DIM ? largest : sum;
  }
}

// Bits of the tokens of a tile, first to first + 15, that lie in [begin, end).
__device__ __forceinline__ u32 valid_tokens(u32 first, u32 begin, u32 end) {
  const u32 low = begin > first ? begin - first : 0;
  const u32 high = end > first ? min(end - first, 16u) : 0;
  return low < high ? ((1u << high) - 1u) & ~((1u << low) - 1u) : 0u;
}

// The stream: codes stay in Hadamard space, where the transformed query meets them.
__device__ __forceinline__ void attend_stream(
    Softmax& state, const u32* record, const u32* cache, const float* levels, float scale, u32 kv_head, TokenRange own) {
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;
  const auto level_at = [&](u32 code) { return levels[code]; };
  const u32* key_codes = cache + record[AT_STREAM_KEY_CODES];
  const u32* key_norms = cache + record[AT_STREAM_KEY_NORMS];
  const u32* value_codes = cache + record[AT_STREAM_VALUE_CODES];
  const u32* value_norms = cache + record[AT_STREAM_VALUE_NORMS];
  const auto two_channels = [&](const u32* codes, const u32* norms, u32 token, u32 channel) {
    const u32* words = codes + (token * KV_HEADS + kv_head) * STREAM_WORDS;
    const auto word_at = [&](u32 word) { return words[word]; };
    const float norm = half_at(norms + token * NORM_WORDS, kv_head);
    return make_float2(level_value(unpack_field_4(channel, word_at), level_at) * norm,
                       level_value(unpack_field_4(channel + 1, word_at), level_at) * norm);
  };
  for (u32 first = own.begin + threadIdx.x / 32 * 16; first < own.end; first += WARPS * 16) {
    float largest = 0.0f;
    if (lane_id() < 16 && first + lane_id() < own.end) {
      largest = half_at(key_norms + (first + lane_id()) * NORM_WORDS, kv_head);
    }
    const u32 exponent = scaling_exponent(warp_largest(largest));
    const float factor = power_of_two(exponent);
    float scores[2][4] = {};
#pragma unroll
    for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
      u32 high[2][2];
      u32 low[2][2];
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 token = first + row + i / 2 * 8;
        float2 two = make_float2(0.0f, 0.0f);
        if (token < own.end) two = two_channels(key_codes, key_norms, token, step * 16 + column + i % 2 * 8);
        high[i / 2][i % 2] = saturated_pair(two.x * factor, two.y * factor);
        low[i / 2][i % 2] = remainder_pair(high[i / 2][i % 2], two.x * factor, two.y * factor);
      }
      add_scores(scores, SHARED_TURNED_QUERY, step, low);
      add_scores(scores, SHARED_TURNED_QUERY, step, high);
      add_scores(scores, SHARED_TURNED_QUERY + QUERY_BYTES, step, high);
    }
    const u32 valid = valid_tokens(first, own.begin, own.end);
    take_tokens(state, scores, power_of_two(254 - exponent) * scale, valid, [&](u32 token, u32 vector, u32 k) {
      const float2 two = two_channels(value_codes, value_norms, first + token, vector * CHANNELS + k * 2);
      return saturated_pair(two.x, two.y);
    });
  }
}

// 16 exact tokens from `first` on: `slot(token)` is the row of a token in the f16 arrays.
template <typename Slot>
__device__ __forceinline__ void attend_exact_tile(
    Softmax& state, const u32* key_rows, const u32* value_rows, u32 kv_head, u32 first, TokenRange own, Slot slot) {
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;
  float scores[2][4] = {};
#pragma unroll 1
  for (u32 first_step = 0; first_step < CHANNEL_STEPS; first_step += PASS_TILES) {
    // All loads before the first product, so that they wait for memory together.
    u32 keys[PASS_TILES][2][2];
#pragma unroll
    for (u32 i = 0; i < PASS_TILES * 4; ++i) {
      const u32 token = first + row + i / 2 % 2 * 8;
      const u32 channel = (first_step + i / 4) * 16 + column + i % 2 * 8;
      const u32 at = (slot(token) * WIDTH + kv_head * HEAD_DIM + channel) / 2;
      keys[i / 4][i / 2 % 2][i % 2] = token < own.end && channel < HEAD_DIM ? key_rows[at] : 0u;
    }
#pragma unroll
    for (u32 i = 0; i < PASS_TILES; ++i) {
      if (first_step + i < CHANNEL_STEPS) add_scores(scores, SHARED_QUERY, first_step + i, keys[i]);
    }
  }
  take_tokens(state, scores, SCORE_SCALE, valid_tokens(first, own.begin, own.end), [&](u32 token, u32 vector, u32 k) {
    return value_rows[(slot(first + token) * WIDTH + kv_head * HEAD_DIM + vector * CHANNELS) / 2 + k];
  });
}

// A warp has channels lane + 32 * i of a query head.
constexpr u32 LANE_CHANNELS = HEAD_DIM / 32;

// Hadamard transform (Sylvester order) of a head, in blocks of HADAMARD_BLOCK channels, not yet scaled by HADAMARD_SCALE.
__device__ __forceinline__ void turn_channels(float (&values)[LANE_CHANNELS]) {
#pragma unroll
  for (u32 stride = 1; stride < 32; stride *= 2) {
    const float sign = lane_id() & stride ? -1.0f : 1.0f;
#pragma unroll
    for (u32 i = 0; i < LANE_CHANNELS; ++i) values[i] = __shfl_xor_sync(0xffffffffu, values[i], stride) + sign * values[i];
  }
#pragma unroll
  for (u32 stride = 1; stride < HADAMARD_BLOCK / 32; stride *= 2) {
#pragma unroll
    for (u32 i = 0; i < LANE_CHANNELS; ++i) {
      if (i / stride % 2 != 0) continue;
      const float2 turned = butterfly(values[i], values[i + stride]);
      values[i] = turned.x;
      values[i + stride] = turned.y;
    }
  }
}

// A head's output, unnormalised, with the maximum and the weight sum of what it is summed over.
struct HeadSum {
  float values[LANE_CHANNELS];
  float largest, weight;
};

__device__ __forceinline__ void add_head(HeadSum& sum, const float (&values)[LANE_CHANNELS], float largest, float weight) {
  const float top = fmaxf(sum.largest, largest);
  const float own = exp2f(sum.largest - top);
  const float its = exp2f(largest - top);
#pragma unroll
  for (u32 i = 0; i < LANE_CHANNELS; ++i) sum.values[i] = sum.values[i] * own + values[i] * its;
  sum.weight = sum.weight * own + weight * its;
  sum.largest = top;
}

// Adds `count` rows of a head that lie `stride` floats apart, a few of them on their way at a time; `load` reads a float.
template <typename Load>
__device__ __forceinline__ void add_rows(HeadSum& sum, const float* rows, u32 stride, u32 count, Load load) {
  constexpr u32 batch = 4;
#pragma unroll 1
  for (u32 first = 0; first < count; first += batch) {
    float values[batch][LANE_CHANNELS];
    float largest[batch];
    float weight[batch];
#pragma unroll
    for (u32 k = 0; k < batch; ++k) {
      const bool there = first + k < count;
      const float* row = rows + (there ? first + k : first) * stride;
#pragma unroll
      for (u32 i = 0; i < LANE_CHANNELS; ++i) values[k][i] = load(row + i * 32 + lane_id());
      largest[k] = there ? load(row + HEAD_DIM) : MASKED;
      weight[k] = there ? load(row + HEAD_DIM + 1) : 0.0f;
#pragma unroll
      for (u32 i = 0; i < LANE_CHANNELS; ++i) values[k][i] = there ? values[k][i] : 0.0f;
    }
#pragma unroll
    for (u32 k = 0; k < batch; ++k) add_head(sum, values[k], largest[k], weight[k]);
  }
}

__device__ __forceinline__ void reset_head(HeadSum& sum) {
#pragma unroll
  for (u32 i = 0; i < LANE_CHANNELS; ++i) sum.values[i] = 0.0f;
  sum.largest = MASKED;
  sum.weight = 0.0f;
}

// What the slots of the block have of a head: of the middle, the stream and the exact tokens. What is in Hadamard space is
// turned back before the rest is added.
__device__ __forceinline__ HeadSum merge_slots(u32 head, u32 middle_slots, u32 stream_slots, u32 exact_slots) {
  const float* slots = reinterpret_cast<const float*>(shared_memory) + head * (HEAD_DIM + 2);
  constexpr u32 stride = SLOT_BYTES / 4;
  const auto load = [](const float* place) { return *place; };
  HeadSum sum;
  reset_head(sum);
  add_rows(sum, slots + WARPS * stride, stride, stream_slots, load);
  if (stream_slots > 0) {
    turn_channels(sum.values);
#pragma unroll
    for (u32 i = 0; i < LANE_CHANNELS; ++i) sum.values[i] *= HADAMARD_SCALE;
  }
  add_rows(sum, slots, stride, middle_slots, load);
  add_rows(sum, slots + FIRST_EXACT_SLOT * stride, stride, exact_slots, load);
  return sum;
}

// A row of a partial result.
__device__ __forceinline__ void write_row(const HeadSum& sum, float* row) {
#pragma unroll
  for (u32 i = 0; i < LANE_CHANNELS; ++i) row[i * 32 + lane_id()] = sum.values[i];
  // The lane, but only known once the sums are: else the compiler would let two lanes run apart before them.
  const u32 lane = __shfl_sync(0xffffffffu, lane_id(), lane_id());
  if (lane < 2) row[HEAD_DIM + lane] = lane == 0 ? sum.largest : sum.weight;
}

__device__ __forceinline__ void write_output(const HeadSum& sum, float* output) {
  // A row without tokens has no weight: it stays zero.
  const float normalize = sum.weight > 0.0f ? 1.0f / sum.weight : 0.0f;
#pragma unroll
  for (u32 i = 0; i < LANE_CHANNELS; ++i) output[i * 32 + lane_id()] = sum.values[i] * normalize;
}

// Levels in unequal steps come from a table in shared memory, one, two or four at a time. An entry has copies, so that reads of a
// warp meet in no bank: one for every lane, or for as many lanes as a load of several words serves at once; `table` is 0 for
// keys, 128 for values.
__device__ __forceinline__ constexpr u32 entry_words(u32 bits, u32 halves) { return bits == 8 ? 1 : bits == 2 ? 2 * halves : halves; }

// Fills a table with halves that `value(code)` times `factor` and a power of two gives, and returns what undoes both. With
// `halves` 2 an entry has what these halves leave too: behind them, or in the other half of its word where it has one level.
template <u32 bits, u32 halves, typename Value>
__device__ __forceinline__ float build_table(u32 table, float factor, Value value) {
  float largest = 0.0f;
  for (u32 code = lane_id(); code < 1u << bits; code += 32) largest = fmaxf(largest, fabsf(value(code)));
  const u32 exponent = scaling_exponent(warp_largest(largest));
  const auto pair_of = [&](u32 first, u32 second, bool rest) {
    const float2 pair = make_float2(value(first) * factor * power_of_two(exponent), value(second) * factor * power_of_two(exponent));
    const u32 high = pack_half2(pair.x, pair.y);
    return rest ? remainder_pair(high, pair.x, pair.y) : high;
  };
  constexpr u32 mask = (1u << bits) - 1u;
  constexpr u32 entries = bits == 3 ? 64 : 256;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < entries * 8; i += THREADS) {
    const u32 entry = i / 8;
    u32 words[4];
#pragma unroll
    for (u32 word = 0; word < 4; ++word) {
      const bool rest = halves == 2 && word % entry_words(bits, halves) >= entry_words(bits, 1);
      if (bits == 8) {
        words[word] = __byte_perm(pair_of(entry, entry, false), pair_of(entry, entry, halves == 2), 0x5410);
      } else {
        const u32 codes = bits == 2 && word % 2 != 0 ? entry >> 4 : entry;
        words[word] = pair_of(codes & mask, codes >> bits & mask, rest);
      }
    }
    *reinterpret_cast<uint4*>(shared_memory + entry * 256 + table + i % 8 * 16) = uint4{words[0], words[1], words[2], words[3]};
  }
  return power_of_two(254 - exponent) / factor;
}

// Where a lane finds entries: the number of one times 256, and the place of the lane's copy.
template <u32 bits, u32 halves>
struct Entries {
  static constexpr u32 words = entry_words(bits, halves);
  u32 copy;
  __device__ __forceinline__ explicit Entries(u32 table) : copy(table + lane_id() % (32 / words) * (words * 4)) {}
  // The words of the entry whose number is a byte of `numbers`.
  __device__ __forceinline__ void load(u32 (&entry)[words], u32 numbers, u32 byte) const {
    load_words<words>(entry, shared_memory + __byte_perm(numbers, copy, 0x5504u + byte * 16));
  }
  // The same of a number that lies at bit 8.
  __device__ __forceinline__ void load_placed(u32 (&entry)[words], u32 number) const {
    load_words<words>(entry, shared_memory + mask_and_flip(number, 0x3f00u, copy));
  }
};

// The levels of both streams of a unit, as unpack_fields() has their codes; of 3 and 4 bits, as load_streams() has them.
template <u32 bits>
__device__ __forceinline__ void look_up_fields(u32 (&fields)[unit_fields(bits)], const u32* unit, u32 table) {
  const Entries<bits, 1> entries(table);
  if (bits == 2) {
    const u32 numbers[2] = {(unit[0] & 0x33333333u) | (unit[0] >> 14 & 0xccccccccu),
                            (unit[0] >> 2 & 0x33333333u) | (unit[0] >> 16 & 0xccccccccu)};
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      // Fields 4k + odd and 4k + odd + 2 of both streams.
      u32 two[entries.words];
      entries.load(two, numbers[i % 2], i / 2);
      fields[i / 2 * 4 % unit_fields(bits) + i % 2] = two[0];
      fields[(i / 2 * 4 + i % 2 + 2) % unit_fields(bits)] = two[1 % entries.words];
    }
  } else {
#pragma unroll
    for (u32 i = 0; i < unit_fields(bits); ++i) {
      u32 one[entries.words];
      if (bits == 4) {
        entries.load(one, unit[0], i);
      } else if (bits == 8) {
        u32 other[entries.words];
        entries.load(one, unit[0], i % 2);
        entries.load(other, unit[0], i % 2 + 2);
        one[0] = __byte_perm(one[0], other[0], 0x5410);
      } else {
        // Words of even channels, of odd ones, and of the second half of each.
        const u32 own = unit[i / 4 % 2 * 2 + i / 8];
        const u32 first = i % 4 * 6;
        entries.load_placed(one, first < 8 ? own << (8 - first % 8) : own >> (first - 8) % 32);
      }
      fields[i] = one[0];
    }
  }
}

// The levels of a unit's codes of keys and, with `halves` 2, what halves leave of them; see PAIR_STRIDE for which are a pair.
template <u32 bits, u32 halves>
__device__ __forceinline__ void look_up_pairs(
    u32 (&fields)[unit_fields(bits)], u32 (&rests)[unit_fields(bits)], const u32* unit, u32 table) {
  const Entries<bits, halves> entries(table);
#pragma unroll
  for (u32 i = 0; i < unit_fields(bits); ++i) {
    u32 entry[entries.words];
    if (bits == 8) {
      u32 other[entries.words];
      entries.load(entry, unit[0], i % 2);
      entries.load(other, unit[0], i % 2 + 2);
      fields[i] = __byte_perm(entry[0], other[0], 0x5410);
      rests[i] = __byte_perm(entry[0], other[0], 0x7632);
      continue;
    }
    if (bits == 3) {
      // Six bits from 6 * i on, which may lie in two words, brought to bit 8.
      const u32 word = i * 6 / 32;
      const u32 first = i * 6 % 32;
      const u32 own = unit[word % unit_words(bits)];
      entries.load_placed(entry, first < 8     ? own << (8 - first % 8)
                                 : first <= 26 ? own >> (first - 8) % 32
                                               : own >> (first - 8) % 32 | unit[(word + 1) % unit_words(bits)] << (40 - first) % 32);
    } else {
      entries.load(entry, unit[0], bits == 2 ? i / 2 : i);
    }
    const u32 own = bits == 2 ? i % 2 : 0;
    fields[i] = entry[own % entries.words];
    rests[i] = entry[(own + entry_words(bits, 1)) % entries.words];
  }
}

// Bytes of a sign, an exponent and a mantissa as halves that are `shift` bits wider: exponents count from elsewhere then,
// so these are the numbers times a power of two, also where they are subnormal.
template <u32 shift>
__device__ __forceinline__ void widen_floats(u32 (&fields)[2], u32 unit) {
  const u32 high[2] = {__byte_perm(unit, 0u, 0x2404), unit & 0xff00ff00u};
#pragma unroll
  for (u32 i = 0; i < 2; ++i) fields[i] = (high[i] & 0x80008000u) | (high[i] >> (8 - shift) & (0x007f007fu << shift));
}

template <u32 bits, bool affine, u32 float_shift>
__device__ __forceinline__ void take_fields(u32 (&fields)[unit_fields(bits)], const u32* unit, u32 table) {
  if constexpr (float_shift > 0) {
    widen_floats<float_shift>(fields, unit[0]);
  } else if constexpr (affine) {
    unpack_fields<bits>(fields, unit);
  } else {
    look_up_fields<bits>(fields, unit, table);
  }
}

// Where a warp's tiles come from: rows of the KV head's codes and scales, by tokens of the middle.
struct MiddleRows {
  const u32 *key_codes, *value_codes, *key_scales, *key_offsets, *value_scales, *value_offsets;
  u32 tokens;  // of the middle
};

__device__ __forceinline__ MiddleRows middle_rows(const u32* record, const u32* cache, u32 kv_head) {
  const u32 key_scale = kv_head * (HEAD_DIM / KEY_SCALE_CHANNELS) / 2;
  const u32 value_scale = kv_head * (HEAD_DIM / VALUE_SCALE_CHANNELS) / 2;
  // Addresses by themselves: of sums with `cache` the compiler would keep the numbers of words, and add them up for every tile.
  return MiddleRows{again(cache + record[AT_KEY_CODES] + kv_head * KEY_HEAD_WORDS),
                    again(cache + record[AT_VALUE_CODES] + kv_head * VALUE_HEAD_WORDS),
                    again(cache + record[AT_KEY_SCALES] + key_scale),
                    nullptr,
                    again(cache + record[AT_VALUE_SCALES] + value_scale),
                    nullptr,
                    record[AT_MIDDLE_TOKENS]};
}

// A row of an array: one instruction, where the number of a word would be computed first, and then its address.
template <u32 words>
__device__ __forceinline__ const u32* row_of(const u32* rows, u32 row) {
  return reinterpret_cast<const u32*>(reinterpret_cast<const unsigned char*>(rows) + static_cast<unsigned long long>(row) * (words * 4));
}

// The parts of addresses that depend on the lane alone: computed once, and kept. Pieces of 16 bytes of a tile's codes are
// dealt out in rounds of a warp; where a round has whole tokens, their places repeat every other round.
template <u32 pieces, u32 row_words>
struct LaneCodes {
  static constexpr u32 rounds = TILE_TOKENS * pieces / 32;
  static constexpr bool whole_tokens = 32 % pieces == 0 && pieces <= 8;
  static constexpr u32 tokens = 32 / pieces;  // of a round of whole ones
  static constexpr u32 period = whole_tokens ? (rounds < 2 ? rounds : 2) : rounds;
  u32 numbers[2][period];  // words from the tile's first row on, and bytes from the tile's place on

  // `place(token, piece)` is where a piece goes.
  template <typename Place>
  __device__ __forceinline__ explicit LaneCodes(Place place) {
#pragma unroll
    for (u32 i = 0; i < period; ++i) {
      const u32 token = (i * 32 + lane_id()) / pieces;
      const u32 piece = (i * 32 + lane_id()) % pieces;
      numbers[0][i] = token * row_words + piece * 4;
      numbers[1][i] = place(token, piece);
    }
    settle(numbers);
  }

  // Copies the codes of a tile; where it is not `whole`, those of token `last` for all that follow it.
  template <bool whole>
  __device__ __forceinline__ void fetch(unsigned char* tile, const u32* codes, u32 first, u32 last) const {
    const u32* rows = row_of<row_words>(codes, first);
    const u32* own = rows + numbers[0][0];
#pragma unroll
    for (u32 i = 0; i < rounds; ++i) {
      unsigned char* place = tile + numbers[1][i % period] + (whole_tokens ? i / period * period * 512 : 0);
      if (!whole) {
        const u32 token = (i * 32 + lane_id()) / pieces;
        const u32 piece = (i * 32 + lane_id()) % pieces;
        cp_async_16_of_line(place, rows + min(token, last) * row_words + piece * 4);
      } else if (whole_tokens) {
        cp_async_16_of_line(place, own + i * tokens * row_words);
      } else {
        cp_async_16_of_line(place, rows + numbers[0][i % period]);
      }
    }
  }
};

struct LaneParts {
  LaneCodes<KEY_PIECES, KEY_ROW_WORDS> keys;
  LaneCodes<VALUE_PIECES, VALUE_ROW_WORDS> values;
};

__device__ __forceinline__ LaneParts lane_parts() {
  return LaneParts{LaneCodes<KEY_PIECES, KEY_ROW_WORDS>([](u32 token, u32 piece) { return key_piece_at(token, piece) * 16; }),
                   LaneCodes<VALUE_PIECES, VALUE_ROW_WORDS>(
                       [](u32 token, u32 piece) { return TILE_VALUES + value_piece_at(token, piece) * 16; })};
}

// Copies `rows` rows of `words` words to a place in shared memory; `row(i)` is where a row begins.
template <u32 rows, u32 words, typename Row>
__device__ __forceinline__ void fetch_words(unsigned char* place, Row row) {
  constexpr u32 unit = words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1;
  constexpr u32 units = rows * words / unit;
#pragma unroll
  for (u32 first = 0; first < units; first += 32) {
    const u32 i = first + lane_id();
    if (first + 32 > units && i >= units) break;
    if (unit == 4) {
      cp_async_16(place + i * 16, row(i * unit / words) + i * unit % words);
    } else if (unit == 2) {
      cp_async_8(place + i * 8, row(i * unit / words) + i * unit % words);
    } else {
      cp_async_4(place + i * 4, row(i / words) + i % words);
    }
  }
}

// Asks for a tile: where it is not `whole`, the rows of tokens past the end are those of the last one again, and weigh nothing.
template <bool whole>
__device__ __forceinline__ void fetch_rows(unsigned char* tile, const MiddleRows& rows, const LaneParts& parts, u32 first) {
  const u32 last = rows.tokens - 1 - first;
  parts.keys.template fetch<whole>(tile, rows.key_codes, first, last);
  parts.values.template fetch<whole>(tile, rows.value_codes, first, last);
  const u32 last_row = (rows.tokens - 1) / KEY_SCALE_TOKENS;
  const auto key_row = [&](u32 i) {
    const u32 row = first / KEY_SCALE_TOKENS + i;
    return whole ? row : min(row, last_row);
  };
  fetch_words<KEY_SCALE_ROWS, KEY_SCALE_WORDS>(
      tile + TILE_KEY_SCALES, [&](u32 i) { return row_of<KEY_SCALE_ROW_WORDS>(rows.key_scales, key_row(i)); });
  const auto value_row = [&](u32 i) { return first + (whole ? i : min(i, last)); };
  fetch_words<VALUE_SCALE_ROWS, VALUE_SCALE_WORDS>(
      tile + TILE_VALUE_SCALES, [&](u32 i) { return row_of<VALUE_SCALE_ROW_WORDS>(rows.value_scales, value_row(i)); });
}

__device__ __forceinline__ void fetch_tile(unsigned char* tile, const MiddleRows& rows, const LaneParts& parts, u32 first) {
  if (first + TILE_TOKENS <= rows.tokens) {
    fetch_rows<true>(tile, rows, parts, first);
  } else {
    fetch_rows<false>(tile, rows, parts, first);
  }
}

// The query as operands of the scores, in registers. Column 2h of a set is query head h as a half, column 2h + 1 what that
// half leaves of it: the product's eight columns have room for both.
constexpr float TURN_SCALE = 1.0f;  // of a query that is transformed
typedef u32 Query[SETS][PAIRS_OF_LANE];

// What scores of the middle are made of, besides products with codes.
struct ScoreTerms {
  float scale;                 // of a product, times a token's own scale if it has one
  float start[SETS];           // what a product begins with: the value of code 0 for all channels
  float offset[SETS];          // of a score, times a token's own offset if it has one
  float unit;                  // that products with codes, or with levels, are in
  float largest;               // of the query
  float offset_scale;          // of what the query gives with a row of offsets
  float middle_value;          // of codes of values: between the first and the last
  float zero;                  // steps from zero to the value of code 0
};

// What goes into a word of the operands: two channels of a query head, or what halves leave of them.
__device__ __forceinline__ u32 query_pair(u32 set, u32 lane, u32 i, u32 exponent) {
  const u32 head = set * 4 + lane / 8;
  if (head >= GROUP_SIZE) return 0u;
  const float* two = reinterpret_cast<const float*>(shared_memory + SHARED_CHANNELS) + head * HEAD_DIM + pair_channel(lane % 4, i);
  // Without scales to come, its place is divided out of a channel.
  const float factor = power_of_two(KEY_FOLDED ? exponent : exponent - pair_place(i));
  const u32 pair = pack_half2(two[0] * factor, two[PAIR_STRIDE] * factor);
  const bool remainder = !KEY_FOLDED && lane / 4 % 2 != 0;
  return remainder ? remainder_pair(pair, two[0] * factor, two[PAIR_STRIDE] * factor) : pair;
}

// What depends on the power of two that the operands are times.
__device__ __forceinline__ void set_scales(ScoreTerms& terms, u32 exponent) {
  terms.scale = SCORE_SCALE * TURN_SCALE * terms.unit * power_of_two(254 - exponent);
  terms.offset_scale = SCORE_SCALE * power_of_two(254 - exponent);
}

// What a block needs first: a query head a warp, and the ends of the keys' levels. Asked for before the first tiles, behind
// which they would wait.
struct EarlyLoads {
  u16 channels[HEAD_DIM / 32];
  float least, greatest;
};

__device__ __forceinline__ EarlyLoads load_early(const u32* query, const float* tables, const WorkItem& own) {
  // Volatile: the compiler must not move them below the tiles.
  const volatile u16* heads =
      reinterpret_cast<const volatile u16*>(query) + (own.row * HEADS + own.kv_head * GROUP_SIZE) * HEAD_DIM;
  const volatile float* levels = tables + KEY_LEVELS;
  const u32 head = min(threadIdx.x / 32, GROUP_SIZE - 1);
  EarlyLoads early;
#pragma unroll
  for (u32 i = 0; i < HEAD_DIM / 32; ++i) early.channels[i] = heads[head * HEAD_DIM + i * 32 + lane_id()];
  const auto level_at = [&](u32 code) { return levels[code]; };
  early.least = KEY_AFFINE ? level_value(0u, level_at) : 0.0f;
  early.greatest = KEY_AFFINE ? level_value((1u << KEY_BITS) - 1u, level_at) : 0.0f;
  return early;
}

// Puts the query heads into shared memory as float32, a warp a head:
// and from there, all threads together, into the operands. Loops stay loops: this runs once a block, and instructions that
// it has not met yet come from memory.
__device__ __forceinline__ void stage_query(
    ScoreTerms& terms, const EarlyLoads& early, const u32* query, const MiddleRows& rows, const float* tables, const WorkItem& own) {
  constexpr u32 lane_channels = HEAD_DIM / 32;
  const u32 lane = lane_id();
  const u16* heads = reinterpret_cast<const u16*>(query) + (own.row * HEADS + own.kv_head * GROUP_SIZE) * HEAD_DIM;
  float* channels = reinterpret_cast<float*>(shared_memory + SHARED_CHANNELS);
  u16* exact = reinterpret_cast<u16*>(shared_memory + SHARED_QUERY);
#pragma unroll 1
  for (u32 i = GROUP_SIZE * QUERY_STRIDE + threadIdx.x; i < 16 * QUERY_STRIDE; i += THREADS) exact[i] = 0;
  float* sums = reinterpret_cast<float*>(shared_memory + SHARED_SUMS);  // of every head 32 times: largest magnitude, sum, offset
  const auto level_at = [&](u32 code) { return tables[KEY_LEVELS + code]; };
#pragma unroll 1
  for (u32 head = threadIdx.x / 32; head < GROUP_SIZE; head += WARPS) {
    float values[lane_channels];
#pragma unroll
    for (u32 i = 0; i < lane_channels; ++i) {
      const u16 channel = head < WARPS ? early.channels[i] : heads[head * HEAD_DIM + i * 32 + lane];
      values[i] = half_to_float(channel);
      exact[head * QUERY_STRIDE + i * 32 + lane] = channel;
    }
    float largest = 0.0f;
    float sum = 0.0f;
    float offset = 0.0f;
#pragma unroll
    for (u32 i = 0; i < lane_channels; ++i) {
      offset += values[i];
      sum += values[i];
      largest = fmaxf(largest, fabsf(values[i]));
      channels[head * HEAD_DIM + i * 32 + lane] = values[i];
    }
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
      offset += __shfl_xor_sync(0xffffffffu, offset, lanes);
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
    }
    // Every lane stores: were it up to some of them, the compiler would let these run apart before the sums.
    sums[head * 96 + lane] = largest;
    sums[head * 96 + 32 + lane] = sum;
    sums[head * 96 + 64 + lane] = offset;
  }
  if (KEY_AFFINE) {
    const float step = (early.greatest - early.least) / ((1u << KEY_BITS) - 1u);
    terms.unit = step * CODE_UNIT;
    terms.zero = early.least / step;
  } else {
    const auto level = [&](u32 code) { return level_value(code, level_at); };
    terms.unit = KEY_FLOAT_SHIFT > 0 ? level(HALF_ONE >> KEY_FLOAT_SHIFT) : build_table<KEY_BITS, KEY_TABLE_HALVES>(0, KEY_TABLE_FACTOR, level);
    terms.zero = 0.0f;
  }
  __syncthreads();  // the query heads are in place
  terms.largest = 0.0f;
#pragma unroll 1
  for (u32 head = 0; head < GROUP_SIZE; ++head) terms.largest = fmaxf(terms.largest, sums[head * 96]);
  const u32 exponent = scaling_exponent(terms.largest);
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    const u32 head = min(set * 4 + lane % 4, GROUP_SIZE - 1);
    terms.start[set] = KEY_CENTERED ? sums[head * 96 + 32] * terms.zero / CODE_UNIT * power_of_two(exponent) : 0.0f;
    terms.offset[set] = sums[head * 96 + 64] * (SCORE_SCALE * TURN_SCALE);
  }
  if (!KEY_AFFINE || !VALUE_AFFINE) __syncthreads();  // tables are complete
  if (KEY_FOLDED) return;  // where scales are to come, the first of them decides on the power of two
  set_scales(terms, exponent);
  u32* words = reinterpret_cast<u32*>(shared_memory + SHARED_OPERANDS);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < SETS * 32 * PAIRS_OF_LANE; i += THREADS) {
    words[i] = query_pair(i / (32 * PAIRS_OF_LANE), i / PAIRS_OF_LANE % 32, i % PAIRS_OF_LANE, exponent);
  }
  __syncthreads();  // the operands are in place
}

// This lane's part of the operands.
__device__ __forceinline__ void load_query(Query& operand) {
  const u32* words = reinterpret_cast<const u32*>(shared_memory + SHARED_OPERANDS);
  const u32 lane = lane_id();
#pragma unroll
  for (u32 i = 0; i < SETS * PAIRS_OF_LANE; i += 4) {
    const u32 set = i / PAIRS_OF_LANE;
    const uint4 four = *reinterpret_cast<const uint4*>(words + (set * 32 + lane) * PAIRS_OF_LANE + i % PAIRS_OF_LANE);
    operand[set][i % PAIRS_OF_LANE] = four.x;
    operand[set][i % PAIRS_OF_LANE + 1] = four.y;
    operand[set][i % PAIRS_OF_LANE + 2] = four.z;
    operand[set][i % PAIRS_OF_LANE + 3] = four.w;
  }
}

// Puts the query heads into shared memory for the stream: transformed, as two halves, zero rows below them. Returns the
// exponent of the power of two that they are times.
__device__ __forceinline__ u32 stage_turned_query(const u32* query, const WorkItem& own) {
  u16* turned_high = reinterpret_cast<u16*>(shared_memory + SHARED_TURNED_QUERY);
  u16* turned_low = reinterpret_cast<u16*>(shared_memory + SHARED_TURNED_QUERY + QUERY_BYTES);
  float* scratch = reinterpret_cast<float*>(shared_memory + SHARED_SCRATCH);
  const u32* rows = query + (own.row * HEADS + own.kv_head * GROUP_SIZE) * HEAD_DIM / 2;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < 16 * QUERY_STRIDE; i += THREADS) turned_high[i] = turned_low[i] = 0;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < GROUP_SIZE * HEAD_DIM; i += THREADS) scratch[i] = half_at(rows, i);
  hadamard(scratch, GROUP_SIZE * HEAD_DIM);
  float largest = 0.0f;
  for (u32 i = lane_id(); i < GROUP_SIZE * HEAD_DIM; i += 32) largest = fmaxf(largest, fabsf(scratch[i]));
  const u32 exponent = scaling_exponent(warp_largest(largest));
#pragma unroll 1
  for (u32 i = threadIdx.x; i < GROUP_SIZE * HEAD_DIM; i += THREADS) {
    const float turned = scratch[i] * power_of_two(exponent);
    const u32 at = i / HEAD_DIM * QUERY_STRIDE + i % HEAD_DIM;
    turned_high[at] = float_to_half_saturated(turned);
    turned_low[at] = float_to_half_saturated(turned - half_to_float(turned_high[at]));
  }
  __syncthreads();  // the transformed query is in place
  return exponent;
}

// Adds what a unit's channels give to the products. Where a level is two halves, 8 tokens take both halves of the rows of a
// product, as a load brings them side by side: `products[upper]` are those of tokens lane / 4 + 8 * upper.
__device__ __forceinline__ void score_unit(
    float (&products)[PRODUCT_SETS][SETS][4], const Query& query, const u32 (&words)[2][KEY_LANE_WORDS], u32 unit) {
  u32 fields[2][KEY_FIELDS];
  u32 rests[2][KEY_FIELDS];
#pragma unroll
  for (u32 upper = 0; upper < 2; ++upper) {
    const u32* own = words[upper] + unit * unit_words(KEY_BITS);
    if (KEY_TABLE_ENTRIES > 0) {
      look_up_pairs<KEY_BITS, KEY_TABLE_HALVES>(fields[upper], rests[upper], own, 0);
    } else if (KEY_BITS == 3) {
      // Channels 0 to 15 in the low halves, 16 to 31 in the high ones.
      const u32 streams[3] = {__byte_perm(own[0], own[1 % KEY_LANE_WORDS], 0x7610),
                              __byte_perm(own[0], own[2 % KEY_LANE_WORDS], 0x5432),
                              __byte_perm(own[1 % KEY_LANE_WORDS], own[2 % KEY_LANE_WORDS], 0x7610)};
      take_fields<KEY_BITS, KEY_AFFINE, KEY_FLOAT_SHIFT>(fields[upper], streams, 0);
    } else {
      take_fields<KEY_BITS, KEY_AFFINE, KEY_FLOAT_SHIFT>(fields[upper], own, 0);
    }
  }
#pragma unroll
  for (u32 i = 0; i < KEY_FIELDS; i += 2) {
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      const u32 pair = unit * KEY_FIELDS + i;
      const u32 columns[2] = {query[set][pair], query[set][pair + 1]};
      if (PRODUCT_SETS == 1) {
        const u32 keys[4] = {fields[0][i], fields[1][i], fields[0][i + 1], fields[1][i + 1]};
        mma_m16n8k16(products[0][set], keys, columns);
      } else {
#pragma unroll
        for (u32 upper = 0; upper < 2; ++upper) {
          const u32 keys[4] = {fields[upper][i], rests[upper][i], fields[upper][i + 1], rests[upper][i + 1]};
          mma_m16n8k16(products[upper % PRODUCT_SETS][set], keys, columns);
        }
      }
    }
  }
}

// The products of a group's channels of 16 staged tokens with the query: of tokens lane / 4 and lane / 4 + 8 for query head
// lane % 4 of a set, as the two columns that belong together; see score_unit().
__device__ __forceinline__ void score_tokens(
    float (&products)[PRODUCT_SETS][SETS][4], const Query& query, const unsigned char* tile, u32 token_tile, u32 group) {
  constexpr u32 load = KEY_CHUNK % 4 == 0 ? 4 : KEY_CHUNK % 2 == 0 ? 2 : 1;  // words at a time
  u32 words[2][KEY_LANE_WORDS];
#pragma unroll
  for (u32 upper = 0; upper < 2; ++upper) {
    const unsigned char* rows = tile + (token_tile * 16 + upper * 8) * KEY_HEAD_WORDS * 4;
#pragma unroll
    for (u32 i = group * GROUP_LANE_WORDS; i < (group + 1) * GROUP_LANE_WORDS; i += load) {
      const u32 word = key_word(lane_id() % 4, i);
      load_words<load>(words[upper] + i, rows + key_piece_at(lane_id() / 4, word / 4) * 16 + word % 4 * 4);
    }
  }
#pragma unroll
  for (u32 unit = group * (KEY_UNITS / KEY_GROUPS); unit < (group + 1) * (KEY_UNITS / KEY_GROUPS); ++unit) {
    score_unit(products, query, words, unit);
  }
}

// What one warp carries through the middle, of query heads lane % 4 + 4 * set: the exponent that weights are relative to,
// this lane's sum of weights, and the unnormalised output, channels by two columns a head. What a value has besides its
// code, its offset and the value of code 0, is the same for a group's channels: there a sum a group is enough.
struct Middle {
  float reference[SETS];
  float weight[SETS];
  float factor;       // a power of two that weights times scales are times, so that halves hold them
  float scale_limit;  // of scales, for which that holds
  float offsets[SETS][VALUE_GROUPS];
  float sums[SETS][WEIGHT_SETS][4];
  float output[SETS][OUTPUT_TILES][4];
};

// Weights grow beyond one by so many powers of two before the others shrink.
constexpr float HEADROOM = 8.0f;

__device__ __forceinline__ void reset_middle(Middle& state) {
  state.factor = 1.0f;
  state.scale_limit = -1.0f;
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    state.reference[set] = MASKED;
    state.weight[set] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < VALUE_GROUPS; ++i) state.offsets[set][i] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WEIGHT_SETS * 4; ++i) state.sums[set][i / 4][i % 4] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < OUTPUT_TILES * 4; ++i) state.output[set][i / 4][i % 4] = 0.0f;
  }
}

__device__ __forceinline__ float inverse_power(float power) { return power_of_two(254u - (__float_as_uint(power) >> 23)); }

// Brings what is summed so far to larger exponents, and to a larger scale.
__device__ __forceinline__ void raise(Middle& state, const float (&largest)[SETS], float largest_scale) {
  float turn = 1.0f;
  const float scale = warp_largest(largest_scale);
  if (scale > state.scale_limit) {
    // The largest scale times the factor is below 4: weights of 2^HEADROOM times it are far from what a half holds.
    // A half holds the factor itself.
    const float factor = scale > 0.0f ? fminf(power_of_two(min(scaling_exponent(scale), 253u)) * 0x1p-7f, 0x1p+15f) : 1.0f;
    turn = state.scale_limit > 0.0f ? factor * inverse_power(state.factor) : 1.0f;
    state.factor = factor;
    state.scale_limit = scale;
  }
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    float top = fmaxf(largest[set], state.reference[set]);
#pragma unroll
    for (u32 lanes = 4; lanes < 32; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lanes));
    const float shrink = exp2f(state.reference[set] - top);
    state.reference[set] = top;
    state.weight[set] *= shrink;
#pragma unroll
    for (u32 i = 0; i < VALUE_GROUPS; ++i) state.offsets[set][i] *= shrink;
#pragma unroll
    for (u32 i = 0; i < WEIGHT_SETS * 4; ++i) state.sums[set][i / 4][i % 4] *= shrink * turn;
#pragma unroll
    for (u32 i = 0; i < OUTPUT_TILES * 4; ++i) state.output[set][i / 4][i % 4] *= shrink * turn;
  }
}

// The half of a lane's token, lane / 4 + 8 * eight: one of those that a staged row of `words` words has.
template <u32 words>
__device__ __forceinline__ float staged_half(const unsigned char* rows, u32 eight, u32 index) {
  return half_to_float(reinterpret_cast<const u16*>(rows)[lane_id() / 4 * (words * 2) + index + eight * 8 * words * 2]);
}

// The halves of a lane's token that each group of its value's channels has.
__device__ __forceinline__ void load_groups(float (&numbers)[VALUE_GROUPS], const unsigned char* rows, u32 eight, u32 kv_head) {
  if (VALUE_GROUPS == 4) {
    const uint2 four = reinterpret_cast<const uint2*>(rows)[lane_id() / 4 + eight * 8];
    const float2 first = unpack_half2(four.x);
    const float2 second = unpack_half2(four.y);
    numbers[0] = first.x;
    numbers[1 % VALUE_GROUPS] = first.y;
    numbers[2 % VALUE_GROUPS] = second.x;
    numbers[3 % VALUE_GROUPS] = second.y;
  } else {
#pragma unroll
    for (u32 group = 0; group < VALUE_GROUPS; ++group) {
      numbers[group] = staged_half<VALUE_SCALE_WORDS>(rows, eight, VALUE_GROUPS == 1 ? kv_head % 2 : group);
    }
  }
}

// What a token's groups have, as pairs of halves; of lane / 4 + 8 * eight.
__device__ __forceinline__ void load_pairs(u32 (&pairs)[GROUP_PAIRS], const unsigned char* rows, u32 eight) {
  load_words<GROUP_PAIRS>(pairs, rows + (lane_id() / 4 + eight * 8) * (GROUP_PAIRS * 4));
}

// The largest scale of values that this lane looks at: together a warp's lanes see all of the tile.
__device__ __forceinline__ float largest_value_scale(const unsigned char* tile, u32 kv_head) {
  if (VALUE_GROUPS == 1) {
    // Words have a scale of another head, too.
    float largest = 0.0f;
#pragma unroll
    for (u32 eight = 0; eight < TILE_TOKENS / 8; ++eight) {
      largest = fmaxf(largest, staged_half<VALUE_SCALE_WORDS>(tile + TILE_VALUE_SCALES, eight, kv_head % 2));
    }
    return largest;
  }
  const u16* scales = reinterpret_cast<const u16*>(tile + TILE_VALUE_SCALES);
  u32 largest = 0u;  // bits of halves from zero on are in their order
#pragma unroll
  for (u32 i = 0; i < VALUE_SCALE_ROWS * VALUE_SCALE_WORDS * 2 / 32; ++i) {
    largest = max(largest, static_cast<u32>(scales[i * 32 + lane_id()]));
  }
  return half_to_float(static_cast<u16>(largest));
}

// The value codes of this lane's channels of a unit for tokens 2t, 2t + 1 (first and second stream of `streams[0]`) and
// 2t + 8, 2t + 9, with t = lane % 4. Where codes alternate, both tokens' share the bytes of `streams[0]`, or its fields of six
// bits: of even channels, then of odd ones.
template <u32 pieces>
__device__ __forceinline__ void load_streams(
    u32 (&streams)[2][UNITS_AT_ONCE * UNIT_STREAMS], const unsigned char* tile, u32 token_tile, u32 byte) {
#pragma unroll
  for (u32 upper = 0; upper < 2; ++upper) {
    u32 words[2][(pieces + 1) / 2];
#pragma unroll
    for (u32 odd = 0; odd < 2; ++odd) {
      const u32 others = (token_tile * 16 + upper * 8 + odd * 4) * VALUE_HEAD_WORDS * 4;  // rows before this one
      const unsigned char* own = tile + TILE_VALUES + value_piece_at(lane_id() % 4 * 2, byte / 16) * 16 + byte % 16 + others;
      if (pieces == 1) {
        words[odd][0] = *reinterpret_cast<const u16*>(own);
      } else if (pieces == 2) {
        words[odd][0] = *reinterpret_cast<const u32*>(own);
      } else if (pieces == 4) {
        const uint2 two = *reinterpret_cast<const uint2*>(own);
        words[odd][0] = two.x;
        words[odd][1 % ((pieces + 1) / 2)] = two.y;
      } else if (pieces == 8) {
        const uint4 four = *reinterpret_cast<const uint4*>(own);
        words[odd][0] = four.x;
        words[odd][1 % ((pieces + 1) / 2)] = four.y;
        words[odd][2 % ((pieces + 1) / 2)] = four.z;
        words[odd][3 % ((pieces + 1) / 2)] = four.w;
      } else {
        // Three pieces begin at any even byte, and may lie in two pieces of 16.
        const u32* row = reinterpret_cast<const u32*>(tile + TILE_VALUES + value_piece_at(lane_id() % 4 * 2, 0) * 16 + others);
        const u32 first = row[byte / 4];
        const u32 second = row[byte / 4 + 1];
        words[odd][0] = __byte_perm(first, second, byte % 4 == 0 ? 0x3210 : 0x5432);
        // The last two bytes, or where codes alternate the last three.
        words[odd][1 % ((pieces + 1) / 2)] = VALUE_ALTERNATES ? __byte_perm(first, second, byte % 4 == 0 ? 0x6543 : 0x7765)
                                                              : __byte_perm(second, 0u, byte % 4 == 0 ? 0x3210 : 0x4432);
      }
    }
#pragma unroll
    for (u32 i = 0; i < UNITS_AT_ONCE * UNIT_STREAMS; ++i) {
      const u32 first = words[0][i / 2];
      const u32 second = words[1][i / 2];
      if (VALUE_ALTERNATES) {
        // Ones where the fields of even channels are.
        constexpr u32 even = VALUE_BITS == 3 ? 0x001c71c7u : 0x0f0f0f0fu;
        streams[upper][i] = i % 2 == 0 ? (first & even) | (second << VALUE_BITS & ~even)
                                       : (first >> VALUE_BITS & even) | (second & ~even);
      } else {
        streams[upper][i] = __byte_perm(first, second, i % 2 == 0 ? 0x5410 : 0x7632);
      }
    }
  }
}

// Adds 16 tokens' values times their weights.
__device__ __forceinline__ void add_values(
    Middle& state, const u32 (&weights)[SETS][WEIGHT_SETS][2], const unsigned char* tile, u32 token_tile) {
  constexpr u32 parts = VALUE_BITS == 3 ? UNIT_STREAMS : 1;
  constexpr u32 fields_of_part = unit_fields(VALUE_BITS);
#pragma unroll
  for (u32 unit = 0; unit < VALUE_UNITS; unit += UNITS_AT_ONCE) {
    u32 streams[2][UNITS_AT_ONCE * UNIT_STREAMS];
    load_streams<UNITS_AT_ONCE * UNIT_PIECES>(streams, tile, token_tile, value_byte(unit, lane_id() / 4));
#pragma unroll
    for (u32 part = 0; part < UNITS_AT_ONCE * UNIT_STREAMS / parts; ++part) {
      u32 fields[2][fields_of_part];
      take_fields<VALUE_BITS, VALUE_AFFINE, VALUE_FLOAT_SHIFT>(fields[0], streams[0] + part * parts, 128);
      take_fields<VALUE_BITS, VALUE_AFFINE, VALUE_FLOAT_SHIFT>(fields[1], streams[1] + part * parts, 128);
#pragma unroll
      for (u32 i = 0; i < fields_of_part; i += 2) {
        const u32 values[4] = {fields[0][i], fields[0][i + 1], fields[1][i], fields[1][i + 1]};
#pragma unroll
        for (u32 set = 0; set < SETS; ++set) {
          mma_m16n8k16(state.output[set][unit * UNIT_TILES + (part * fields_of_part + i) / 2], values,
                       weights[set][weight_set(unit)]);
        }
      }
    }
  }
  if (SUMS_WEIGHTS) {
    const u32 ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
#pragma unroll
    for (u32 i = 0; i < SETS * WEIGHT_SETS; ++i) {
      mma_m16n8k16(state.sums[i / WEIGHT_SETS][i % WEIGHT_SETS], ones, weights[i / WEIGHT_SETS][i % WEIGHT_SETS]);
    }
  }
}

// Of a tile that the share has in part, the tokens outside it weigh nothing.
__device__ __forceinline__ void mask_tokens(float (&scores)[TOKEN_TILES][SETS][2], u32 first, TokenRange own) {
#pragma unroll
  for (u32 i = 0; i < TOKEN_TILES * 2; ++i) {
    const u32 token = first + i * 8 + lane_id() / 4;
    const bool seen = token - own.begin < own.end - own.begin;
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) scores[i / 2][set][i % 2] = seen ? scores[i / 2][set][i % 2] : MASKED;
  }
}

// The scales of the groups of a token's channels.
__device__ __forceinline__ void load_key_scales(float (&scales)[KEY_GROUPS], const unsigned char* tile, u32 eight, u32 kv_head) {
  if (KEY_GROUPS == 1) {
    scales[0] = staged_half<KEY_SCALE_WORDS>(tile + TILE_KEY_SCALES, eight, kv_head % 2);
    return;
  }
  u32 pairs[KEY_SCALE_WORDS];
  load_words<KEY_SCALE_WORDS>(pairs, tile + TILE_KEY_SCALES + (lane_id() / 4 + eight * 8) * (KEY_SCALE_WORDS * 4));
#pragma unroll
  for (u32 group = 0; group < KEY_GROUPS; ++group) {
    const float2 two = unpack_half2(pairs[group / 2]);
    scales[group] = group % 2 == 0 ? two.x : two.y;
  }
}

// Takes a staged tile, tokens `first` on of the middle, of which those in `own` count.
__device__ __forceinline__ void take_tile(Middle& state, Query& query, ScoreTerms& terms, float& key_limit,
                                          const unsigned char* tile, u32 first, u32 kv_head, TokenRange own) {
  float scores[TOKEN_TILES][SETS][2];
  float largest[SETS];
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) largest[set] = MASKED;
  bool risen = false;
  float starts[SETS][2];  // of both columns of a query head
  const Query& operand = query;
  if (!KEY_FOLDED) {
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      starts[set][0] = KEY_CENTERED ? terms.start[set] : 0.0f;
      starts[set][1] = 0.0f;
    }
  }
#pragma unroll
  for (u32 token_tile = 0; token_tile < TOKEN_TILES; ++token_tile) {
    float products[KEY_GROUPS][PRODUCT_SETS][SETS][4];
#pragma unroll
    for (u32 group = 0; group < KEY_GROUPS; ++group) {
#pragma unroll
      for (u32 i = 0; i < PRODUCT_SETS * SETS * 4; ++i) {
        products[group][i / (SETS * 4)][i / 4 % SETS][i % 4] = starts[i / 4 % SETS][i % 2];
      }
      score_tokens(products[group], operand, tile, token_tile, group);
    }
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      float scales_of_token[KEY_GROUPS];
      load_key_scales(scales_of_token, tile, token_tile * 2 + upper, kv_head);
#pragma unroll
      for (u32 group = 0; group < KEY_GROUPS; ++group) scales_of_token[group] *= terms.scale;
#pragma unroll
      for (u32 set = 0; set < SETS; ++set) {
        float score = 0.0f;
#pragma unroll
        for (u32 group = 0; group < KEY_GROUPS; ++group) {
          const float(&sums)[4] = products[group][upper % PRODUCT_SETS][set];
          const float product = PRODUCT_SETS == 1 ? sums[upper * 2] + sums[upper * 2 + 1] : sums[0] + sums[1] + (sums[2] + sums[3]);
          score += product * scales_of_token[group];
        }
        scores[token_tile][set][upper] = score_exponent(score);
      }
    }
  }
  if (first < own.begin || first + TILE_TOKENS > own.end) mask_tokens(scores, first, own);
#pragma unroll
  for (u32 i = 0; i < TOKEN_TILES * SETS * 2; ++i) {
    largest[i / 2 % SETS] = fmaxf(largest[i / 2 % SETS], scores[i / (SETS * 2)][i / 2 % SETS][i % 2]);
  }
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) risen = risen || largest[set] > state.reference[set] + HEADROOM;

  const float largest_scale = largest_value_scale(tile, kv_head);
  risen = risen || largest_scale > state.scale_limit;
  if (__any_sync(0xffffffffu, risen)) raise(state, largest, largest_scale);

#pragma unroll
  for (u32 token_tile = 0; token_tile < TOKEN_TILES; ++token_tile) {
    u32 weights[SETS][WEIGHT_SETS][2];
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32 eight = token_tile * 2 + upper;
      float scales[VALUE_GROUPS];
      u32 pairs[GROUP_PAIRS];
      if (PAIRED_GROUPS) {
        load_pairs(pairs, tile + TILE_VALUE_SCALES, eight);
      } else {
        load_groups(scales, tile + TILE_VALUE_SCALES, eight, kv_head);
      }
#pragma unroll
      for (u32 i = 0; i < GROUP_PAIRS; ++i) {
        if (PAIRED_GROUPS) pairs[i] = multiply_half2(pairs[i], pack_half2(state.factor, state.factor));
      }
#pragma unroll
      for (u32 set = 0; set < SETS; ++set) {
        float weight = exp2_approximate(scores[token_tile][set][upper] - state.reference[set]);
        // Where scales are taken as pairs of halves, a weight is a half in all that it goes into: as if its score were a little
        // other.
        const u32 rounded = pack_half2(weight, weight);
        if (PAIRED_GROUPS) weight = half_to_float(static_cast<u16>(rounded));
        state.weight[set] += weight;
#pragma unroll
        for (u32 i = 0; i < WEIGHT_SETS; ++i) {
          const u32 pair = PAIRED_GROUPS ? multiply_half2(rounded, pairs[i % GROUP_PAIRS])
                                         : pack_half2(weight * state.factor * scales[i % VALUE_GROUPS], 0.0f);
          // From a row a token and two columns a head to a row a column, tokens side by side.
          weights[set][i][upper] = transpose_8x8(pair);
        }
      }
    }
    add_values(state, weights, tile, token_tile);
  }
}

// Puts what a warp carries into a slot of the merge, channels in their own scale.
__device__ __forceinline__ void store_middle(
    const Middle& state, const MiddleRows& rows, const float* tables, float table_unit, u32 kv_head, u32 slot) {
  const auto level_at = [&](u32 code) { return tables[VALUE_LEVELS + code]; };
  const float least = VALUE_AFFINE ? level_value(0u, level_at) : 0.0f;
  const float greatest = VALUE_AFFINE ? level_value((1u << VALUE_BITS) - 1u, level_at) : 0.0f;
  const float step = (greatest - least) / ((1u << VALUE_BITS) - 1u);
  const float value_unit = VALUE_AFFINE ? step * CODE_UNIT : table_unit;
  const float start = MIDDLE_CODES ? -step * MIDDLE_CODE : least;  // what code 0 stands for in the products
  const float inverse = inverse_power(state.factor);
  const u32 row = lane_id() / 4;
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    float weight = state.weight[set];
    float offsets[VALUE_GROUPS];
#pragma unroll
    for (u32 i = 0; i < VALUE_GROUPS; ++i) offsets[i] = state.offsets[set][i];
#pragma unroll
    for (u32 lanes = 4; lanes < 32; lanes *= 2) {
      weight += __shfl_xor_sync(0xffffffffu, weight, lanes);
#pragma unroll
      for (u32 i = 0; i < VALUE_GROUPS; ++i) offsets[i] += __shfl_xor_sync(0xffffffffu, offsets[i], lanes);
    }
    const u32 head = set * 4 + lane_id() % 4;
    if (head >= GROUP_SIZE) continue;
    float* own = reinterpret_cast<float*>(shared_memory) + (slot * GROUP_SIZE + head) * (HEAD_DIM + 2);
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 8; ++i) {
      const u32 unit = i / VALUE_UNIT_CHANNELS;
      const u32 of_unit = i % VALUE_UNIT_CHANNELS;
      const u32 channel = value_channel(unit, row) + value_field_channel(of_unit);
      const float(&sums)[4] = state.output[set][unit * UNIT_TILES + of_unit / 2];
      const bool odd = is_odd_group(unit, row);
      const float product = (odd ? sums[of_unit % 2 * 2 + 1] : sums[of_unit % 2 * 2]) * (value_unit / (1u << value_place(of_unit)));
      const float zero = SUMS_WEIGHTS ? state.sums[set][weight_set(unit)][odd ? 1 : 0] : 0.0f;
      float value = (product + zero * start) * inverse;
      own[channel] = value;
    }
    if (row == 0) {
      own[HEAD_DIM] = state.reference[set];
      own[HEAD_DIM + 1] = weight;
    }
  }
}

// The exact tokens, as tiles of 16 that the first warps take: each leaves what it found in a slot. Returns the slots.
__device__ __forceinline__ u32 attend_exact(
    const WorkItem& own, const u32* record, const u32* cache, TokenRange sinks, TokenRange window) {
  const u32 warp = threadIdx.x / 32;
  const u32 sink_tiles = (sinks.end - sinks.begin + 15) / 16;
  const u32 tiles = sink_tiles + (window.end - window.begin + 15) / 16;
  if (warp >= tiles) return min(tiles, WARPS);
  const u32 oldest = record[AT_WINDOW_START];
  Softmax state;
  reset(state);
#pragma unroll 1
  for (u32 tile = warp; tile < tiles; tile += WARPS) {
    const bool is_sink = tile < sink_tiles;
    const TokenRange range = is_sink ? sinks : window;
    const u32 first = range.begin + (is_sink ? tile : tile - sink_tiles) * 16;
    attend_exact_tile(state, cache + record[is_sink ? AT_SINK_KEYS : AT_WINDOW_KEYS],
                      cache + record[is_sink ? AT_SINK_VALUES : AT_WINDOW_VALUES], own.kv_head, first, range,
                      [=](u32 token) { return is_sink ? token : (oldest + token) % WINDOW; });
  }
  store_state(state, FIRST_EXACT_SLOT + warp);
  return min(tiles, WARPS);
}

// The middle, tiles dealt out to the warps, each of which keeps a ring of them on its way, and while the first are, exact
// tokens: leaves what each warp found in its slots of the merge. Returns the slots of exact tokens.
__device__ __forceinline__ u32 attend_prompt(const WorkItem& own, const u32* record, const u32* query, const u32* cache,
                                             const float* tables, TokenRange share, TokenRange sinks, TokenRange window) {
  const MiddleRows rows = middle_rows(record, cache, own.kv_head);
  const LaneParts parts = lane_parts();
  const u32 warp = threadIdx.x / 32;
  unsigned char* ring = shared_memory + SHARED_RINGS + warp * STAGES * TILE_BYTES;
  // Tiles of exact tokens were dealt out first, from the first warp on: the next warp has the first tile here.
  const u32 exact_tiles = (sinks.end - sinks.begin + 15) / 16 + (window.end - window.begin + 15) / 16;
  const u32 turn = (warp + WARPS - exact_tiles % WARPS) % WARPS;
  const u32 begin = (share.begin / TILE_TOKENS + turn) * TILE_TOKENS;
  const u32 end = share.begin < share.end ? share.end : 0;
  const auto fetch = [&](u32 stage, u32 first) {
    if (first < end) fetch_tile(ring + stage * TILE_BYTES, rows, parts, first);
    cp_async_commit();  // also with nothing in it: a wait counts groups
  };
  const EarlyLoads early = load_early(query, tables, own);
#pragma unroll 1
  for (u32 stage = 0; stage < STAGES; ++stage) fetch(stage, begin + stage * WARPS * TILE_TOKENS);

  Query operand;
  ScoreTerms terms;
  float value_unit = 0.0f;
  if (!VALUE_AFFINE) {
    const auto level_at = [&](u32 code) { return tables[VALUE_LEVELS + code]; };
    const auto level = [&](u32 code) { return level_value(code, level_at); };
    value_unit = VALUE_FLOAT_SHIFT > 0 ? level(HALF_ONE >> VALUE_FLOAT_SHIFT) : build_table<VALUE_BITS, 1>(128, VALUE_TABLE_FACTOR, level);
  }
  stage_query(terms, early, query, rows, tables, own);
  if (MIDDLE_CODES) {
    const auto level_at = [&](u32 code) { return tables[VALUE_LEVELS + code]; };
    terms.middle_value = (level_value(0u, level_at) + level_value((1u << VALUE_BITS) - 1u, level_at)) * 0.5f;
  }
  attend_exact(own, record, cache, sinks, window);
  float key_limit = -1.0f;  // of scales, which the query in the operands has room for
  if (!KEY_FOLDED) load_query(operand);
  Middle state;
  reset_middle(state);
  u32 stage = 0;
#pragma unroll 1
  for (u32 first = begin; first < end; first += WARPS * TILE_TOKENS) {
    cp_async_wait<STAGES - 1>();
    __syncwarp();  // what every lane asked for of this tile is there
    take_tile(state, operand, terms, key_limit, ring + stage * TILE_BYTES, first, own.kv_head, share);
    __syncwarp();  // every lane has read the tile: another one may take its place
    fetch(stage, first + STAGES * WARPS * TILE_TOKENS);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  __syncthreads();  // no warp needs its ring any more: the merge takes the place
  if (end > 0) store_middle(state, rows, tables, value_unit, own.kv_head, warp);
  return min(exact_tiles, WARPS);
}

// A block's share of every segment, counted within the segment.
struct Share {
  WorkItem own;
  const u32* record;
  TokenRange sinks, middle, stream, window;
};

__device__ __forceinline__ Share share_of_block(const u32* sequences, const u32* work) {
  const WorkItem own = work_item(work, blockIdx.x);
  const u32* record = sequences + own.sequence * RECORD_WORDS;
  const u32 sinks = record[AT_SINK_TOKENS];
  const u32 middle = record[AT_MIDDLE_TOKENS];
  const u32 stream = record[AT_STREAM_TOKENS];
  const u32 window = record[AT_WINDOW_TOKENS];
  const TokenRange share = share_of(own, record, sinks + middle + stream + window);
  // Of a segment that starts at `start` and has `count` tokens.
  const auto share_in = [&](u32 start, u32 count) {
    return TokenRange{min(max(share.begin, start) - start, count), min(max(share.end, start) - start, count)};
  };
  return Share{own, record, share_in(0, sinks), share_in(sinks, middle), share_in(sinks + middle, stream),
               share_in(sinks + middle + stream, window)};
}

// Asks the L2 for the exact rows that this block attends to after the middle.
__device__ __forceinline__ void prefetch_exact(const Share& share, const u32* cache) {
  const u32 oldest = share.record[AT_WINDOW_START];
  const auto prefetch_rows = [&](const u32* keys, const u32* values, TokenRange own, auto slot) {
    constexpr u32 lines = (HEAD_DIM * 2 + 127) / 128;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < (own.end - own.begin) * lines; i += THREADS) {
      const u32 at = (slot(own.begin + i / lines) * WIDTH + share.own.kv_head * HEAD_DIM) / 2 + i % lines * 32;
      prefetch_line(keys + at);
      prefetch_line(values + at);
    }
  };
  prefetch_rows(cache + share.record[AT_SINK_KEYS], cache + share.record[AT_SINK_VALUES], share.sinks,
                [](u32 token) { return token; });
  prefetch_rows(cache + share.record[AT_WINDOW_KEYS], cache + share.record[AT_WINDOW_VALUES], share.window,
                [=](u32 token) { return (oldest + token) % WINDOW; });
}

extern "C" __global__ void __launch_bounds__(256, 1) attend(
    const u32* __restrict__ sequences,  // records of all sequences
    const u32* __restrict__ work,  // [work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const u32* __restrict__ query,  // f16 [query rows][9 heads][64], after RoPE
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    float* partials,  // [work items][3 query heads][64 output, maximum, weight sum]
    float* output,  // [query rows][9 heads][64]
    u32* counters  // [query rows][3 KV heads], zero before and after
) {
  u32 middle_slots = 0;
  u32 exact_slots = 0;
  {
    const Share share = share_of_block(sequences, work);
    prefetch_exact(share, cache);
    exact_slots = attend_prompt(share.own, share.record, query, cache, tables, share.middle, share.sinks, share.window);
    if (share.middle.begin < share.middle.end) middle_slots = WARPS;
  }
  // Read anew: kept over the middle, all this would cost it registers.
  const Share share = share_of_block(again(sequences), again(work));
  const WorkItem& own = share.own;
  const u32 kv_head = own.kv_head;
  const u32 item = blockIdx.x;
  const u32 warp = threadIdx.x / 32;
  const u32 stream_slots = share.stream.begin < share.stream.end ? WARPS : 0;
  if (stream_slots > 0) {
    const u32 query_exponent = stage_turned_query(query, own);
    Softmax state;
    reset(state);
    const float scale = SCORE_SCALE * HADAMARD_SCALE * power_of_two(254 - query_exponent);
    attend_stream(state, share.record, cache, tables, scale, kv_head, share.stream);
    store_state(state, WARPS + warp);
  }
  __syncthreads();  // all warps have stored
  float* outputs = output + (own.row * HEADS + kv_head * GROUP_SIZE) * HEAD_DIM;
#pragma unroll 1
  for (u32 head = warp; head < GROUP_SIZE; head += WARPS) {
    const HeadSum sum = merge_slots(head, middle_slots, stream_slots, exact_slots);
    if (own.splits == 1) {
      write_output(sum, outputs + head * HEAD_DIM);
      continue;
    }
    write_row(sum, partials + item * PARTIAL_WORDS + head * (HEAD_DIM + 2));
  }
  if (own.splits == 1) return;

  // The last block of a row merges. Its fence and its atomic stand for the whole block, as barriers are around them.
  __syncthreads();  // the partial result is complete before the block is counted, and the slots are read
  u32* is_last = reinterpret_cast<u32*>(shared_memory);
  if (threadIdx.x == 0) {
    __threadfence();
    u32* counter = counters + own.row * KV_HEADS + kv_head;
    const bool last = atomicAdd(counter, 1u) == own.splits - 1;
    if (last) *counter = 0u;
    __threadfence();
    is_last[0] = last ? 1u : 0u;
  }
  __syncthreads();  // all know whether the other blocks of the row are done
  if (is_last[0] == 0u) return;
  // A warp takes every so many of a head's splits; then one merges what they found.
  constexpr u32 sharers = WARPS > GROUP_SIZE ? WARPS / GROUP_SIZE : 1;
  float* found = reinterpret_cast<float*>(shared_memory) + 4;
  const float* rows = partials + (item - own.split) * PARTIAL_WORDS;
#pragma unroll 1
  for (u32 i = warp; i < GROUP_SIZE * sharers; i += WARPS) {
    const u32 head = i % GROUP_SIZE;
    const u32 first = i / GROUP_SIZE;
    HeadSum sum;
    reset_head(sum);
    const u32 count = first < own.splits ? (own.splits - first + sharers - 1) / sharers : 0;
    add_rows(sum, rows + first * PARTIAL_WORDS + head * (HEAD_DIM + 2), sharers * PARTIAL_WORDS, count,
             [](const float* place) { return load_fresh_one(place); });
    if (sharers == 1) {
      write_output(sum, outputs + head * HEAD_DIM);
      continue;
    }
    write_row(sum, found + i * (HEAD_DIM + 2));
  }
  if (sharers == 1) return;
  __syncthreads();  // all shares of every head are there
#pragma unroll 1
  for (u32 head = warp; head < GROUP_SIZE; head += WARPS) {
    HeadSum sum;
    reset_head(sum);
    add_rows(sum, found + head * (HEAD_DIM + 2), GROUP_SIZE * (HEAD_DIM + 2), sharers, [](const float* place) { return *place; });
    write_output(sum, outputs + head * HEAD_DIM);
  }
}
