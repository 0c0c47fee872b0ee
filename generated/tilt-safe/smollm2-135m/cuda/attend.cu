// attend: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attend of scheme tilt-safe for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 PAIRS = 32;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 HEADS = 9;  // query heads
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 GROUP_SIZE = 3;  // query heads that share a KV head
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 TILE = 64;  // positions of a tile, whose keys are rotated together
constexpr u32 RANGE_BLOCK = 512;  // positions that share the steps of components; 0 for all
constexpr u32 GROUP_COMPONENTS = 8;  // components that share a width
constexpr u32 GROUPS = 8;  // groups of components of a KV head
constexpr u32 FIELD_WORDS = 10;  // words that describe the fields of a KV head's key codes
constexpr u32 ROW_POSITIONS = 64;  // positions of a row of codes
constexpr u32 TILE_ROW_WORDS = 768;  // words of a row of codes, all KV heads
constexpr u32 VALUE_HEAD_WORDS = 6;  // words of one head's value fields
constexpr u32 VALUE_SCALE_TOKENS = 1;  // middle tokens that share a scale
constexpr u32 VALUE_SCALE_CHANNELS = 64;  // channels of a head that share a scale
constexpr u32 VALUE_SCALE_ROW_WORDS = 2;  // words of a row of scales, two each
constexpr u32 HADAMARD_BLOCK = 64;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.125f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 STREAM_WORDS = 16;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 2;  // words of one stream token's norms, two each
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 VALUE_LEVELS = 256;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 TILE_ANGLES = 4360;  // offset in the tables: [TILE][PAIRS](cosine, sine) of the place in a tile, position % TILE - (TILE - 1) / 2
constexpr u32 COARSE_ANGLES = 8456;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
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
constexpr u32 AT_TILE_CODES = 43;  // in the record, first word of tileCodes: [rows of 64 positions][3 KV heads]: planes of key fields
constexpr u32 AT_KEY_STEPS = 44;  // in the record, first word of keySteps: f16 [range blocks][3 KV heads][64] components, 128 times step and scale of the basis column
constexpr u32 AT_KEY_BASIS = 16;  // in the record, first word of keyBasis: i8 [3 KV heads][64] components[64 channels, in the order of pairs]
constexpr u32 AT_KEY_MEAN = 18;  // in the record, first word of keyMean: f16 [3 KV heads][64] channels, in the order of pairs, before RoPE
constexpr u32 AT_KEY_FIELDS = 45;  // in the record, first word of keyFields: u32 [3 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: 3-bit fields [middle][3 KV heads][64], after Hadamard
constexpr u32 AT_VALUE_SCALES = 29;  // in the record, first word of valueScales: f16 [middle][3 KV heads][1 of 64 channels]
constexpr u32 AT_VALUE_OFFSETS = 30;  // in the record, first word of valueOffsets: f16 [middle][3 KV heads][1 of 64 channels]
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][3 KV heads][64], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][3 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 8-bit fields [stream][3 KV heads][64], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][3 KV heads]
constexpr u32 AT_KEY_WEIGHTS = 27;  // in the record, first word of keyWeights: f16 [192 channels], above 0: keys are coded times this
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile
constexpr u32 SCORE_SLICES = 5;  // threads that share one dot product
constexpr u32 WORK_ITEM_WORDS = 6;  // words of a work item
constexpr u32 PARTIAL_WORDS = 396;  // numbers of one partial result
constexpr u32 CHUNK_UNIT = 64;  // a split gets a multiple of so many tokens
constexpr float SCORE_SCALE = 0.180336878f;  // what q.k is multiplied with first

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

// dsl/codecs/unrope.ts:16 rotatePair
// Turns the pair (a, b) by the angle whose cosine and sine are given.
__device__ __forceinline__ float2 rotate_pair(float a, float b, float2 angle) {
  return make_float2(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}

// dsl/codecs/unrope.ts:22 unrotatePair
// Undoes `rotatePair`.
__device__ __forceinline__ float2 unrotate_pair(float a, float b, float2 angle) {
  return make_float2(a * angle.x + b * angle.y, b * angle.x - a * angle.y);
}

// dsl/codecs/pca.ts:158 signedByte
// Byte `lane` (0 to 3) of a word as a signed integer.
__device__ __forceinline__ float signed_byte(u32 word, u32 lane) {
  const int byte = int((word >> (lane * 8u)) & 255u);
  return float(byte > 127 ? byte - 256 : byte);
}

// dsl/codecs/midRise.ts:35 midRiseValue
// What a field stands for, in steps.
__device__ __forceinline__ float mid_rise_value(u32 field, u32 bits) {
  return float(int(field) - (1 << (bits - 1u))) + 0.5f;
}

// dsl/codecs/tileRows.ts:9 planeByte, components = 8
// Byte of a byte plane that holds the fields of a component of its group.
__device__ __forceinline__ u32 plane_byte_8(u32 position, u32 component) {
  const u32 in_half = position % 32u;
  const u32 row = position / 32u * 8u + in_half % 8u;
  const u32 word = (row * 2u + component / 4u) * 4u + in_half / 8u;
  return word * 4u + component % 4u;
}

// dsl/codecs/tileRows.ts:18 nibbleByte, components = 8
// Byte of a nibble plane; positions 0 to 31 of the row have its low nibble, the others its high one.
__device__ __forceinline__ u32 nibble_byte_8(u32 position, u32 component) {
  const u32 in_half = position % 32u;
  const u32 word = (in_half % 8u * 2u + component / 4u) * 4u + in_half / 8u;
  return word * 4u + component % 4u;
}

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

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
__device__ __forceinline__ float2 butterfly(float a, float b) {
  return make_float2(a + b, a - b);
}

// dsl/packing.ts:32 unpackField, bits = 8
// Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles.
template <typename Words>
__device__ __forceinline__ u32 unpack_field_8(u32 index, Words words) {
  const u32 position = index * 8u;
  const u32 word = position / 32u;
  const u32 shift = position % 32u;
  u32 value = words(word) >> shift;
  return value & 255u;
}

// Tokens come in tiles of the schedule, which lie within tiles of positions. In one of these, keys are
// R(centre) (R(place) mean + U c / weights): the query is turned back from the centre once, and then multiplied by the
// basis, so that codes are multiplied as they are. A score is one dot product of 2 * HEAD_DIM terms: those of the
// components, and those of the mean. Threads own a channel of the output each, with the running softmax of every head.
// Two passes: tokens whose values lie in Hadamard space, then the exact ones. Each leaves one partial.

constexpr u32 TILE_QUADS = TILE_TOKENS / 4;
constexpr u32 SCORE_QUADS = GROUP_SIZE * TILE_QUADS;
constexpr u32 PARTIAL_ROW = HEAD_DIM + 2;  // output, then maximum and weight sum

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// The rows of codes of one KV head, and where its fields lie in them.
struct HeadCodes {
  const u32* rows;    // of the head in row 0
  const u32* fields;  // of every group: bits + 16 * bit + 65536 * slot
  u32 nibbles;        // of all fields: two a byte plane, the last odd one a nibble plane
};

__device__ __forceinline__ HeadCodes find_codes(const u32* record, const u32* cache, u32 head) {
  // Without a middle nothing was fitted, and nothing is written there.
  if (record[AT_MIDDLE_TOKENS] == 0) return {cache, cache, 0};

  const u32* fields = cache + record[AT_KEY_FIELDS] + head * FIELD_WORDS;
  return {cache + record[AT_TILE_CODES] + fields[GROUPS + 1], fields, fields[GROUPS]};
}

// A component of the key at a position, in steps; zero where its group has no bits.
__device__ __forceinline__ float key_component(const HeadCodes& codes, u32 position, u32 component) {
  const u32 field = codes.fields[component / GROUP_COMPONENTS];
  const u32 bits = field & 15u;
  if (bits == 0) return 0.0f;

  const u32 bit = field >> 4 & 0xfffu;
  const u32 plane = bit / 8;
  const u32 in_row = position % ROW_POSITIONS;
  const u32 in_group = component % GROUP_COMPONENTS;
  const bool in_nibbles = codes.nibbles % 2 == 1 && plane == codes.nibbles / 2;
  const u32 byte = in_nibbles ? nibble_byte_8(in_row, in_group) : plane_byte_8(in_row, in_group);
  const u32 shift = byte % 4 * 8 + bit % 8 + (in_nibbles ? in_row / 32 * 4 : 0);
  const u32* row = codes.rows + position / ROW_POSITIONS * TILE_ROW_WORDS;
  const u32 word = row[plane * ROW_POSITIONS * GROUP_COMPONENTS / 4 + byte / 4];
  return mid_rise_value(word >> shift & ((1u << bits) - 1u), bits);
}

// The step of a component at a position, times the scale of its column of the basis.
__device__ __forceinline__ float step_at(const u32* record, const u32* cache, u32 position, u32 head, u32 component) {
  const u32 block = position / RANGE_BLOCK;
  return half_at(cache + record[AT_KEY_STEPS], (block * KV_HEADS + head) * HEAD_DIM + component) / 128.0f;
}

// Where the middle values of a sequence lie.
struct MiddleValues {
  const u32* codes;
  const u32* scales;
  const u32* offsets;
};

__device__ __forceinline__ MiddleValues find_values(const u32* record, const u32* cache) {
  return {
      cache + record[AT_VALUE_CODES],
      cache + record[AT_VALUE_SCALES],
      cache + record[AT_VALUE_OFFSETS],
  };
}

// One channel of one head of the middle values, as it was coded: offset plus scale times the value of its code.
__device__ __forceinline__ float value_channel(
    const MiddleValues& parts, const float* __restrict__ tables, u32 token, u32 head, u32 channel) {
  const u32* row = parts.codes + (token * KV_HEADS + head) * VALUE_HEAD_WORDS;
  const u32 code = unpack_field_3(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[VALUE_LEVELS + level]; });
  const u32 scale = (head * HEAD_DIM + channel) / VALUE_SCALE_CHANNELS +
                    token / VALUE_SCALE_TOKENS * VALUE_SCALE_ROW_WORDS * 2;
  return half_at(parts.offsets, scale) + half_at(parts.scales, scale) * unit;
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

// Hadamard transform of every query head of the group, in place; rows are [channel][head]. Its own inverse.
// Barriers on entry and exit: stores before and loads after need none of their own.
__device__ __forceinline__ void transform_heads(float* rows) {
  for (u32 stride = 1; stride < HADAMARD_BLOCK; stride *= 2) {
    __syncthreads();  // the caller's stores, then the stores of the previous stride, are complete
    for (u32 i = threadIdx.x; i < PAIRS * GROUP_SIZE; i += THREADS) {
      const u32 pair = i / GROUP_SIZE;
      const u32 upper = (pair / stride * 2 * stride + pair % stride) * GROUP_SIZE + i % GROUP_SIZE;
      const u32 lower = upper + stride * GROUP_SIZE;
      const float2 turned = butterfly(rows[upper], rows[lower]);
      rows[upper] = turned.x;
      rows[lower] = turned.y;
    }
  }
  __syncthreads();  // the last stride is complete
  for (u32 i = threadIdx.x; i < HEAD_DIM * GROUP_SIZE; i += THREADS) rows[i] *= HADAMARD_SCALE;
  __syncthreads();  // the rows are scaled
}

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

// Merges the partial results of one row (its splits are neighbours) by log-sum-exp, and writes the row's query heads.
// Hadamard-space sums get one inverse transform here instead of one a block. `scratch` holds HEAD_DIM floats.
// The loads are volatile: other blocks wrote the partials during this launch, and a line of this SM's L1 may be older.
__device__ __forceinline__ void merge_splits(const volatile float* partials, u32 splits, float* output, float* scratch) {
  for (u32 head = 0; head < GROUP_SIZE; ++head) {
    const volatile float* own = partials + head * (HEAD_DIM + 2);
    float largest = MASKED;
    for (u32 part = 0; part < splits * 2; ++part) {
      largest = fmaxf(largest, own[part * GROUP_SIZE * (HEAD_DIM + 2) + HEAD_DIM]);
    }
    float weight = 0.0f;
    for (u32 part = 0; part < splits * 2; ++part) {
      const volatile float* partial = own + part * GROUP_SIZE * (HEAD_DIM + 2);
      weight += partial[HEAD_DIM + 1] * exp2f(partial[HEAD_DIM] - largest);
    }
    for (u32 channel = threadIdx.x; channel < HEAD_DIM; channel += THREADS) {
      float sum = 0.0f;
      for (u32 split = 0; split < splits; ++split) {
        const volatile float* partial = own + split * 2 * GROUP_SIZE * (HEAD_DIM + 2);
        sum += partial[channel] * exp2f(partial[HEAD_DIM] - largest);
      }
      scratch[channel] = sum;
    }
    hadamard(scratch);
    const float normalize = weight > 0.0f ? 1.0f / weight : 0.0f;
    for (u32 channel = threadIdx.x; channel < HEAD_DIM; channel += THREADS) {
      float exact = 0.0f;
      for (u32 split = 0; split < splits; ++split) {
        const volatile float* partial = own + (split * 2 + 1) * GROUP_SIZE * (HEAD_DIM + 2);
        exact += partial[channel] * exp2f(partial[HEAD_DIM] - largest);
      }
      output[head * HEAD_DIM + channel] = (scratch[channel] * HADAMARD_SCALE + exact) * normalize;
    }
    __syncthreads();  // scratch is free for the next head
  }
}

__device__ __forceinline__ void add_scaled(float4& sum, float factor, float4 term) {
  sum.x += factor * term.x;
  sum.y += factor * term.y;
  sum.z += factor * term.z;
  sum.w += factor * term.w;
}

// Calls value(token) for four tokens from `token` on, and gives zero from `end` on, where nothing is stored.
template <typename Value>
__device__ __forceinline__ float4 token_quad(u32 token, u32 end, Value value) {
  return make_float4(token < end ? value(token) : 0.0f, token + 1 < end ? value(token + 1) : 0.0f,
                     token + 2 < end ? value(token + 2) : 0.0f, token + 3 < end ? value(token + 3) : 0.0f);
}

extern "C" __global__ void __launch_bounds__(64, 1) attend(
    const u32* __restrict__ sequences,  // records of all sequences
    const u32* __restrict__ work,  // [work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const u32* __restrict__ query,  // f16 [query rows][9 heads][64], after RoPE
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    float* partials,  // [work items][2: Hadamard space, exact][3 query heads][64 output, maximum, weight sum]
    float* output,  // [query rows][9 heads][64]
    u32* counters  // [query rows][3 KV heads], zero before and after
) {
  __shared__ float4 tile[2 * HEAD_DIM * TILE_QUADS];     // [channel, or component and then channel][four tokens]
  __shared__ float4 scores[SCORE_SLICES * SCORE_QUADS];  // [slice of the channels][head][four tokens]
  __shared__ float head_rows[2 * HEAD_DIM * GROUP_SIZE];  // [channel, or component and then channel][head]
  __shared__ u32 finished;
  u32 score_rows = HEAD_DIM;  // terms of a score

  const u32 thread = threadIdx.x;
  const u32 item = blockIdx.x;
  const WorkItem own = work_item(work, item);
  const u32 kv_head = own.kv_head;
  const u32* record = sequences + own.sequence * RECORD_WORDS;
  const bool owner = thread < HEAD_DIM;  // idle threads repeat the last channel, and store nothing
  const u32 channel = min(thread, HEAD_DIM - 1);
  const u32 wide_channel = kv_head * HEAD_DIM + channel;

  // Where the segments end, in the order of tokens, and the share of this block.
  const u32 sinks_end = record[AT_SINK_TOKENS];
  const u32 middle_end = sinks_end + record[AT_MIDDLE_TOKENS];
  const u32 stream_end = middle_end + record[AT_STREAM_TOKENS];
  const TokenRange share = share_of(own, record, stream_end + record[AT_WINDOW_TOKENS]);
  const u32 begin = share.begin;
  const u32 end = share.end;

  float accumulated[GROUP_SIZE];
  float maxima[GROUP_SIZE];
  float weight_sums[GROUP_SIZE];
  const auto start_pass = [&] {
#pragma unroll
    for (u32 h = 0; h < GROUP_SIZE; ++h) {
      accumulated[h] = 0.0f;
      maxima[h] = MASKED;
      weight_sums[h] = 0.0f;
    }
  };

  // Puts the query heads of the group into head_rows. Not before every thread is done with what was there.
  const auto load_query = [&] {
    const u32* words = query + (own.row * HEADS + kv_head * GROUP_SIZE) * PAIRS;  // two channels a word
    for (u32 i = thread; i < GROUP_SIZE * PAIRS; i += THREADS) {
      const float2 two = unpack_half2(words[i]);
      const u32 row = i % PAIRS * 2 * GROUP_SIZE + i / PAIRS;
      head_rows[row] = two.x;
      head_rows[row + GROUP_SIZE] = two.y;
    }
  };

  const auto store_keys = [&](const float4(&keys)[TILE_QUADS]) {
    if (!owner) return;
#pragma unroll
    for (u32 q = 0; q < TILE_QUADS; ++q) tile[channel * TILE_QUADS + q] = keys[q];
  };

  // Scores of the tile in base-2 exponents, MASKED past `count` tokens.
  const auto score_tile = [&](u32 count) {
    __syncthreads();  // query and keys of the tile are complete
    for (u32 i = thread; i < SCORE_SLICES * SCORE_QUADS; i += THREADS) {
      const u32 head = i % SCORE_QUADS / TILE_QUADS;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (u32 c = i / SCORE_QUADS; c < score_rows; c += SCORE_SLICES) {
        add_scaled(sum, head_rows[c * GROUP_SIZE + head], tile[c * TILE_QUADS + i % TILE_QUADS]);
      }
      scores[i] = sum;
    }
    __syncthreads();  // every slice of every score is summed
    for (u32 i = thread; i < SCORE_QUADS; i += THREADS) {
      float4 sum = scores[i];
      for (u32 slice = 1; slice < SCORE_SLICES; ++slice) add_scaled(sum, 1.0f, scores[slice * SCORE_QUADS + i]);
      const u32 token = i % TILE_QUADS * 4;
      const auto exponent = [&](u32 k, float score) {
        return token + k < count ? score_exponent(score * SCORE_SCALE) : MASKED;
      };
      scores[i] = make_float4(exponent(0, sum.x), exponent(1, sum.y), exponent(2, sum.z), exponent(3, sum.w));
    }
    __syncthreads();  // scores are complete
  };

  // Tokens first..last of one segment, added to the running softmax of every head. build_keys(token, last) fills the
  // tile; value_at(token) is the thread's channel of a value.
  const auto attend_segment = [&](u32 from, u32 last, auto build_keys, auto value_at) {
    for (u32 first = from; first < last; first += TILE_TOKENS) {
      build_keys(first, last);
      float4 values[TILE_QUADS];
#pragma unroll
      for (u32 q = 0; q < TILE_QUADS; ++q) values[q] = token_quad(first + q * 4, last, value_at);
      score_tile(min(TILE_TOKENS, last - first));
#pragma unroll
      for (u32 h = 0; h < GROUP_SIZE; ++h) {
        float top = maxima[h];
#pragma unroll
        for (u32 q = 0; q < TILE_QUADS; ++q) {
          const float4 s = scores[h * TILE_QUADS + q];
          top = fmaxf(top, fmaxf(fmaxf(s.x, s.y), fmaxf(s.z, s.w)));
        }
        const float shrink = exp2f(maxima[h] - top);
        float weight_sum = weight_sums[h] * shrink;
        float sum = accumulated[h] * shrink;
#pragma unroll
        for (u32 q = 0; q < TILE_QUADS; ++q) {
          const float4 s = scores[h * TILE_QUADS + q];
          const float4 weights = make_float4(exp2f(s.x - top), exp2f(s.y - top), exp2f(s.z - top), exp2f(s.w - top));
          weight_sum += (weights.x + weights.y) + (weights.z + weights.w);
          sum += (weights.x * values[q].x + weights.y * values[q].y) + (weights.z * values[q].z + weights.w * values[q].w);
        }
        maxima[h] = top;
        weight_sums[h] = weight_sum;
        accumulated[h] = sum;
      }
    }
  };

  // Keys of a segment whose channels stand alone: key_at(token) is the thread's channel.
  const auto plain_keys = [&](auto key_at) {
    return [=](u32 first, u32 last) {
      float4 keys[TILE_QUADS];
#pragma unroll
      for (u32 q = 0; q < TILE_QUADS; ++q) keys[q] = token_quad(first + q * 4, last, key_at);
      store_keys(keys);
    };
  };

  // Stores the partial result of a pass (0 Hadamard space, 1 exact).
  const auto store_partial = [&](u32 space) {
#pragma unroll
    for (u32 h = 0; h < GROUP_SIZE; ++h) {
      float* row = partials + item * PARTIAL_WORDS + (space * GROUP_SIZE + h) * PARTIAL_ROW;
      if (owner) row[channel] = accumulated[h];
      if (thread == 0) {
        row[HEAD_DIM] = maxima[h];
        row[HEAD_DIM + 1] = weight_sums[h];
      }
    }
  };

  const HeadCodes codes = find_codes(record, cache, kv_head);
  const MiddleValues middle_values = find_values(record, cache);
  const u32* weights = cache + record[AT_KEY_WEIGHTS];
  const u32* mean = cache + record[AT_KEY_MEAN];

  // The query heads as the keys of a tile meet them, in head_rows: their products with the basis, in units of the
  // components' codes, and behind these the queries themselves, turned back from the centre of the tile and over the
  // weights. Channels lie in the order of pairs there.
  const auto turn_query = [&](u32 position) {
    const float* coarse = tables + COARSE_ANGLES + position / TILE * PAIRS * 2;
    const u32* words = query + (own.row * HEADS + kv_head * GROUP_SIZE) * PAIRS;
    for (u32 i = thread; i < GROUP_SIZE * PAIRS; i += THREADS) {
      const u32 pair = i % PAIRS;
      const u32 head = i / PAIRS;
      // The centre lies as far behind the start of the tile as the start lies before the centre.
      const float* start = tables + TILE_ANGLES + pair * 2;
      const float2 centre = add_angles(make_float2(coarse[pair * 2], coarse[pair * 2 + 1]), make_float2(start[0], -start[1]));
      const u32* row = words + head * PAIRS;
      const float2 turned = unrotate_pair(
          half_at(row, first_of_pair_32_32_0(pair)), half_at(row, second_of_pair_32_32_0(pair)), centre);
      const float weight = half_at(weights, kv_head * HEAD_DIM + pair);
      head_rows[(HEAD_DIM + pair) * GROUP_SIZE + head] = turned.x / weight;
      head_rows[(HEAD_DIM + PAIRS + pair) * GROUP_SIZE + head] = turned.y / weight;
    }
    __syncthreads();  // the queries are turned
    if (owner) {
      const u32* column = cache + record[AT_KEY_BASIS] + (kv_head * HEAD_DIM + channel) * (HEAD_DIM / 4);
      const bool stored = (codes.fields[channel / GROUP_COMPONENTS] & 15u) > 0;
      float sums[GROUP_SIZE] = {};
      for (u32 c = 0; stored && c < HEAD_DIM; ++c) {
        const float entry = signed_byte(column[c / 4], c % 4);
#pragma unroll
        for (u32 h = 0; h < GROUP_SIZE; ++h) sums[h] += entry * head_rows[(HEAD_DIM + c) * GROUP_SIZE + h];
      }
      const float step = stored ? step_at(record, cache, position, kv_head, channel) : 0.0f;
#pragma unroll
      for (u32 h = 0; h < GROUP_SIZE; ++h) head_rows[channel * GROUP_SIZE + h] = step * sums[h];
    }
  };

  // Keys of middle tokens as the turned queries meet them: the components in steps, then the mean in its place, weighted.
  const u32 pair = thread % PAIRS;
  const u32 side = thread / PAIRS;  // first vector of tokens of the mean; past 1 the thread has none
  const auto build_middle_keys = [&](u32 first, u32 last) {
    if (owner) {
#pragma unroll
      for (u32 q = 0; q < TILE_QUADS; ++q) {
        tile[channel * TILE_QUADS + q] =
            token_quad(first + q * 4, last, [&](u32 position) { return key_component(codes, position, channel); });
      }
    }
    if (side > 1) return;
    const float weight = half_at(weights, kv_head * HEAD_DIM + pair);
    const float mean_first = weight * half_at(mean, kv_head * HEAD_DIM + pair);
    const float mean_second = weight * half_at(mean, kv_head * HEAD_DIM + PAIRS + pair);
#pragma unroll
    for (u32 q = side; q < TILE_QUADS; q += 2) {
      const auto turned = [&](u32 k) {
        const float* angle = tables + TILE_ANGLES + ((first + q * 4 + k) % TILE * PAIRS + pair) * 2;
        return rotate_pair(mean_first, mean_second, make_float2(angle[0], angle[1]));
      };
      const float2 x = turned(0);
      const float2 y = turned(1);
      const float2 z = turned(2);
      const float2 w = turned(3);
      tile[(HEAD_DIM + pair) * TILE_QUADS + q] = make_float4(x.x, y.x, z.x, w.x);
      tile[(HEAD_DIM + PAIRS + pair) * TILE_QUADS + q] = make_float4(x.y, y.y, z.y, w.y);
    }
  };
  const auto middle_value = [&](u32 position) {
    return value_channel(middle_values, tables, position - sinks_end, kv_head, channel);
  };

  // A middle token's place in the sequence is its position.
  const auto attend_middle = [&] {
    const u32 middle_from = clamp(begin, sinks_end, middle_end);
    const u32 middle_to = clamp(end, sinks_end, middle_end);
    score_rows = 2 * HEAD_DIM;
    for (u32 first = middle_from; first < middle_to;) {
      const u32 last = min((first / TILE + 1) * TILE, middle_to);
      turn_query(first);
      attend_segment(first, last, build_middle_keys, middle_value);
      first = last;
    }
    score_rows = HEAD_DIM;
  };

  // Pass 0: Hadamard space.
  start_pass();
  attend_middle();
  const u32 stream_from = clamp(begin, middle_end, stream_end);
  const u32 stream_to = clamp(end, middle_end, stream_end);
  if (stream_from < stream_to) {
    load_query();
    transform_heads(head_rows);  // q.k = (Hq).(Hk): the keys stay as they are stored
    const auto stream_channel = [&](u32 codes, u32 norms) {
      const u32* rows = cache + record[codes];
      const u32* norm_rows = cache + record[norms];
      return [=](u32 token) {
        const u32* row = rows + (token * KV_HEADS + kv_head) * STREAM_WORDS;
        const u32 code = unpack_field_8(channel, [&](u32 word) { return row[word]; });
        const float unit = level_value(code, [&](u32 level) { return tables[level]; });
        return unit * half_at(norm_rows + token * NORM_WORDS, kv_head);
      };
    };
    attend_segment(stream_from - middle_end, stream_to - middle_end,
                   plain_keys(stream_channel(AT_STREAM_KEY_CODES, AT_STREAM_KEY_NORMS)),
                   stream_channel(AT_STREAM_VALUE_CODES, AT_STREAM_VALUE_NORMS));
  }
  store_partial(0);

  // Pass 1: values as they are.
  start_pass();
  if (begin < sinks_end || end > stream_end) load_query();
  const u32 ring_start = record[AT_WINDOW_START];
  const auto sink_channel = [&](u32 part) {
    const u32* rows = cache + record[part];
    return [=](u32 token) { return half_at(rows, token * WIDTH + wide_channel); };
  };
  const auto window_channel = [&](u32 part) {
    const u32* rows = cache + record[part];
    return [=](u32 token) { return half_at(rows, (ring_start + token) % WINDOW * WIDTH + wide_channel); };
  };
  attend_segment(min(begin, sinks_end), min(end, sinks_end), plain_keys(sink_channel(AT_SINK_KEYS)),
                 sink_channel(AT_SINK_VALUES));
  attend_segment(max(begin, stream_end) - stream_end, max(end, stream_end) - stream_end,
                 plain_keys(window_channel(AT_WINDOW_KEYS)), window_channel(AT_WINDOW_VALUES));
  store_partial(1);

  __threadfence();  // this thread's part of the partials is visible to whoever sees the count below
  __syncthreads();  // so is every thread's, before the block is counted
  const u32 row = own.row * KV_HEADS + kv_head;
  if (thread == 0) finished = atomicAdd(counters + row, 1u) + 1;
  __syncthreads();  // all know how many blocks of the row are done
  if (finished < own.splits) return;
  __threadfence();  // what the others wrote before they were counted is read after

  merge_splits(partials + (item - own.split) * PARTIAL_WORDS, own.splits,
               output + (own.row * HEADS + kv_head * GROUP_SIZE) * HEAD_DIM, head_rows);
  if (thread == 0) counters[row] = 0;  // every block of the row has been counted: ready for the next launch
}
