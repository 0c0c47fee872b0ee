// attend: One work item a block: a KV head of a sequence over its share of the tokens, for all query heads of the group.
// Stage attend of scheme shard for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16, warps = 4, coefficientHalves = 2

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 PAIRS = 64;  // rotary pairs of a head: channels j and j + PAIRS
constexpr u32 HEADS = 32;  // query heads
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 GROUP_SIZE = 4;  // query heads that share a KV head
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 192;  // components of a key
constexpr u32 RANK_WORDS = 48;  // words of a basis row, four int8 columns each
constexpr u32 KEY_ROW_WORDS = 24;  // words of one token's key fields
constexpr u32 HADAMARD_BLOCK = 128;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.0883883461f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 VALUE_ROW_WORDS = 64;  // words of one token's value indices, four each
constexpr u32 STREAM_WORDS = 32;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 4;  // words of one stream token's norms, two each
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 ANGLE_TILE = 64;  // rows of the fine angle table
constexpr u32 FINE_ANGLES = 256;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
constexpr u32 COARSE_ANGLES = 8448;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
constexpr u32 RECORD_WORDS = 64;  // words of a sequence record
constexpr u32 AT_SINK_TOKENS = 0;  // record: exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // record: compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // record: generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // record: exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // record: slot of the ring's oldest token
constexpr u32 AT_SINK_KEYS = 8;  // record: where f16 [sinks][8 KV heads][128], after RoPE begins
constexpr u32 AT_SINK_VALUES = 9;  // record: where f16 [sinks][8 KV heads][128] begins
constexpr u32 AT_WINDOW_KEYS = 10;  // record: where f16 ring [window][8 KV heads][128], after RoPE begins
constexpr u32 AT_WINDOW_VALUES = 11;  // record: where f16 ring [window][8 KV heads][128] begins
constexpr u32 AT_KEY_CODES = 12;  // record: where 4-bit fields [middle][192 components] begins
constexpr u32 AT_KEY_SCALES = 13;  // record: where f16 [192 components] begins
constexpr u32 AT_KEY_BASIS = 14;  // record: where i8 [1024 channels][192 components] begins
constexpr u32 AT_KEY_BASIS_SCALES = 15;  // record: where f16 [192 components] begins
constexpr u32 AT_KEY_MEAN = 16;  // record: where f16 [1024 channels], before RoPE begins
constexpr u32 AT_VALUE_CODES = 17;  // record: where u8 [middle][256 vectors] begins
constexpr u32 AT_CODEBOOK = 18;  // record: where f16 [256 entries][4] begins
constexpr u32 AT_CHANNEL_MAX = 19;  // record: where f16 [8 KV heads][128], after Hadamard begins
constexpr u32 AT_STREAM_KEY_CODES = 20;  // record: where 8-bit fields [stream][8 KV heads][128], after RoPE and Hadamard begins
constexpr u32 AT_STREAM_KEY_NORMS = 21;  // record: where f16 [stream][8 KV heads] begins
constexpr u32 AT_STREAM_VALUE_CODES = 22;  // record: where 8-bit fields [stream][8 KV heads][128], after Hadamard begins
constexpr u32 AT_STREAM_VALUE_NORMS = 23;  // record: where f16 [stream][8 KV heads] begins
constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 WARPS = 4;  // of this schedule
constexpr u32 WORK_ITEM_WORDS = 4;  // of this schedule
constexpr u32 PARTIAL_WORDS = 1040;  // of this schedule
constexpr u32 CHUNK_UNIT = 16;  // of this schedule
constexpr u32 COEFFICIENT_HALVES = 2;  // of this schedule
constexpr float SCORE_SCALE = 0.127517432f;  // of this schedule

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

// dsl/codecs/pca.ts:135 signedByte
// Byte `lane` (0 to 3) of a word as a signed integer.
__device__ __forceinline__ float signed_byte(u32 word, u32 lane) {
  const int byte = int((word >> (lane * 8u)) & 255u);
  return float(byte > 127 ? byte - 256 : byte);
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

// dsl/codecs/pca.ts:113 coefficientValue, bits = 4
// The integer a field stands for; times the component's scale it is the coefficient.
__device__ __forceinline__ float coefficient_value_4(u32 field) {
  return float(int(field) - 8);
}

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
__device__ __forceinline__ float2 butterfly(float a, float b) {
  return make_float2(a + b, a - b);
}

// dsl/codecs/lloydMax.ts:77 levelValue
// The value of a code on the unit sphere.
template <typename Levels>
__device__ __forceinline__ float level_value(u32 code, Levels levels) {
  return levels(code);
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

// The rotary angle of one pair at a position, as (cosine, sine).
__device__ __forceinline__ float2 angle_at(const float* __restrict__ tables, u32 position, u32 pair) {
  const float* coarse = tables + COARSE_ANGLES + (position / ANGLE_TILE * PAIRS + pair) * 2;
  const float* fine = tables + FINE_ANGLES + (position % ANGLE_TILE * PAIRS + pair) * 2;
  return add_angles(make_float2(coarse[0], coarse[1]), make_float2(fine[0], fine[1]));
}

constexpr float MASKED = -1e30f;                                  // a score no token has; finite, so that differences stay numbers
constexpr u32 RANK_STEPS = (RANK + 15) / 16;                      // k = 16 steps of the key rebuild
constexpr u32 BASIS_STRIDE = RANK_STEPS * 16 + 8;                 // halves; the 8 spread rows over all shared-memory banks
constexpr u32 QUERY_STRIDE = HEAD_DIM + 8;                        // halves
constexpr u32 CHANNEL_STEPS = HEAD_DIM / 16;                      // k = 16 steps of the scores
constexpr u32 HEAD_TILES = (GROUP_SIZE + 7) / 8;                  // n = 8 tiles of query heads in the output product
constexpr u32 VECTORS = HEAD_DIM / CHANNELS;                      // value vectors of a head
constexpr u32 VECTOR_STEPS = (VECTORS + 7) / 8;                   // eight vectors at a time, one for each lane / 4
constexpr u32 OUTPUT_TILES = VECTOR_STEPS * CHANNELS / 2;         // m = 16 tiles of output channels
constexpr u32 VALUE_HEAD_WORDS = VECTORS / 4;                     // words of one token's value indices for one head
constexpr u32 VALUE_STRIDE = (VALUE_HEAD_WORDS + 3) / 4 * 4;      // in shared memory, 16-byte rows
constexpr u32 STAGE_WORDS = 16 * (KEY_ROW_WORDS + VALUE_STRIDE);  // one staged tile of 16 tokens

// Offsets in shared memory, in bytes. The merge of the warps reuses the place of the basis.
constexpr u32 AT_SCALES = HEAD_DIM * BASIS_STRIDE * 2;
constexpr u32 AT_MEAN = AT_SCALES + RANK_STEPS * 16 * 4;
constexpr u32 BASIS_BYTES = AT_MEAN + HEAD_DIM * 4;
constexpr u32 MERGE_BYTES = (WARPS * GROUP_SIZE * (HEAD_DIM + 2) * 4 + 15) / 16 * 16;
constexpr u32 AT_QUERY = BASIS_BYTES > MERGE_BYTES ? BASIS_BYTES : MERGE_BYTES;
constexpr u32 QUERY_WORDS = 16 * QUERY_STRIDE / 2;  // one form of the query: exact, or transformed as two halves
constexpr u32 AT_CODEBOOK_HALVES = AT_QUERY + 3 * QUERY_WORDS * 4;
constexpr u32 AT_STAGES = AT_CODEBOOK_HALVES + ENTRIES * CHANNELS * 2;

extern __shared__ __align__(16) unsigned char shared_memory[];

__device__ __forceinline__ u32 low_halves(u32 first, u32 second) { return (first & 0xffffu) | (second << 16); }
__device__ __forceinline__ u32 high_halves(u32 first, u32 second) { return (first >> 16) | (second & 0xffff0000u); }

__device__ __forceinline__ float half_of(const u32* words, u32 index) {
  return half_to_float(static_cast<u16>(words[index / 2] >> (index % 2 * 16)));
}

__device__ __forceinline__ u32 saturated_half2(float low, float high) {
  return static_cast<u32>(float_to_half_saturated(low)) | (static_cast<u32>(float_to_half_saturated(high)) << 16);
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

// Copies `words` words, 16 bytes at a time where every row keeps that alignment, asynchronously, by one warp.
template <bool WIDE>
__device__ __forceinline__ void stage_words(u32* shared, const u32* global, u32 words) {
  if (WIDE) {
    for (u32 word = lane_id() * 4; word < words; word += 128) cp_async_16(shared + word, global + word);
  } else {
    for (u32 word = lane_id(); word < words; word += 32) cp_async_4(shared + word, global + word);
  }
}

// B operands of the scores of 16 tokens, `[s][n]` for channels 16s.. and tokens 8n..: each key as the sum of two
// halves. One half alone puts errors of 1e-2 into scores of 40, and these go straight into the weights.
struct KeyTile {
  u32 high[CHANNEL_STEPS][2][2];
  u32 low[CHANNEL_STEPS][2][2];
};

__device__ __forceinline__ void store_keys(KeyTile& keys, u32 step, u32 tokens, u32 i, float first, float second) {
  const u32 high = saturated_half2(first, second);
  const float2 rounded = unpack_half2(high);
  keys.high[step][tokens][i] = high;
  keys.low[step][tokens][i] = saturated_half2(first - rounded.x, second - rounded.y);
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

// Which of key and query are sums of two halves; exact tokens and the exact query are halves as they come.
enum class Halves { ONE, KEY, KEY_AND_QUERY };

// Takes 16 tokens into the softmax. `scale` turns a product of query and key as they are stored into a base-2 exponent;
// `valid` has a bit for each token; `value(token, vector, k)` gives channels 2k and
// 2k + 1 of a value vector as two halves.
template <Halves HALVES, typename Value>
__device__ __forceinline__ void attend_tile(Softmax& state, const u32* query, const KeyTile& keys, float scale, u32 valid, Value value) {
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;

  float scores[2][4] = {};
#pragma unroll
  for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
    const u32 place = ((lane_id() % 16) * QUERY_STRIDE + step * 16 + lane_id() / 16 * 8) / 2;
    u32 fragment[4];
    ldmatrix_x4(fragment, query + place);
#pragma unroll
    for (u32 tokens = 0; tokens < 2; ++tokens) {
      if (HALVES != Halves::ONE) mma_m16n8k16(scores[tokens], fragment, keys.low[step][tokens]);
      mma_m16n8k16(scores[tokens], fragment, keys.high[step][tokens]);
    }
    if (HALVES == Halves::KEY_AND_QUERY) {
      ldmatrix_x4(fragment, query + QUERY_WORDS + place);
      mma_m16n8k16(scores[0], fragment, keys.high[step][0]);
      mma_m16n8k16(scores[1], fragment, keys.high[step][1]);
    }
  }

  float largest[2] = {state.largest[0], state.largest[1]};
#pragma unroll
  for (u32 tokens = 0; tokens < 2; ++tokens) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const bool seen = (valid >> (tokens * 8 + column + i % 2)) & 1u;
      scores[tokens][i] = seen ? scores[tokens][i] * scale : MASKED;
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
      const u32 fragment[4] = {low_halves(pairs[0], pairs[1]), high_halves(pairs[0], pairs[1]),
                               low_halves(pairs[2], pairs[3]), high_halves(pairs[2], pairs[3])};
#pragma unroll
      for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
        mma_m16n8k16(state.output[step * (CHANNELS / 2) + k][heads], fragment, weights[heads]);
      }
    }
  }
}

// Rebuilds the keys of 16 staged tokens of one KV head: mean + coefficients * basis, then RoPE, in registers. The int8
// basis is exact in f16; a coefficient, its code times both scales, is COEFFICIENT_HALVES halves: with one, the rounding
// reaches 4e-3 of the output at scores of 40, with two it is below the rounding of the weights.
// Returns the inverse of the power of two that the keys are stored with.
__device__ __forceinline__ float rebuild_keys(
    KeyTile& keys, const u32* staged, const float* tables, u32 position, u32 last_position) {
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;
  const u32* basis = reinterpret_cast<const u32*>(shared_memory);
  const float* scales = reinterpret_cast<const float*>(shared_memory + AT_SCALES);
  const float* mean = reinterpret_cast<const float*>(shared_memory + AT_MEAN);

  float rebuilt[HEAD_DIM / 8][4];
#pragma unroll
  for (u32 tile = 0; tile < HEAD_DIM / 8; ++tile) {
    rebuilt[tile][0] = rebuilt[tile][2] = mean[tile * 8 + column];
    rebuilt[tile][1] = rebuilt[tile][3] = mean[tile * 8 + column + 1];
  }
  // components 0 to 0 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
    u32 high[4];
    u32 low[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32* words = staged + (row + i % 2 * 8) * KEY_ROW_WORDS + 0u;
      const u32 field = step * 16 + column + i / 2 * 8;
      const auto word_at = [&](u32 word) { return words[word]; };
      const float first = coefficient_value_4(unpack_field_4(field, word_at)) * scales[0u + field];
      const float second = coefficient_value_4(unpack_field_4(field + 1, word_at)) * scales[0u + field + 1];
      high[i] = saturated_half2(first, second);
      const float2 rounded = unpack_half2(high[i]);
      low[i] = saturated_half2(first - rounded.x, second - rounded.y);
    }
#pragma unroll
    for (u32 tile = 0; tile < HEAD_DIM / 8; ++tile) {
      const u32* operand = basis + ((tile * 8 + row) * BASIS_STRIDE + 0u + step * 16 + column) / 2;
      const u32 fragment[2] = {operand[0], operand[4]};
      if (COEFFICIENT_HALVES == 2) mma_m16n8k16(rebuilt[tile], low, fragment);
      mma_m16n8k16(rebuilt[tile], high, fragment);
    }
  }
  // components 64 to 64 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
    u32 high[4];
    u32 low[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32* words = staged + (row + i % 2 * 8) * KEY_ROW_WORDS + 8u;
      const u32 field = step * 16 + column + i / 2 * 8;
      const auto word_at = [&](u32 word) { return words[word]; };
      const float first = coefficient_value_4(unpack_field_4(field, word_at)) * scales[64u + field];
      const float second = coefficient_value_4(unpack_field_4(field + 1, word_at)) * scales[64u + field + 1];
      high[i] = saturated_half2(first, second);
      const float2 rounded = unpack_half2(high[i]);
      low[i] = saturated_half2(first - rounded.x, second - rounded.y);
    }
#pragma unroll
    for (u32 tile = 0; tile < HEAD_DIM / 8; ++tile) {
      const u32* operand = basis + ((tile * 8 + row) * BASIS_STRIDE + 64u + step * 16 + column) / 2;
      const u32 fragment[2] = {operand[0], operand[4]};
      if (COEFFICIENT_HALVES == 2) mma_m16n8k16(rebuilt[tile], low, fragment);
      mma_m16n8k16(rebuilt[tile], high, fragment);
    }
  }
  // components 128 to 128 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
    u32 high[4];
    u32 low[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32* words = staged + (row + i % 2 * 8) * KEY_ROW_WORDS + 16u;
      const u32 field = step * 16 + column + i / 2 * 8;
      const auto word_at = [&](u32 word) { return words[word]; };
      const float first = coefficient_value_4(unpack_field_4(field, word_at)) * scales[128u + field];
      const float second = coefficient_value_4(unpack_field_4(field + 1, word_at)) * scales[128u + field + 1];
      high[i] = saturated_half2(first, second);
      const float2 rounded = unpack_half2(high[i]);
      low[i] = saturated_half2(first - rounded.x, second - rounded.y);
    }
#pragma unroll
    for (u32 tile = 0; tile < HEAD_DIM / 8; ++tile) {
      const u32* operand = basis + ((tile * 8 + row) * BASIS_STRIDE + 128u + step * 16 + column) / 2;
      const u32 fragment[2] = {operand[0], operand[4]};
      if (COEFFICIENT_HALVES == 2) mma_m16n8k16(rebuilt[tile], low, fragment);
      mma_m16n8k16(rebuilt[tile], high, fragment);
    }
  }

#pragma unroll
  for (u32 tile = 0; tile < HEAD_DIM / 16; ++tile) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      // Rows past the end turn with the last token: the tables need not reach further.
      const u32 place = min(position + row + i / 2 * 8, last_position);
      const float2 angle = angle_at(tables, place, tile * 8 + column + i % 2);
      const float2 turned = rotate_pair(rebuilt[tile][i], rebuilt[tile + HEAD_DIM / 16][i], angle);
      rebuilt[tile][i] = turned.x;
      rebuilt[tile + HEAD_DIM / 16][i] = turned.y;
    }
  }
  float largest = 0.0f;
#pragma unroll
  for (u32 tile = 0; tile < HEAD_DIM / 8; ++tile) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(rebuilt[tile][i]));
  }
  const u32 exponent = scaling_exponent(warp_largest(largest));
  const float factor = power_of_two(exponent);
#pragma unroll
  for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const float* tile = rebuilt[step * 2 + i];
      store_keys(keys, step, 0, i, tile[0] * factor, tile[1] * factor);
      store_keys(keys, step, 1, i, tile[2] * factor, tile[3] * factor);
    }
  }
  return power_of_two(254 - exponent);
}

// Bits of the tokens of a tile, first to first + 15, that lie in [begin, end).
__device__ __forceinline__ u32 valid_tokens(u32 first, u32 begin, u32 end) {
  const u32 low = begin > first ? begin - first : 0;
  const u32 high = end > first ? min(end - first, 16u) : 0;
  return low < high ? ((1u << high) - 1u) & ~((1u << low) - 1u) : 0u;
}

// The middle: codes of a tile stream in while the tile before is attended to; two stages a warp.
__device__ __forceinline__ void attend_middle(
    Softmax& state, const u32* query, const u32* record, const u32* cache, const float* tables, float scale, u32 kv_head, u32 begin, u32 end) {
  if (begin >= end) return;
  const u32 middle = record[AT_MIDDLE_TOKENS];
  const u32 warp = threadIdx.x / 32;
  u32* stages = reinterpret_cast<u32*>(shared_memory + AT_STAGES) + warp * 2 * STAGE_WORDS;
  const u32* codebook = reinterpret_cast<const u32*>(shared_memory + AT_CODEBOOK_HALVES);
  const u32* key_codes = cache + record[AT_KEY_CODES];
  const u32* value_codes = cache + record[AT_VALUE_CODES] + kv_head * VALUE_HEAD_WORDS;

  const auto fetch = [&](u32 tile, u32 stage) {
    u32* keys = stages + stage * STAGE_WORDS;
    u32* values = keys + 16 * KEY_ROW_WORDS;
    const u32 rows = min(middle - tile * 16, 16u);
    stage_words<KEY_ROW_WORDS % 4 == 0>(keys, key_codes + tile * 16 * KEY_ROW_WORDS, rows * KEY_ROW_WORDS);
    for (u32 row = 0; row < rows; ++row) {
      stage_words<VALUE_ROW_WORDS % 4 == 0 && VALUE_HEAD_WORDS % 4 == 0>(
          values + row * VALUE_STRIDE, value_codes + (tile * 16 + row) * VALUE_ROW_WORDS, VALUE_HEAD_WORDS);
    }
    // Rows past the end are rebuilt with the others and then masked; they must not hold stale bits.
    for (u32 word = rows * KEY_ROW_WORDS + lane_id(); word < 16 * KEY_ROW_WORDS; word += 32) keys[word] = 0u;
  };

  const u32 last = (end + 15) / 16;
  u32 tile = begin / 16 + warp;
  u32 stage = 0;
  if (tile < last) fetch(tile, stage);
  cp_async_commit();
  for (; tile < last; tile += WARPS, stage ^= 1u) {
    if (tile + WARPS < last) fetch(tile + WARPS, stage ^ 1u);
    cp_async_commit();
    cp_async_wait<1>();
    __syncwarp();  // every lane's copies of this tile have landed
    const u32* staged_keys = stages + stage * STAGE_WORDS;
    const u8* indices = reinterpret_cast<const u8*>(staged_keys + 16 * KEY_ROW_WORDS);
    KeyTile keys;
    const u32 sinks = record[AT_SINK_TOKENS];
    const float stored = rebuild_keys(keys, staged_keys, tables, sinks + tile * 16, sinks + middle - 1);
    attend_tile<Halves::KEY>(state, query, keys, stored * scale, valid_tokens(tile * 16, begin, end), [&](u32 token, u32 vector, u32 k) {
      return codebook[indices[token * VALUE_STRIDE * 4 + vector] * (CHANNELS / 2) + k];
    });
    __syncwarp();  // this stage is read to the end before the copies of the next tile but one overwrite it
  }
  cp_async_wait<0>();

  // From here on the sums are in the scale of the transform itself, which the stream shares.
  const u32* channel_max = cache + record[AT_CHANNEL_MAX];
#pragma unroll
  for (u32 out = 0; out < OUTPUT_TILES; ++out) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32 channel = output_channel(out, upper, lane_id() / 4);
      const float factor = channel < HEAD_DIM ? half_of(channel_max, kv_head * HEAD_DIM + channel) : 0.0f;
#pragma unroll
      for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
        state.output[out][heads][upper * 2] *= factor;
        state.output[out][heads][upper * 2 + 1] *= factor;
      }
    }
  }
}

// The stream: codes stay in Hadamard space, where the transformed query meets them.
__device__ __forceinline__ void attend_stream(
    Softmax& state, const u32* query, const u32* record, const u32* cache, const float* levels, float scale, u32 kv_head, u32 begin, u32 end) {
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;
  const auto level_at = [&](u32 code) { return levels[code]; };
  const u32* key_codes = cache + record[AT_STREAM_KEY_CODES];
  const u32* key_norms = cache + record[AT_STREAM_KEY_NORMS];
  const u32* value_codes = cache + record[AT_STREAM_VALUE_CODES];
  const u32* value_norms = cache + record[AT_STREAM_VALUE_NORMS];
  const auto pair_at = [&](const u32* codes, const u32* norms, u32 token, u32 channel) {
    const u32* words = codes + (token * KV_HEADS + kv_head) * STREAM_WORDS;
    const auto word_at = [&](u32 word) { return words[word]; };
    const float norm = half_of(norms + token * NORM_WORDS, kv_head);
    return make_float2(level_value(unpack_field_8(channel, word_at), level_at) * norm,
                       level_value(unpack_field_8(channel + 1, word_at), level_at) * norm);
  };
  for (u32 first = begin + threadIdx.x / 32 * 16; first < end; first += WARPS * 16) {
    float largest = 0.0f;
    if (lane_id() < 16 && first + lane_id() < end) largest = half_of(key_norms + (first + lane_id()) * NORM_WORDS, kv_head);
    const u32 exponent = scaling_exponent(warp_largest(largest));
    const float factor = power_of_two(exponent);
    KeyTile keys;
#pragma unroll
    for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 token = first + row + i / 2 * 8;
        float2 pair = make_float2(0.0f, 0.0f);
        if (token < end) pair = pair_at(key_codes, key_norms, token, step * 16 + column + i % 2 * 8);
        store_keys(keys, step, i / 2, i % 2, pair.x * factor, pair.y * factor);
      }
    }
    attend_tile<Halves::KEY_AND_QUERY>(state, query, keys, power_of_two(254 - exponent) * scale, valid_tokens(first, begin, end), [&](u32 token, u32 vector, u32 k) {
      const float2 pair = pair_at(value_codes, value_norms, first + token, vector * CHANNELS + k * 2);
      return saturated_half2(pair.x, pair.y);
    });
  }
}

// Exact tokens: `slot(token)` is the row of a token in the f16 arrays.
template <typename Slot>
__device__ __forceinline__ void attend_exact(
    Softmax& state, const u32* query, const u32* key_rows, const u32* value_rows, u32 kv_head, u32 begin, u32 end, Slot slot) {
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;
  for (u32 first = begin + threadIdx.x / 32 * 16; first < end; first += WARPS * 16) {
    KeyTile keys;
#pragma unroll
    for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 token = first + row + i / 2 * 8;
        const u32 channel = step * 16 + column + i % 2 * 8;
        keys.high[step][i / 2][i % 2] = token < end ? key_rows[(slot(token) * WIDTH + kv_head * HEAD_DIM + channel) / 2] : 0u;
      }
    }
    attend_tile<Halves::ONE>(state, query, keys, SCORE_SCALE, valid_tokens(first, begin, end), [&](u32 token, u32 vector, u32 k) {
      return value_rows[(slot(first + token) * WIDTH + kv_head * HEAD_DIM + vector * CHANNELS) / 2 + k];
    });
  }
}

// Merges the warps of the block and writes one partial result: outputs, maximum and weight sum of every query head.
__device__ __forceinline__ void write_partial(const Softmax& state, float* partial) {
  float* merge = reinterpret_cast<float*>(shared_memory);
  const u32 warp = threadIdx.x / 32;
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;
  __syncthreads();  // the basis, whose place this takes, is no longer read
#pragma unroll
  for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 head = heads * 8 + column + i % 2;
#pragma unroll
      for (u32 tile = 0; tile < OUTPUT_TILES; ++tile) {
        const u32 channel = output_channel(tile, i / 2, row);
        if (head < GROUP_SIZE && channel < HEAD_DIM) {
          merge[(warp * GROUP_SIZE + head) * (HEAD_DIM + 2) + channel] = state.output[tile][heads][i];
        }
      }
    }
    if (heads * 8 + row < GROUP_SIZE && column == 0) {
      float* own = merge + (warp * GROUP_SIZE + heads * 8 + row) * (HEAD_DIM + 2) + HEAD_DIM;
      own[0] = state.largest[heads];
      own[1] = state.weight[heads];
    }
  }
  __syncthreads();  // all warps have stored
  for (u32 i = threadIdx.x; i < GROUP_SIZE * (HEAD_DIM + 2); i += THREADS) {
    const u32 head = i / (HEAD_DIM + 2);
    const u32 place = i % (HEAD_DIM + 2);
    float largest = MASKED;
    for (u32 other = 0; other < WARPS; ++other) {
      largest = fmaxf(largest, merge[(other * GROUP_SIZE + head) * (HEAD_DIM + 2) + HEAD_DIM]);
    }
    float sum = 0.0f;
    for (u32 other = 0; other < WARPS; ++other) {
      const float* own = merge + (other * GROUP_SIZE + head) * (HEAD_DIM + 2);
      sum += own[place] * exp2f(own[HEAD_DIM] - largest);
    }
    partial[i] = place == HEAD_DIM ? largest : sum;
  }
  __syncthreads();  // the merged values are read before anything overwrites them
}

// Merges the partial results of one row (its splits are neighbours) by log-sum-exp, and writes the row's query heads.
// Hadamard-space sums get one inverse transform here instead of one a block. `scratch` holds HEAD_DIM floats.
// The loads are volatile: other blocks wrote the partials during this launch, and a line of this SM's L1 may be older.
__device__ __forceinline__ void merge_splits(const volatile float* partials, u32 splits, float* output, float* scratch) {
  for (u32 head = 0; head < GROUP_SIZE; ++head) {
    const volatile float* own = partials + head * (HEAD_DIM + 2);
    float largest = -1e30f;
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
    for (u32 stride = 1; stride < HADAMARD_BLOCK; stride *= 2) {
      __syncthreads();  // the sums, then the previous stride, are complete
      for (u32 pair = threadIdx.x; pair < HEAD_DIM / 2; pair += THREADS) {
        const u32 low = pair / stride * stride * 2 + pair % stride;
        const float2 turned = butterfly(scratch[low], scratch[low + stride]);
        scratch[low] = turned.x;
        scratch[low + stride] = turned.y;
      }
    }
    __syncthreads();  // the transform is complete
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

extern "C" __global__ void __launch_bounds__(128) attend(
    const u32* __restrict__ sequences,  // records of all sequences
    const u32* __restrict__ work,  // [work items][sequence, KV head, split, splits]; splits of a row are neighbours
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const u32* __restrict__ query,  // f16 [sequences][32 heads][128], after RoPE
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    float* partials,  // [work items][2: Hadamard space, exact][4 query heads][128 output, maximum, weight sum]
    float* output,  // [sequences][32 heads][128]
    u32* counters  // [sequences][8 KV heads], zero before and after
) {
  const u32 item = blockIdx.x;
  const u32 sequence = work[item * WORK_ITEM_WORDS];
  const u32 kv_head = work[item * WORK_ITEM_WORDS + 1];
  const u32 split = work[item * WORK_ITEM_WORDS + 2];
  const u32 splits = work[item * WORK_ITEM_WORDS + 3];
  const u32* record = sequences + sequence * RECORD_WORDS;
  const u32 sinks = record[AT_SINK_TOKENS];
  const u32 middle = record[AT_MIDDLE_TOKENS];
  const u32 stream = record[AT_STREAM_TOKENS];
  const u32 window = record[AT_WINDOW_TOKENS];
  const u32 tokens = sinks + middle + stream + window;
  const u32 chunk = ((tokens + splits - 1) / splits + CHUNK_UNIT - 1) / CHUNK_UNIT * CHUNK_UNIT;
  const u32 begin = min(split * chunk, tokens);
  const u32 end = min(begin + chunk, tokens);
  // This block's share of a segment that starts at `start` and has `count` tokens, counted within the segment.
  const auto from = [&](u32 start, u32 count) { return min(begin > start ? begin - start : 0u, count); };
  const auto to = [&](u32 start, u32 count) { return min(end > start ? end - start : 0u, count); };

  // The query as halves, zero rows below the group; first as it is, then Hadamard-transformed.
  u16* exact_query = reinterpret_cast<u16*>(shared_memory + AT_QUERY);
  u16* turned_query = exact_query + QUERY_WORDS * 2;
  float* scratch = reinterpret_cast<float*>(shared_memory);
  for (u32 i = threadIdx.x; i < 16 * HEAD_DIM; i += THREADS) {
    const u32 head = i / HEAD_DIM;
    const u32 channel = i % HEAD_DIM;
    float channel_value = 0.0f;
    if (head < GROUP_SIZE) {
      channel_value = half_of(query, (sequence * HEADS + kv_head * GROUP_SIZE + head) * HEAD_DIM + channel);
      scratch[i] = channel_value;
    }
    exact_query[head * QUERY_STRIDE + channel] = float_to_half(channel_value);
    if (head >= GROUP_SIZE) {
      turned_query[head * QUERY_STRIDE + channel] = 0;
      turned_query[QUERY_WORDS * 2 + head * QUERY_STRIDE + channel] = 0;
    }
  }
  for (u32 stride = 1; stride < HADAMARD_BLOCK; stride *= 2) {
    __syncthreads();  // the query, then the previous stride, is complete
    for (u32 pair = threadIdx.x; pair < GROUP_SIZE * HEAD_DIM / 2; pair += THREADS) {
      const u32 low = pair / stride * stride * 2 + pair % stride;
      const float2 turned = butterfly(scratch[low], scratch[low + stride]);
      scratch[low] = turned.x;
      scratch[low + stride] = turned.y;
    }
  }
  __syncthreads();  // the transform is complete
  float largest_turned = 0.0f;
  for (u32 i = lane_id(); i < GROUP_SIZE * HEAD_DIM; i += 32) largest_turned = fmaxf(largest_turned, fabsf(scratch[i]));
  const u32 query_exponent = scaling_exponent(warp_largest(largest_turned));
  for (u32 i = threadIdx.x; i < GROUP_SIZE * HEAD_DIM; i += THREADS) {
    const float turned = scratch[i] * power_of_two(query_exponent);
    u16* high = turned_query + i / HEAD_DIM * QUERY_STRIDE + i % HEAD_DIM;
    high[0] = float_to_half_saturated(turned);
    high[QUERY_WORDS * 2] = float_to_half_saturated(turned - half_to_float(high[0]));
  }
  __syncthreads();  // scratch is read before the basis takes its place

  const u32 middle_begin = from(sinks, middle);
  const u32 middle_end = to(sinks, middle);
  u32 key_exponent = 127;
  if (middle_begin < middle_end) {
    // The basis slice of this KV head, and both scales of a component in one.
    u16* basis = reinterpret_cast<u16*>(shared_memory);
    float* scales = reinterpret_cast<float*>(shared_memory + AT_SCALES);
    const u32* codes = cache + record[AT_KEY_BASIS] + kv_head * HEAD_DIM * RANK_WORDS;
    for (u32 i = threadIdx.x; i < HEAD_DIM * RANK_STEPS * 16; i += THREADS) {
      const u32 channel = i / (RANK_STEPS * 16);
      const u32 component = i % (RANK_STEPS * 16);
      const u32 word = component < RANK ? codes[channel * RANK_WORDS + component / 4] : 0u;
      basis[channel * BASIS_STRIDE + component] = float_to_half(signed_byte(word, component % 4));
    }
    const auto scale_of = [&](u32 component) {
      return half_of(cache + record[AT_KEY_SCALES], component) * half_of(cache + record[AT_KEY_BASIS_SCALES], component);
    };
    float largest_scale = 0.0f;
    for (u32 component = lane_id(); component < RANK; component += 32) largest_scale = fmaxf(largest_scale, scale_of(component));
    key_exponent = scaling_exponent(warp_largest(largest_scale));
    for (u32 component = threadIdx.x; component < RANK; component += THREADS) {
      scales[component] = scale_of(component) * power_of_two(key_exponent);
    }
    float* mean = reinterpret_cast<float*>(shared_memory + AT_MEAN);
    for (u32 channel = threadIdx.x; channel < HEAD_DIM; channel += THREADS) {
      mean[channel] = half_of(cache + record[AT_KEY_MEAN], kv_head * HEAD_DIM + channel) * power_of_two(key_exponent);
    }
    u32* codebook = reinterpret_cast<u32*>(shared_memory + AT_CODEBOOK_HALVES);
    for (u32 word = threadIdx.x; word < ENTRIES * CHANNELS / 2; word += THREADS) {
      codebook[word] = cache[record[AT_CODEBOOK] + word];
    }
  }
  __syncthreads();  // query, basis and codebook are in place

  float* partial = partials + item * PARTIAL_WORDS;
  const u32* exact = reinterpret_cast<const u32*>(exact_query);
  const u32* turned = reinterpret_cast<const u32*>(turned_query);
  Softmax state;
  reset(state);
  attend_middle(state, exact, record, cache, tables, SCORE_SCALE * power_of_two(254 - key_exponent), kv_head, middle_begin, middle_end);
  attend_stream(state, turned, record, cache, tables, SCORE_SCALE * HADAMARD_SCALE * power_of_two(254 - query_exponent), kv_head, from(sinks + middle, stream), to(sinks + middle, stream));
  write_partial(state, partial);

  reset(state);
  attend_exact(state, exact, cache + record[AT_SINK_KEYS], cache + record[AT_SINK_VALUES], kv_head, from(0, sinks), to(0, sinks),
               [](u32 token) { return token; });
  const u32 oldest = record[AT_WINDOW_START];
  attend_exact(state, exact, cache + record[AT_WINDOW_KEYS], cache + record[AT_WINDOW_VALUES], kv_head,
               from(sinks + middle + stream, window), to(sinks + middle + stream, window),
               [=](u32 token) { return (oldest + token) % WINDOW; });
  write_partial(state, partial + GROUP_SIZE * (HEAD_DIM + 2));

  // The last block of a row merges: its partials are visible before the count that announces them.
  __threadfence();
  __syncthreads();  // every thread's fence comes before the count
  u32* is_last = reinterpret_cast<u32*>(shared_memory);
  if (threadIdx.x == 0) {
    u32* counter = counters + sequence * KV_HEADS + kv_head;
    const u32 finished = atomicAdd(counter, 1u);
    is_last[0] = finished == splits - 1 ? 1u : 0u;
    if (finished == splits - 1) *counter = 0u;
  }
  __syncthreads();  // the decision is shared
  const bool merges = is_last[0] != 0u;
  __syncthreads();  // the decision is read before scratch takes its place
  if (!merges) return;
  __threadfence();
  merge_splits(partials + (item - split) * PARTIAL_WORDS, splits,
               output + (sequence * HEADS + kv_head * GROUP_SIZE) * HEAD_DIM, reinterpret_cast<float*>(shared_memory));
}
