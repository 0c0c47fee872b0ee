// attend: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attend of scheme kvquant3 for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, perChannel(nuq, 3 bits; a scale for 1 channel of the prompt without 0.005 of its numbers at each end), 2 outliers a token and KV head
// values: perToken(nuq, 3 bits; a scale for a head of 1 token without 0.01 of its numbers at each end), 2 outliers a token and KV head
// stream: lloydMax(3 bits); sinks 5, window 64
// tunables: products = 1, warps = 8, stages = 3, tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 PAIRS = 32;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 HEADS = 9;  // query heads
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 GROUP_SIZE = 3;  // query heads that share a KV head
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 KEY_ROW_WORDS = 18;  // words of one token's key fields
constexpr u32 KEY_BITS = 3;  // bits of a channel of a key
constexpr u32 KEY_HEAD_WORDS = 6;  // words of one head's key fields
constexpr u32 KEY_OUTLIER_CAP = 2;  // outliers of a token and KV head, at most
constexpr u32 HADAMARD_BLOCK = 64;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.125f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 VALUE_ROW_WORDS = 18;  // words of one token's value fields
constexpr u32 VALUE_BITS = 3;  // bits of a channel of a value
constexpr u32 VALUE_HEAD_WORDS = 6;  // words of one head's value fields
constexpr u32 VALUE_SCALE_ROW_WORDS = 2;  // words of a row of scales, two each
constexpr u32 VALUE_OUTLIER_CAP = 2;  // outliers of a token and KV head, at most
constexpr u32 STREAM_WORDS = 6;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 2;  // words of one stream token's norms, two each
constexpr u32 SINKS = 5;  // exact tokens at the start
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 ANGLE_TILE = 64;  // rows of the fine angle table
constexpr u32 KEY_LEVELS = 8;  // offset in the tables: values of the codes of keys, over their scales
constexpr u32 VALUE_LEVELS = 16;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 FINE_ANGLES = 24;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
constexpr u32 COARSE_ANGLES = 4120;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
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
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 3-bit fields [middle][3 KV heads][64], before RoPE
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [3 KV heads][64 of 1 channels]
constexpr u32 AT_KEY_OFFSETS = 28;  // in the record, first word of keyOffsets: f16 [3 KV heads][64 of 1 channels]
constexpr u32 AT_KEY_OUTLIERS = 31;  // in the record, first word of keyOutliers: u32 [middle][3 KV heads][2 largest residuals first]: channel + f16 residual * 2^16, before RoPE; 0 for none
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: 3-bit fields [middle][3 KV heads][64]
constexpr u32 AT_VALUE_SCALES = 29;  // in the record, first word of valueScales: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
constexpr u32 AT_VALUE_OFFSETS = 30;  // in the record, first word of valueOffsets: f16 [middle, 1 a row][3 KV heads][1 of 64 channels]
constexpr u32 AT_VALUE_OUTLIERS = 32;  // in the record, first word of valueOutliers: u32 [middle][3 KV heads][2 largest residuals first]: channel + f16 residual * 2^16; 0 for none
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 3-bit fields [stream][3 KV heads][64], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][3 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 3-bit fields [stream][3 KV heads][64], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][3 KV heads]
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 WARPS = 8;  // warps of a block
constexpr u32 STAGES = 3;  // tiles of a warp in shared memory, most of them on their way
constexpr u32 PASS_TILES = 4;  // pairs of 8-channel tiles that a warp rebuilds at a time
constexpr u32 SHARED_BYTES = 81920;  // shared memory that a launch asks for
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

// dsl/packing.ts:32 unpackField, bits = 3
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
template <typename Words>
__device__ __forceinline__ u32 unpack_field_3(u32 index, Words words) {
  const u32 position = index * 3u;
  const u32 word = position / 32u;
  const u32 shift = position % 32u;
  u32 value = words(word) >> shift;
  if (shift + 3u > 32u) {
    value = value | (words(word + 1u) << (32u - shift));
  }
  return value & 7u;
}

// dsl/codecs/unrope.ts:16 rotatePair
// Turns the pair (a, b) by the angle whose cosine and sine are given.
__device__ __forceinline__ float2 rotate_pair(float a, float b, float2 angle) {
  return make_float2(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}

// dsl/codecs/unrope.ts:31 addAngles
// Adds two angles held as (cosine, sine).
__device__ __forceinline__ float2 add_angles(float2 coarse, float2 fine) {
  return make_float2(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 32, pairs = 32, interleaved = 0
// The first channel of a pair.
__device__ __forceinline__ u32 first_of_pair_32_32_0(u32 pair) {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 32, pairs = 32, interleaved = 0
// The second channel of a pair.
__device__ __forceinline__ u32 second_of_pair_32_32_0(u32 pair) {
  return pair + 32u;
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

// A warp takes 16 tokens of every tile, always at the same places of it. With p0 the tile's position and t that of a token in it,
// q . R(p0 + t) k = (R(-p0) q) . R(t) k: the query is turned once a tile, and the rotations by t stay in registers. Of a key
// that is scale * level + offset they multiply the level alone; scales and offsets go into the query.
constexpr u32 SETS = (GROUP_SIZE + 3) / 4;   // a set has two columns of a product for each of four query heads
constexpr u32 SPAN = WARPS * 16;             // tokens of a tile
constexpr u32 CHANNEL_STEPS = HEAD_DIM / 16;  // k = 16 steps of the scores of exact tokens

// Keys: lane % 4 has LANE_PAIRS pairs of neighbouring channels of the first half of a head, and those of the second half that
// rotate with them. Values: lane / 4 has as many channels side by side as two such runs.
constexpr u32 LANE_PAIRS = HEAD_DIM / 16;
constexpr u32 LANE_CODES = HEAD_DIM / 8;
constexpr u32 STEPS = LANE_PAIRS / 2;        // two pairs of both halves are a step: two k = 16 products
constexpr u32 STEP_WORDS = 12;               // of operands that a lane has for a step
constexpr u32 STEP_BYTES = STEP_WORDS * 128 + 32;  // the 32 spread the stores of a warp over the banks
constexpr u32 OPERAND_BYTES = STEPS * STEP_BYTES;  // of a set

// What the values of a head share, as the states of attention name it: one scale a token.
constexpr u32 VALUE_GROUPS = 1;
constexpr u32 WEIGHT_SETS = 1;
constexpr u32 VALUE_SCALE_WORDS = 1;

constexpr u32 CHANNELS = 8;                                // of a vector, as the other segments take their values
constexpr u32 VECTORS = HEAD_DIM / CHANNELS;
constexpr u32 VECTOR_STEPS = (VECTORS + 7) / 8;            // eight vectors at a time, one for each lane / 4
constexpr u32 OUTPUT_TILES = VECTOR_STEPS * CHANNELS / 2;  // m = 16 tiles of output channels
constexpr u32 HEAD_TILES = (GROUP_SIZE + 7) / 8;           // n = 8 tiles of query heads in their output product
constexpr u32 QUERY_STRIDE = HEAD_DIM + 8;                 // halves
constexpr u32 QUERY_BYTES = 16 * QUERY_STRIDE * 2;

// A staged tile of a warp, in bytes: codes, outliers, a word of each token's scale and one of its offset.
constexpr u32 TILE_VALUES = 16 * KEY_HEAD_WORDS * 4;
constexpr u32 TILE_KEY_OUTLIERS = TILE_VALUES + 16 * VALUE_HEAD_WORDS * 4;
constexpr u32 TILE_VALUE_OUTLIERS = TILE_KEY_OUTLIERS + 16 * KEY_OUTLIER_CAP * 4;
constexpr u32 TILE_SCALES = TILE_VALUE_OUTLIERS + 16 * VALUE_OUTLIER_CAP * 4;
constexpr u32 TILE_OFFSETS = TILE_SCALES + 16 * 4;
constexpr u32 TILE_BYTES = TILE_OFFSETS + 16 * 4;
static_assert(TILE_BYTES % 16 == 0, "tiles begin at multiples of 16 bytes");

// Where a word of a token's codes lies in a staged tile, so that reads of a warp meet in few banks.
__device__ __forceinline__ u32 key_word_at(u32 token, u32 word) {
  return token * KEY_HEAD_WORDS + (KEY_HEAD_WORDS == 16 ? word ^ (token / 2 % 2 * 8) : word);
}
__device__ __forceinline__ u32 value_word_at(u32 token, u32 word) {
  const u32 row = token / 8 * 8 + token % 2 * 4 + token / 2 % 4;
  return row * VALUE_HEAD_WORDS + (VALUE_HEAD_WORDS == 16 ? word ^ (row / 2 % 2 * 8) : word);
}

// Offsets in shared memory, in bytes: the query as float32, [pair][query head] of the two channels; scale and offset of every channel of the keys; what the
// warps find of the largest operand; the turned query twice, as float32 for outliers and as operands; the query as it is, for exact tokens; of every warp
// what outliers add to scores, [token][query head], and to values, which are zero but for these; the rings.
constexpr u32 SHARED_CHANNELS = 0;
constexpr u32 SHARED_SCALES = SHARED_CHANNELS + GROUP_SIZE * HEAD_DIM * 4;
constexpr u32 SHARED_FOUND = SHARED_SCALES + HEAD_DIM * 8;
constexpr u32 SHARED_TURNED = SHARED_FOUND + THREADS * 8;
constexpr u32 TURNED_BYTES = GROUP_SIZE * HEAD_DIM * 4;
constexpr u32 SHARED_OPERANDS = SHARED_TURNED + 2 * TURNED_BYTES;
constexpr u32 SHARED_QUERY = SHARED_OPERANDS + 2 * SETS * OPERAND_BYTES;
constexpr u32 SHARED_ADDED = SHARED_QUERY + QUERY_BYTES;
constexpr u32 ADDED_BYTES = GROUP_SIZE * 64;  // of a warp
constexpr u32 SHARED_SPARSE = SHARED_ADDED + WARPS * ADDED_BYTES;
constexpr u32 SPARSE_BYTES = HEAD_DIM * 32;  // of a warp
constexpr u32 SHARED_RINGS = SHARED_SPARSE + WARPS * SPARSE_BYTES;
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

// Last the tables of levels, 256 bytes an entry, of which keys have the first half and values the other. They begin at a
// multiple of their size, so that bits of codes make an address without an addition; the memory before them that a block may
// not use is 1 KB at most.
__device__ __forceinline__ constexpr u32 table_entries(u32 bits) { return 1u << 2 * bits; }
constexpr u32 TABLE_BYTES = table_entries(KEY_BITS > VALUE_BITS ? KEY_BITS : VALUE_BITS) * 256;
constexpr u32 TABLES_FROM = (FIRST_EXACT_SLOT + EXACT_SLOTS) * SLOT_BYTES;
__device__ __forceinline__ constexpr u32 table_after(u32 address) { return (address + TABLE_BYTES - 1) / TABLE_BYTES * TABLE_BYTES; }

static_assert(table_after(TABLES_FROM + 1024) + TABLE_BYTES == SHARED_BYTES, "what is placed is what a launch asks for");

extern __shared__ __align__(128) unsigned char shared_memory[];

// Where the tables begin, as an address of shared memory, and their word at such an address. In C++ alone the compiler would
// add the start of the block's memory to every address that codes make; the emulator has no addresses but these offsets.
#if defined(__CUDA_ARCH__)
__device__ __forceinline__ u32 table_start() { return table_after(shared_address(shared_memory) + TABLES_FROM); }
__device__ __forceinline__ void* table_at(u32 address) { return shared_memory + (address - shared_address(shared_memory)); }
__device__ __forceinline__ u32 table_word(u32 address) {
  u32 word;
  asm("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}
#else
inline u32 table_start() { return table_after(TABLES_FROM); }
inline void* table_at(u32 address) { return shared_memory + address; }
inline u32 table_word(u32 address) { return *static_cast<const u32*>(table_at(address)); }
#endif

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
    return make_float2(level_value(unpack_field_3(channel, word_at), level_at) * norm,
                       level_value(unpack_field_3(channel + 1, word_at), level_at) * norm);
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

// Two codes that are neighbours name an entry of a table: their levels as halves. An entry has a copy for every lane, so that
// reads of a warp meet in no bank; `table` is 0 for keys, 128 for values. Lane i gives the level of code i.
template <u32 bits>
__device__ __forceinline__ void build_table(u32 table, float factor, float level) {
  constexpr u32 mask = (1u << bits) - 1u;
#pragma unroll 4
  for (u32 i = threadIdx.x; i < table_entries(bits) * 8; i += THREADS) {
    const u32 entry = i / 8;
    const float first = __shfl_sync(0xffffffffu, level, entry & mask);
    const float second = __shfl_sync(0xffffffffu, level, entry >> bits);
    const u32 two = pack_half2(first * factor, second * factor);
    *static_cast<uint4*>(table_at(table_start() + entry * 256 + table + i % 8 * 16)) = uint4{two, two, two, two};
  }
}

// The power of two that brings the largest level to [1, 2).
__device__ __forceinline__ float level_factor(float level) {
  return power_of_two(scaling_exponent(warp_largest(fabsf(level)))) * 0x1p-8f;
}

// The same times a number from 1 to 2 at which halves leave little of the levels: what they leave of one is the same for all
// channels with its code, and adds up where a score is large. Each lane tries two.
template <u32 bits>
__device__ __forceinline__ float fitting_factor(float own) {
  const float power = level_factor(own) * 0.5f;
  const float factors[2] = {power * (1.0f + lane_id() * 0x1p-5f), power * (1.0f + lane_id() * 0x1p-5f + 0x1p-6f)};
  float left[2] = {0.0f, 0.0f};
#pragma unroll 4
  for (u32 code = 0; code < 1u << bits; ++code) {
    const float level = __shfl_sync(0xffffffffu, own, code);
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const float rest = level * factors[i] - round_to_half(level * factors[i]);
      left[i] += rest * rest;
    }
  }
  // Relative to the factor: a larger one makes nothing better.
#pragma unroll
  for (u32 i = 0; i < 2; ++i) left[i] *= (power / factors[i]) * (power / factors[i]);
  float best = left[1] < left[0] ? factors[1] : factors[0];
  float least = fminf(left[0], left[1]);
#pragma unroll
  for (u32 lanes = 16; lanes > 0; lanes /= 2) {
    const float other_least = __shfl_xor_sync(0xffffffffu, least, lanes);
    const float other = __shfl_xor_sync(0xffffffffu, best, lanes);
    // Of equals the smaller: all lanes are to agree.
    if (other_least < least || (other_least == least && other < best)) best = other;
    least = fminf(least, other_least);
  }
  return best;
}

// The first bits of a run of codes that begins at bit `first` of a row: all that a lane has.
template <u32 bits>
struct Codes {
  u32 low, high;
};

template <u32 bits, typename Word>
__device__ __forceinline__ Codes<bits> load_codes(u32 first, Word word) {
  constexpr u32 run = LANE_CODES * bits;
  if (run == 64) return Codes<bits>{word(first / 32), word(first / 32 + 1)};
  const u32 shift = first % 32;
  if (run == 32) return Codes<bits>{word(first / 32), 0u};
  const u32 low = word(first / 32);
  if (run == 16) return Codes<bits>{low >> shift, 0u};
  const u32 high = word(first / 32 + (shift + run > 32 ? 1 : 0));
  return Codes<bits>{__funnelshift_r(low, high, shift), high >> shift};
}

// The levels of codes 2i and 2i + 1 of a run. `copy` is the address of the lane's copy of entry 0.
template <u32 bits>
__device__ __forceinline__ u32 levels_of(const Codes<bits>& codes, u32 i, u32 copy) {
  const u32 at = i * 2 * bits;
  // A byte becomes the second one of the address.
  if (bits == 4) return table_word(__byte_perm(at < 32 ? codes.low : codes.high, copy, 0x7604u + at % 32 / 8 * 16));
  constexpr u32 mask = (table_entries(bits) - 1u) * 256u;
  const u32 moved = at + 2 * bits <= 32 ? (at < 8 ? codes.low << (8 - at) : codes.low >> (at - 8))
                    : at < 32          ? __funnelshift_r(codes.low, codes.high, at - 8)
                    : at < 40          ? codes.high << (40 - at)
                                       : codes.high >> (at - 40);
  return table_word((moved & mask) | copy);
}

// The rotary angle of one pair at a position, as (cosine, sine), in its two parts: that of a tile of positions, and that of
// the place in it.
struct Angle {
  float2 coarse, fine;
};

__device__ __forceinline__ Angle load_angle(const float* tables, u32 position, u32 pair) {
  return Angle{reinterpret_cast<const float2*>(tables + COARSE_ANGLES)[position / ANGLE_TILE * PAIRS + pair],
               reinterpret_cast<const float2*>(tables + FINE_ANGLES)[position % ANGLE_TILE * PAIRS + pair]};
}

// Asks the L2 for the angles of a tile of positions.
__device__ __forceinline__ void prefetch_coarse(const float* tables, u32 position) {
  constexpr u32 lines = PAIRS * 8 / 128;
  if (threadIdx.x < lines) prefetch_line(tables + COARSE_ANGLES + position / ANGLE_TILE * PAIRS * 2 + threadIdx.x * 32);
}

// What a block needs first, two channels a word: its query heads, and scales and offsets of the keys. Asked for before the
// first tiles, behind which it would wait.
constexpr u32 QUERY_WORDS = (GROUP_SIZE * PAIRS + THREADS - 1) / THREADS;  // of a thread
struct EarlyLoads {
  u32 query[QUERY_WORDS];
  u32 scales, offsets;
  float key_level, value_level;  // of the code that is the lane's number
};

__device__ __forceinline__ EarlyLoads load_early(
    const u32* query, const u32* record, const u32* cache, const float* tables, const WorkItem& own) {
  // Volatile: the compiler must not move them below the tiles.
  const volatile u32* heads = query + (own.row * HEADS + own.kv_head * GROUP_SIZE) * PAIRS;
  const u32 at = own.kv_head * PAIRS + threadIdx.x % PAIRS;
  // Without a middle nothing has stored a scale.
  const bool coded = record[AT_MIDDLE_TOKENS] > 0;
  EarlyLoads early;
#pragma unroll
  for (u32 i = 0; i < QUERY_WORDS; ++i) early.query[i] = heads[min(i * THREADS + threadIdx.x, GROUP_SIZE * PAIRS - 1)];
  early.scales = coded ? *static_cast<const volatile u32*>(cache + record[AT_KEY_SCALES] + at) : 0u;
  early.offsets = coded ? *static_cast<const volatile u32*>(cache + record[AT_KEY_OFFSETS] + at) : 0u;
  const volatile float* levels = tables;
  early.key_level = level_value(lane_id() % (1u << KEY_BITS), [&](u32 level) { return levels[KEY_LEVELS + level]; });
  early.value_level = level_value(lane_id() % (1u << VALUE_BITS), [&](u32 level) { return levels[VALUE_LEVELS + level]; });
  return early;
}

// The query of a block as float32, and for exact tokens as halves; scale and offset of each channel of the keys. Returns the
// power of two that the operands are times, as its exponent.
__device__ __forceinline__ u32 stage_query(const EarlyLoads& early, float level_unit) {
  float* channels = reinterpret_cast<float*>(shared_memory + SHARED_CHANNELS);
  float4* scales = reinterpret_cast<float4*>(shared_memory + SHARED_SCALES);
  u32* exact = reinterpret_cast<u32*>(shared_memory + SHARED_QUERY);
  const float2 scale = unpack_half2(early.scales);
  const float2 offset = unpack_half2(early.offsets);
  if (threadIdx.x < PAIRS) scales[threadIdx.x] = make_float4(scale.x * level_unit, offset.x, scale.y * level_unit, offset.y);
  const float largest_scale = fmaxf(scale.x, scale.y) * level_unit;
  float largest_key = fmaxf(largest_scale, fmaxf(fabsf(offset.x), fabsf(offset.y)));
#pragma unroll 1
  for (u32 i = threadIdx.x; i < 16 * QUERY_STRIDE / 2; i += THREADS) exact[i] = 0u;
  if (GROUP_SIZE % 4 != 0) {
    // Columns without a query head.
    uint4* operands = reinterpret_cast<uint4*>(shared_memory + SHARED_OPERANDS);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < 2 * SETS * OPERAND_BYTES / 16; i += THREADS) operands[i] = uint4{0u, 0u, 0u, 0u};
  }
  __syncthreads();  // what the query does not fill is zero
  float largest_query = 0.0f;
#pragma unroll
  for (u32 i = 0; i < QUERY_WORDS; ++i) {
    const u32 at = i * THREADS + threadIdx.x;
    if (at >= GROUP_SIZE * PAIRS) break;
    const float2 two = unpack_half2(early.query[i]);
    const u32 head = at / PAIRS;
    const u32 channel = at % PAIRS * 2;  // the first of two, which belong to pairs that are neighbours
    float* place = channels + (channel % PAIRS * GROUP_SIZE + head) * 2 + channel / PAIRS;
    place[0] = two.x;
    place[GROUP_SIZE * 2] = two.y;
    exact[head * (QUERY_STRIDE / 2) + channel / 2] = early.query[i];
    largest_query = fmaxf(largest_query, fmaxf(fabsf(two.x), fabsf(two.y)));
  }
  largest_query = warp_largest(largest_query);
  largest_key = warp_largest(largest_key);
  float* found = reinterpret_cast<float*>(shared_memory + SHARED_FOUND);
  // Every lane stores: were it up to some of them, the compiler would let these run apart.
  found[threadIdx.x] = largest_query;
  found[THREADS + threadIdx.x] = largest_key;
  __syncthreads();  // the query, the scales and what is largest are in place
  largest_query = largest_key = 0.0f;
#pragma unroll
  for (u32 i = 0; i < WARPS; ++i) {
    largest_query = fmaxf(largest_query, found[i * 32]);
    largest_key = fmaxf(largest_key, found[THREADS + i * 32]);
  }
  // A turned channel is at most twice the largest of the query, and an offset meets two of them.
  return min(scaling_exponent(largest_query * largest_key * 4.0f) + 5u, 253u);
}

// Turns the query back by the position of a tile, and puts it times scales and offsets into the operands `buffer`, as two
// halves each: what meets the level of a pair's first channel times the cosine and times the sine, what meets that of the
// second one, and for offsets what meets cosine and sine themselves. With few query heads each of these three is for a
// thread of its own.
// `angle` is that of the thread's first pair.
__device__ __forceinline__ void build_operands(u32 buffer, u32 position, const Angle& angle, u32 exponent, const float* tables) {
  constexpr u32 parts = GROUP_SIZE * PAIRS * 3 <= 2 * THREADS ? 1 : 3;
  const float2* channels = reinterpret_cast<const float2*>(shared_memory + SHARED_CHANNELS);
  const float2* scales = reinterpret_cast<const float2*>(shared_memory + SHARED_SCALES);
  const float power = power_of_two(exponent);
#pragma unroll 1
  for (u32 item = threadIdx.x; item < GROUP_SIZE * PAIRS * 3 / parts; item += THREADS) {
    const u32 pair = item % PAIRS;
    const u32 head = item / PAIRS % GROUP_SIZE;
    const u32 first_part = item / (PAIRS * GROUP_SIZE);
    const Angle parts_of = item == threadIdx.x ? angle : load_angle(tables, position, pair);
    const float2 back = add_angles(parts_of.coarse, parts_of.fine);
    const float2 own = channels[pair * GROUP_SIZE + head];
    const float2 plain = make_float2(own.x * back.x + own.y * back.y, own.y * back.x - own.x * back.y);
    float2* turned_query = reinterpret_cast<float2*>(shared_memory + SHARED_TURNED + buffer * TURNED_BYTES);
    if (first_part == 0) turned_query[pair * GROUP_SIZE + head] = plain;
    const float2 turned = make_float2(plain.x * power, plain.y * power);
    const float2 first = scales[pair];
    const float2 second = scales[PAIRS + pair];
    const u32 lane_pair = pair / 2 % LANE_PAIRS;
    const u32 lane = head % 4 * 8 + pair / (2 * LANE_PAIRS);
    unsigned char* place = shared_memory + SHARED_OPERANDS + (buffer * SETS + head / 4) * OPERAND_BYTES +
                           lane_pair / 2 * STEP_BYTES + lane * 16 + lane_pair % 2 * 4 + pair % 2 * 2;
#pragma unroll
    for (u32 i = 0; i < parts; ++i) {
      const u32 part = first_part + i;
      const float one = part == 0 ? first.x : part == 1 ? 0.0f : first.y;
      const float other = part == 0 ? 0.0f : part == 1 ? second.x : second.y;
      const float cosine = turned.x * one + turned.y * other;
      const float sine = turned.y * one - turned.x * other;
      const u32 high = pack_half2(cosine, sine);
      const u32 low = remainder_pair(high, cosine, sine);
      u16* words = reinterpret_cast<u16*>(place + part * 512);
      words[0] = static_cast<u16>(high);
      words[4] = static_cast<u16>(high >> 16);
      words[32] = static_cast<u16>(low);  // four lanes on: the next column
      words[36] = static_cast<u16>(low >> 16);
    }
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

// Where a warp's tiles come from: rows of the KV head's codes, by tokens of the middle.
struct MiddleRows {
  const u32 *key_codes, *value_codes, *key_outliers, *value_outliers, *value_scales, *value_offsets;
  u32 tokens;  // of the middle
};

__device__ __forceinline__ MiddleRows middle_rows(const u32* record, const u32* cache, u32 kv_head) {
  return MiddleRows{cache + record[AT_KEY_CODES] + kv_head * KEY_HEAD_WORDS,
                    cache + record[AT_VALUE_CODES] + kv_head * VALUE_HEAD_WORDS,
                    cache + record[AT_KEY_OUTLIERS] + kv_head * KEY_OUTLIER_CAP,
                    cache + record[AT_VALUE_OUTLIERS] + kv_head * VALUE_OUTLIER_CAP,
                    cache + record[AT_VALUE_SCALES] + kv_head / 2,
                    cache + record[AT_VALUE_OFFSETS] + kv_head / 2,
                    record[AT_MIDDLE_TOKENS]};
}

// Copies 16 rows of `words` words; `row(token)` is where a row begins, `place(token, word)` where its words go.
template <u32 words, typename Row, typename Place>
__device__ __forceinline__ void fetch_words(Row row, Place place) {
  constexpr u32 unit = words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1;
  constexpr u32 units = 16 * words / unit;
#pragma unroll
  for (u32 first = 0; first < units; first += 32) {
    const u32 i = first + lane_id();
    if (first + 32 > units && i >= units) break;
    const u32 token = i * unit / words;
    const u32 word = i * unit % words;
    if (unit == 4) {
      cp_async_16_of_line(place(token, word), row(token) + word);
    } else if (unit == 2) {
      cp_async_8(place(token, word), row(token) + word);
    } else {
      cp_async_4(place(token, word), row(token) + word);
    }
  }
}

// Asks for 16 tokens from `first` on. Where they are not `whole`, those past the end are the last one again, and weigh nothing.
template <bool whole>
__device__ __forceinline__ void fetch_rows(unsigned char* tile, const MiddleRows& rows, u32 first) {
  const u32 last = rows.tokens - 1 - first;
  const auto row_of = [=](u32 token) { return whole ? token : min(token, last); };
  const u32* key_codes = rows.key_codes + first * KEY_ROW_WORDS;
  const u32* value_codes = rows.value_codes + first * VALUE_ROW_WORDS;
  const u32* scales = rows.value_scales + first * VALUE_SCALE_ROW_WORDS;
  fetch_words<KEY_HEAD_WORDS>([&](u32 token) { return key_codes + row_of(token) * KEY_ROW_WORDS; },
                              [&](u32 token, u32 word) { return tile + key_word_at(token, word) * 4; });
  fetch_words<VALUE_HEAD_WORDS>([&](u32 token) { return value_codes + row_of(token) * VALUE_ROW_WORDS; },
                                [&](u32 token, u32 word) { return tile + TILE_VALUES + value_word_at(token, word) * 4; });
  const u32* key_outliers = rows.key_outliers + first * (KV_HEADS * KEY_OUTLIER_CAP);
  fetch_words<KEY_OUTLIER_CAP>([&](u32 token) { return key_outliers + row_of(token) * (KV_HEADS * KEY_OUTLIER_CAP); },
                               [&](u32 token, u32 word) { return tile + TILE_KEY_OUTLIERS + (token * KEY_OUTLIER_CAP + word) * 4; });
  const u32* value_outliers = rows.value_outliers + first * (KV_HEADS * VALUE_OUTLIER_CAP);
  fetch_words<VALUE_OUTLIER_CAP>([&](u32 token) { return value_outliers + row_of(token) * (KV_HEADS * VALUE_OUTLIER_CAP); },
                                 [&](u32 token, u32 word) { return tile + TILE_VALUE_OUTLIERS + (token * VALUE_OUTLIER_CAP + word) * 4; });
  fetch_words<1>([&](u32 token) { return scales + row_of(token) * VALUE_SCALE_ROW_WORDS; },
                 [&](u32 token, u32) { return tile + TILE_SCALES + token * 4; });
  const u32* offsets = rows.value_offsets + first * VALUE_SCALE_ROW_WORDS;
  fetch_words<1>([&](u32 token) { return offsets + row_of(token) * VALUE_SCALE_ROW_WORDS; },
                 [&](u32 token, u32) { return tile + TILE_OFFSETS + token * 4; });
}

__device__ __forceinline__ void fetch_tile(unsigned char* tile, const MiddleRows& rows, u32 first) {
  if (first + 16 <= rows.tokens) {
    fetch_rows<true>(tile, rows, first);
  } else {
    fetch_rows<false>(tile, rows, first);
  }
}

// Cosines and sines by which a lane's tokens, lane / 4 and lane / 4 + 8 of the warp's, are rotated within a tile, two pairs a
// word. Each is the sum of a multiple of 1/2, whose product with a level is exact, and a rest of 1/4 at most: what a half
// loses of the rest's product is too little to move a score.
struct Rotations {
  u32 cosines[2][LANE_PAIRS], sines[2][LANE_PAIRS];
  u32 cosine_rests[2][LANE_PAIRS], sine_rests[2][LANE_PAIRS];
};

// A loop whose results go through local memory: written out for every pair, it would be as much code as a tile takes, and
// code that runs once comes from memory. Angles of four pairs of neighbours are on their way at a time.
__device__ __forceinline__ void load_rotations(Rotations& rotations, const float* tables, u32 first) {
  uint4 words[2 * LANE_PAIRS];
#pragma unroll 1
  for (u32 batch = 0; batch < 2 * LANE_PAIRS; batch += 4) {
    const u32 place = first + batch / LANE_PAIRS * 8 + lane_id() / 4;
    const u32 pair = (lane_id() % 4 * LANE_PAIRS + batch % LANE_PAIRS) * 2;
    const float4* coarse = reinterpret_cast<const float4*>(tables + COARSE_ANGLES + (place / ANGLE_TILE * PAIRS + pair) * 2);
    const float4* fine = reinterpret_cast<const float4*>(tables + FINE_ANGLES + (place % ANGLE_TILE * PAIRS + pair) * 2);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const float4 tile = coarse[i];
      const float4 own = fine[i];
      const float2 one = add_angles(make_float2(tile.x, tile.y), make_float2(own.x, own.y));
      const float2 two = add_angles(make_float2(tile.z, tile.w), make_float2(own.z, own.w));
      const float cosines[2] = {rintf(one.x * 2.0f) * 0.5f, rintf(two.x * 2.0f) * 0.5f};
      const float sines[2] = {rintf(one.y * 2.0f) * 0.5f, rintf(two.y * 2.0f) * 0.5f};
      words[batch + i] = uint4{pack_half2(cosines[0], cosines[1]), pack_half2(sines[0], sines[1]),
                               pack_half2(one.x - cosines[0], two.x - cosines[1]), pack_half2(one.y - sines[0], two.y - sines[1])};
    }
  }
#pragma unroll
  for (u32 i = 0; i < 2 * LANE_PAIRS; ++i) {
    rotations.cosines[i / LANE_PAIRS][i % LANE_PAIRS] = words[i].x;
    rotations.sines[i / LANE_PAIRS][i % LANE_PAIRS] = words[i].y;
    rotations.cosine_rests[i / LANE_PAIRS][i % LANE_PAIRS] = words[i].z;
    rotations.sine_rests[i / LANE_PAIRS][i % LANE_PAIRS] = words[i].w;
  }
}

// The products of a warp's tokens with the turned query: of tokens lane / 4 and lane / 4 + 8 for query head lane % 4 of a set,
// as the two columns that belong together.
__device__ __forceinline__ void score_tokens(
    float (&products)[SETS][4], const Rotations& rotations, const unsigned char* tile, u32 buffer) {
  const u32* rows = reinterpret_cast<const u32*>(tile);
  const u32 copy = table_start() + lane_id() * 4;
  Codes<KEY_BITS> codes[2][2];
#pragma unroll
  for (u32 upper = 0; upper < 2; ++upper) {
    const u32 token = upper * 8 + lane_id() / 4;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 first = (half * PAIRS + lane_id() % 4 * LANE_CODES) * KEY_BITS;
      codes[upper][half] = load_codes<KEY_BITS>(first, [&](u32 word) { return rows[key_word_at(token, word)]; });
    }
  }
  // Several sums side by side: a product waits for the one before it.
  float others[3][SETS][4];
#pragma unroll
  for (u32 i = 0; i < SETS * 4; ++i) {
    products[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (u32 k = 0; k < 3; ++k) others[k][i / 4][i % 4] = 0.0f;
  }
#pragma unroll
  for (u32 step = 0; step < STEPS; ++step) {
    u32 operands[SETS][STEP_WORDS];
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      const unsigned char* own =
          shared_memory + SHARED_OPERANDS + (buffer * SETS + set) * OPERAND_BYTES + step * STEP_BYTES + lane_id() * 16;
#pragma unroll
      for (u32 i = 0; i < STEP_WORDS; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(own + i * 128);
        operands[set][i] = four.x;
        operands[set][i + 1] = four.y;
        operands[set][i + 2] = four.z;
        operands[set][i + 3] = four.w;
      }
    }
    const auto add = [&](const u32 (&keys)[4], float (&sums)[SETS][4], u32 word) {
#pragma unroll
      for (u32 set = 0; set < SETS; ++set) {
        const u32 columns[2] = {operands[set][word], operands[set][word + 1]};
        mma_m16n8k16(sums[set], keys, columns);
      }
    };
    const auto turn = [&](const u32 (&levels)[4], const u32 (&factors)[2][LANE_PAIRS], float (&sums)[SETS][4], u32 word) {
      const u32 keys[4] = {
          multiply_half2(levels[0], factors[0][step * 2]), multiply_half2(levels[1], factors[1][step * 2]),
          multiply_half2(levels[2], factors[0][step * 2 + 1]), multiply_half2(levels[3], factors[1][step * 2 + 1])};
      add(keys, sums, word);
    };
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      u32 levels[4];
#pragma unroll
      for (u32 i = 0; i < 4; ++i) levels[i] = levels_of<KEY_BITS>(codes[i % 2][half], step * 2 + i / 2, copy);
      turn(levels, rotations.cosines, products, half * 4);
      turn(levels, rotations.cosine_rests, others[0], half * 4);
      turn(levels, rotations.sines, others[1], half * 4 + 2);
      turn(levels, rotations.sine_rests, others[2], half * 4 + 2);
    }
    const auto whole = [&](const u32 (&factors)[2][LANE_PAIRS], float (&sums)[SETS][4], u32 word) {
      const u32 keys[4] = {factors[0][step * 2], factors[1][step * 2], factors[0][step * 2 + 1], factors[1][step * 2 + 1]};
      add(keys, sums, word);
    };
    whole(rotations.cosines, products, 8);
    whole(rotations.cosine_rests, others[0], 8);
    whole(rotations.sines, others[1], 10);
    whole(rotations.sine_rests, others[2], 10);
  }
#pragma unroll
  for (u32 i = 0; i < SETS * 4; ++i) products[i / 4][i % 4] += others[0][i / 4][i % 4] + (others[1][i / 4][i % 4] + others[2][i / 4][i % 4]);
}

// Outliers of a warp's keys, with the angles of their channels' pairs at the token's place in the tile. Two lanes share a token.
struct KeyOutliers {
  u32 entries[(KEY_OUTLIER_CAP + 1) / 2];
  Angle angles[(KEY_OUTLIER_CAP + 1) / 2];
};

__device__ __forceinline__ void load_key_outliers(KeyOutliers& outliers, const unsigned char* tile, u32 tokens, const float* tables) {
  const u32 token = lane_id() / 2;
  const u32* entries = reinterpret_cast<const u32*>(tile + TILE_KEY_OUTLIERS) + token * KEY_OUTLIER_CAP;
#pragma unroll
  for (u32 i = 0; i < (KEY_OUTLIER_CAP + 1) / 2; ++i) {
    const u32 at = i * 2 + lane_id() % 2;
    outliers.entries[i] = KEY_OUTLIER_CAP % 2 == 0 || at < KEY_OUTLIER_CAP ? entries[at] : 0u;
    // Tokens past the end are the last one again: they have no row of angles.
    outliers.angles[i] = load_angle(tables, threadIdx.x / 32 * 16 + min(token, tokens - 1), outliers.entries[i] % PAIRS);
  }
}

// What they add to the scores, into a place of the warp: each its residual times what its channel of the query becomes, turned
// back by the token's place in the tile.
__device__ __forceinline__ void add_key_outliers(const KeyOutliers& outliers, u32 buffer) {
  const float2* query = reinterpret_cast<const float2*>(shared_memory + SHARED_TURNED + buffer * TURNED_BYTES);
  float* added = reinterpret_cast<float*>(shared_memory + SHARED_ADDED + threadIdx.x / 32 * ADDED_BYTES);
  float sums[GROUP_SIZE] = {};
#pragma unroll
  for (u32 i = 0; i < (KEY_OUTLIER_CAP + 1) / 2; ++i) {
    const u32 entry = outliers.entries[i];
    const float residual = half_to_float(static_cast<u16>(entry >> 16)) * SCORE_SCALE;
    const float2 angle = add_angles(outliers.angles[i].coarse, outliers.angles[i].fine);
    const bool second = (entry & PAIRS) != 0;
    const float cosine = residual * angle.x;
    const float sine = residual * angle.y;
    const float one = second ? -sine : cosine;
    const float other = second ? cosine : sine;
#pragma unroll
    for (u32 head = 0; head < GROUP_SIZE; ++head) {
      const float2 own = query[entry % PAIRS * GROUP_SIZE + head];
      sums[head] += own.x * one + own.y * other;
    }
  }
#pragma unroll
  for (u32 head = 0; head < GROUP_SIZE; ++head) {
    if (KEY_OUTLIER_CAP > 1) sums[head] += __shfl_xor_sync(0xffffffffu, sums[head], 1);
    if (lane_id() % 2 == 0) added[lane_id() / 2 * GROUP_SIZE + head] = sums[head];
  }
}

// Adds a warp's values times their weights: rows of the product are channels, of which lane / 4 has LANE_CODES side by side.
__device__ __forceinline__ void add_values(Middle& state, const u32 (&weights)[SETS][2], const unsigned char* tile) {
  const u32* rows = reinterpret_cast<const u32*>(tile + TILE_VALUES);
  const u32 copy = table_start() + 128 + lane_id() * 4;
  const u32 first = lane_id() / 4 * LANE_CODES * VALUE_BITS;
  Codes<VALUE_BITS> codes[4];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 token = i / 2 * 8 + lane_id() % 4 * 2 + i % 2;
    codes[i] = load_codes<VALUE_BITS>(first, [&](u32 word) { return rows[value_word_at(token, word)]; });
  }
#pragma unroll
  for (u32 i = 0; i < LANE_CODES / 2; ++i) {
    u32 levels[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) levels[k] = levels_of<VALUE_BITS>(codes[k], i, copy);
    // From two channels of a token to two tokens of a channel.
    const u32 values[4] = {__byte_perm(levels[0], levels[1], 0x5410), __byte_perm(levels[0], levels[1], 0x7632),
                           __byte_perm(levels[2], levels[3], 0x5410), __byte_perm(levels[2], levels[3], 0x7632)};
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) mma_m16n8k16(state.output[set][i], values, weights[set]);
  }
}

// Where an outlier goes, [channel][token] in the order of the products' rows.
__device__ __forceinline__ u16& sparse_place(u32 entry) {
  u16* sparse = reinterpret_cast<u16*>(shared_memory + SHARED_SPARSE + threadIdx.x / 32 * SPARSE_BYTES);
  const u32 of_lane = entry % LANE_CODES;
  const u32 row = of_lane / 2 * 16 + of_lane % 2 * 8 + entry % HEAD_DIM / LANE_CODES;
  return sparse[row * 16 + lane_id() / 2];
}

// Outliers that this lane puts, of a token that two lanes share. Those of one channel add up, in the first lane.
struct Outliers {
  u32 entries[(VALUE_OUTLIER_CAP + 1) / 2];  // zero for what another lane puts
  float residuals[(VALUE_OUTLIER_CAP + 1) / 2];
};

__device__ __forceinline__ void load_outliers(Outliers& outliers, const unsigned char* tile) {
  const u32* entries = reinterpret_cast<const u32*>(tile + TILE_VALUE_OUTLIERS) + lane_id() / 2 * VALUE_OUTLIER_CAP;
#pragma unroll
  for (u32 i = 0; i < (VALUE_OUTLIER_CAP + 1) / 2; ++i) {
    const u32 at = i * 2 + lane_id() % 2;
    const u32 entry = VALUE_OUTLIER_CAP % 2 == 0 || at < VALUE_OUTLIER_CAP ? entries[at] : 0u;
    outliers.entries[i] = entry;
    outliers.residuals[i] = half_to_float(static_cast<u16>(entry >> 16));
    if (VALUE_OUTLIER_CAP == 1) continue;
    const u32 other = __shfl_xor_sync(0xffffffffu, entry, 1);
    const bool shared = ((entry ^ other) & (HEAD_DIM - 1)) == 0u;
    if (shared) outliers.residuals[i] += half_to_float(static_cast<u16>(other >> 16));
    if (shared && lane_id() % 2 != 0) outliers.entries[i] = 0u;
    // The first lane may have none of its own.
    if (shared && lane_id() % 2 == 0) outliers.entries[i] |= other;
  }
}

// Puts them there times a power of two.
__device__ __forceinline__ void put_outliers(const Outliers& outliers, float factor) {
#pragma unroll
  for (u32 i = 0; i < (VALUE_OUTLIER_CAP + 1) / 2; ++i) {
    // One that is zero may not take the place of another of channel 0.
    if (outliers.entries[i] >> 16 != 0u) {
      u16& place = sparse_place(outliers.entries[i]);
      const float before = VALUE_OUTLIER_CAP > 2 ? half_to_float(place) : 0.0f;
      place = float_to_half(before + outliers.residuals[i] * factor);
    }
    if (VALUE_OUTLIER_CAP > 2) __syncwarp();  // the next ones may be of the same channels
  }
}

// Makes the place zero again.
__device__ __forceinline__ void clear_outliers(const Outliers& outliers) {
#pragma unroll
  for (u32 i = 0; i < (VALUE_OUTLIER_CAP + 1) / 2; ++i) {
    if (outliers.entries[i] >> 16 != 0u) sparse_place(outliers.entries[i]) = 0;
    if (VALUE_OUTLIER_CAP > 2) __syncwarp();  // the next ones may be of the same channels
  }
}

// Adds outliers times their weights.
__device__ __forceinline__ void add_outliers(Middle& state, const u32 (&weights)[SETS][2]) {
  const unsigned char* sparse = shared_memory + SHARED_SPARSE + threadIdx.x / 32 * SPARSE_BYTES;
#pragma unroll
  for (u32 i = 0; i < LANE_CODES / 2; ++i) {
    u32 values[4];
    ldmatrix_x4(values, sparse + (i * 16 + lane_id() % 16) * 32 + lane_id() / 16 * 16);
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) mma_m16n8k16(state.output[set][i], values, weights[set]);
  }
}

// Takes a warp's staged tokens, `first` on of the middle, of which those in `own` count; the middle has `tokens` more.
__device__ __forceinline__ void take_tile(Middle& state, const Rotations& rotations, const unsigned char* tile, u32 buffer, float scale,
                                          float level_factor, u32 first, u32 tokens, u32 kv_head, const float* tables, TokenRange own) {
  // Their angles are on their way while the products are made.
  KeyOutliers key_outliers;
  load_key_outliers(key_outliers, tile, tokens, tables);
  float products[SETS][4];
  score_tokens(products, rotations, tile, buffer);
  add_key_outliers(key_outliers, buffer);
  __syncwarp();  // what outliers add to the scores is there
  const float* added = reinterpret_cast<const float*>(shared_memory + SHARED_ADDED + threadIdx.x / 32 * ADDED_BYTES);
  float scores[2][SETS];
  float value_scales[2];
  float largest[SETS];
  float largest_scale = 0.0f;
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) largest[set] = MASKED;
#pragma unroll
  for (u32 upper = 0; upper < 2; ++upper) {
    const u32 token = upper * 8 + lane_id() / 4;
    const bool seen = first + token - own.begin < own.end - own.begin;
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      float score = (products[set][upper * 2] + products[set][upper * 2 + 1]) * scale;
      score += added[token * GROUP_SIZE + min(set * 4 + lane_id() % 4, GROUP_SIZE - 1)];
      scores[upper][set] = seen ? score_exponent(score) : MASKED;
      largest[set] = fmaxf(largest[set], scores[upper][set]);
    }
    value_scales[upper] = staged_half<1>(tile + TILE_SCALES, upper, kv_head % 2);
    largest_scale = fmaxf(largest_scale, value_scales[upper]);
  }
  Outliers outliers;
  load_outliers(outliers, tile);
  // A half is to hold a residual times the factor as well.
#pragma unroll
  for (u32 i = 0; i < (VALUE_OUTLIER_CAP + 1) / 2; ++i) {
    largest_scale = fmaxf(largest_scale, fabsf(outliers.residuals[i]) * 0x1p-10f);
  }
  bool risen = largest_scale > state.scale_limit;
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) risen = risen || largest[set] > state.reference[set] + HEADROOM;
  if (__any_sync(0xffffffffu, risen)) raise(state, largest, largest_scale);

  put_outliers(outliers, state.factor * level_factor);
  u32 weights[SETS][2];
  u32 plain_weights[SETS][2];
#pragma unroll
  for (u32 upper = 0; upper < 2; ++upper) {
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      const float weight = exp2_approximate(scores[upper][set] - state.reference[set]);
      state.weight[set] += weight;
      state.offsets[set][0] += weight * staged_half<1>(tile + TILE_OFFSETS, upper, kv_head % 2);
      // From a row a token and two columns a head to a row a column, tokens side by side.
      weights[set][upper] = transpose_8x8(pack_half2(weight * state.factor * value_scales[upper], 0.0f));
      plain_weights[set][upper] = transpose_8x8(pack_half2(weight, 0.0f));
    }
  }
  add_values(state, weights, tile);
  __syncwarp();  // all outliers are in place
  add_outliers(state, plain_weights);
  __syncwarp();  // all lanes have them: others may take their place
  clear_outliers(outliers);
}

// Puts what a warp carries into a slot of the merge.
__device__ __forceinline__ void store_middle(const Middle& state, float level_unit, u32 slot) {
  const float unit = level_unit * inverse_power(state.factor);
  const u32 row = lane_id() / 4;
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    float weight = state.weight[set];
    float offset = state.offsets[set][0];
#pragma unroll
    for (u32 lanes = 4; lanes < 32; lanes *= 2) {
      weight += __shfl_xor_sync(0xffffffffu, weight, lanes);
      offset += __shfl_xor_sync(0xffffffffu, offset, lanes);
    }
    const u32 head = set * 4 + lane_id() % 4;
    if (head >= GROUP_SIZE) continue;
    float* own = reinterpret_cast<float*>(shared_memory) + (slot * GROUP_SIZE + head) * (HEAD_DIM + 2);
#pragma unroll
    for (u32 i = 0; i < LANE_CODES; ++i) {
      own[row * LANE_CODES + i] = state.output[set][i / 2][i % 2 * 2] * unit + offset;
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

// The middle, in tiles of which every warp takes its part from a ring of its own; while the first are on their way, exact
// tokens. Leaves what each warp found in its slots of the merge. Returns the slots of exact tokens.
__device__ __forceinline__ u32 attend_prompt(const WorkItem& own, const u32* record, const u32* query, const u32* cache,
                                             const float* tables, TokenRange share, TokenRange sinks, TokenRange window) {
  const MiddleRows rows = middle_rows(record, cache, own.kv_head);
  const u32 warp = threadIdx.x / 32;
  unsigned char* ring = shared_memory + SHARED_RINGS + warp * STAGES * TILE_BYTES;
  const u32 begin = share.begin / 16 * 16;
  const u32 end = share.begin < share.end ? share.end : 0;
  const u32 position = record[AT_SINK_TOKENS];
  const auto fetch = [&](u32 stage, u32 first) {
    if (first < end) fetch_tile(ring + stage * TILE_BYTES, rows, first);
    cp_async_commit();  // also with nothing in it: a wait counts groups
  };
  // The angles that every tile needs, and those of the first two tiles.
  if (begin < end) {
    for (u32 i = threadIdx.x; i < ANGLE_TILE * PAIRS * 8 / 128; i += THREADS) prefetch_line(tables + FINE_ANGLES + i * 32);
    prefetch_coarse(tables, position + begin);
    if (begin + SPAN < end) prefetch_coarse(tables, position + begin + SPAN);
  }
  const EarlyLoads early = load_early(query, record, cache, tables, own);
#pragma unroll 1
  for (u32 stage = 0; stage < STAGES; ++stage) fetch(stage, begin + stage * SPAN + warp * 16);

  const float key_factor = fitting_factor<KEY_BITS>(early.key_level);
  const float value_factor = level_factor(early.value_level);
  build_table<KEY_BITS>(0, key_factor, early.key_level);
  build_table<VALUE_BITS>(128, value_factor, early.value_level);
#pragma unroll 1
  for (u32 i = lane_id(); i < SPARSE_BYTES / 16; i += 32) {
    reinterpret_cast<uint4*>(shared_memory + SHARED_SPARSE + warp * SPARSE_BYTES)[i] = uint4{0u, 0u, 0u, 0u};
  }
  const u32 exponent = stage_query(early, 1.0f / key_factor);
  const u32 exact_slots = attend_exact(own, record, cache, sinks, window);
  Middle state;
  reset_middle(state);
  if (begin < end) {
    Rotations rotations;
    // A warp without tokens must not read angles past the last position.
    load_rotations(rotations, tables, begin + warp * 16 < end ? warp * 16 : 0);
    const u32 pair = threadIdx.x % PAIRS;
    build_operands(0, position + begin, load_angle(tables, position + begin, pair), exponent, tables);
    __syncthreads();  // tables and the first tile's operands are complete
    const float scale = SCORE_SCALE * power_of_two(254 - exponent);
    u32 stage = 0;
    u32 buffer = 0;
#pragma unroll 1
    for (u32 first = begin; first < end; first += SPAN) {
      const u32 own_first = first + warp * 16;
      // Of the next tile, which is built after this one: until then its angles are on their way.
      const bool goes_on = first + SPAN < end;
      const Angle next = load_angle(tables, position + first + (goes_on ? SPAN : 0), pair);
      if (first + 2 * SPAN < end) prefetch_coarse(tables, position + first + 2 * SPAN);
      cp_async_wait<STAGES - 1>();
      __syncwarp();  // what every lane asked for of this tile is there
      if (own_first < end) {
        take_tile(state, rotations, ring + stage * TILE_BYTES, buffer, scale, value_factor, own_first,
                  rows.tokens - own_first, own.kv_head, tables, share);
      }
      __syncwarp();  // every lane has read the tile: another one may take its place
      fetch(stage, own_first + STAGES * SPAN);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      if (goes_on) build_operands(1 - buffer, position + first + SPAN, next, exponent, tables);
      buffer = 1 - buffer;
      __syncthreads();  // all have read this tile's operands, and the next one's are complete
    }
    cp_async_wait<0>();
  }
  __syncthreads();  // no warp needs tables, sums or its ring any more: the merge takes the place
  if (begin < end) store_middle(state, 1.0f / value_factor, warp);
  return exact_slots;
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

extern "C" __global__ void __launch_bounds__(256, 2) attend(
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
