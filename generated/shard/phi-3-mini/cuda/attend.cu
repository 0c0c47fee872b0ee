// attend: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attend of scheme shard for phi-3-mini. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 576, bits 4/4/4/4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: coefficientHalves = 2, warps = 4, basisBytes = 1

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 96;  // channels of a head
constexpr u32 PAIRS = 48;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 HEADS = 32;  // query heads
constexpr u32 KV_HEADS = 32;  // KV heads
constexpr u32 GROUP_SIZE = 1;  // query heads that share a KV head
constexpr u32 WIDTH = 3072;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 576;  // components of a key
constexpr u32 RANK_WORDS = 144;  // words of a basis row, four int8 columns each
constexpr u32 KEY_ROW_WORDS = 72;  // words of one token's key fields
constexpr u32 HADAMARD_BLOCK = 32;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.176776692f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 VALUE_ROW_WORDS = 192;  // words of one token's value indices, four each
constexpr u32 STREAM_WORDS = 24;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 16;  // words of one stream token's norms, two each
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 ANGLE_TILE = 64;  // rows of the fine angle table
constexpr u32 FINE_ANGLES = 256;  // offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE
constexpr u32 COARSE_ANGLES = 7296;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
constexpr u32 RECORD_WORDS = 64;  // words of a sequence record
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_SLIDING_WINDOW = 8;  // in the record, tokens that a query sees, itself included; 0 for all
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][32 KV heads][96], after RoPE
constexpr u32 AT_SINK_VALUES = 11;  // in the record, first word of sinkValues: f16 [sinks][32 KV heads][96]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][32 KV heads][96], after RoPE
constexpr u32 AT_WINDOW_VALUES = 13;  // in the record, first word of windowValues: f16 ring [window][32 KV heads][96]
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 4-bit fields [middle][576 components]
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [576 components]
constexpr u32 AT_KEY_BASIS = 16;  // in the record, first word of keyBasis: i8 [3072 channels][576 components]
constexpr u32 AT_KEY_BASIS_SCALES = 17;  // in the record, first word of keyBasisScales: f16 [576 components]
constexpr u32 AT_KEY_MEAN = 18;  // in the record, first word of keyMean: f16 [3072 channels], before RoPE
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: u8 [middle][768 vectors]
constexpr u32 AT_CODEBOOK = 20;  // in the record, first word of codebook: f16 [256 entries][4]
constexpr u32 AT_CHANNEL_MAX = 21;  // in the record, first word of channelMax: f16 [32 KV heads][96], after Hadamard
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][32 KV heads][96], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][32 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 8-bit fields [stream][32 KV heads][96], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][32 KV heads]
constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 WARPS = 4;  // warps of a block
constexpr u32 COEFFICIENT_HALVES = 2;  // f16 numbers whose sum is a coefficient
constexpr u32 BASIS_BYTES = 1;  // bytes of a basis entry in shared memory: half or int8
constexpr u32 PASS_TILES = 6;  // pairs of 8-channel tiles that a warp rebuilds at a time
constexpr u32 SHARED_BYTES = 115840;  // shared memory that a launch asks for
constexpr u32 WORK_ITEM_WORDS = 6;  // words of a work item
constexpr u32 PARTIAL_WORDS = 196;  // numbers of one partial result
constexpr u32 CHUNK_UNIT = 16;  // a split gets a multiple of so many tokens
constexpr float SCORE_SCALE = 0.147244453f;  // what q.k is multiplied with first

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

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 48, pairs = 48, interleaved = 0
// The first channel of a pair.
__device__ __forceinline__ u32 first_of_pair_48_48_0(u32 pair) {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 48, pairs = 48, interleaved = 0
// The second channel of a pair.
__device__ __forceinline__ u32 second_of_pair_48_48_0(u32 pair) {
  return pair + 48u;
}

// dsl/codecs/pca.ts:158 signedByte
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

// dsl/codecs/pca.ts:136 coefficientValue, bits = 4
// The integer a field stands for; times the component's scale it is the coefficient.
__device__ __forceinline__ float coefficient_value_4(u32 field) {
  return float(int(field) - 8);
}

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
__device__ __forceinline__ float2 butterfly(float a, float b) {
  return make_float2(a + b, a - b);
}

// dsl/codecs/lloydMax.ts:78 levelValue
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

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// Two channels as one word of f16; what f16 cannot hold becomes its largest value, never infinity.
__device__ __forceinline__ u32 saturated_pair(float low, float high) {
  return static_cast<u32>(float_to_half_saturated(low)) | static_cast<u32>(float_to_half_saturated(high)) << 16;
}

// The rotary angle of one pair at a position, as (cosine, sine).
__device__ __forceinline__ float2 angle_at(const float* __restrict__ tables, u32 position, u32 pair) {
  const float* coarse = tables + COARSE_ANGLES + (position / ANGLE_TILE * PAIRS + pair) * 2;
  const float* fine = tables + FINE_ANGLES + (position % ANGLE_TILE * PAIRS + pair) * 2;
  return add_angles(make_float2(coarse[0], coarse[1]), make_float2(fine[0], fine[1]));
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

constexpr u32 BASIS_STRIDE = (RANK * BASIS_BYTES / 16 | 1) * 16;  // bytes; an odd number of 16 spreads rows over the banks
constexpr u32 QUERY_STRIDE = HEAD_DIM + 8;                        // halves
constexpr u32 CHANNEL_STEPS = HEAD_DIM / 16;                      // k = 16 steps of the scores
constexpr u32 HEAD_TILES = (GROUP_SIZE + 7) / 8;                  // n = 8 tiles of query heads in the output product
constexpr u32 VECTORS = HEAD_DIM / CHANNELS;                      // value vectors of a head
constexpr u32 VECTOR_STEPS = (VECTORS + 7) / 8;                   // eight vectors at a time, one for each lane / 4
constexpr u32 OUTPUT_TILES = VECTOR_STEPS * CHANNELS / 2;         // m = 16 tiles of output channels
constexpr u32 VALUE_HEAD_WORDS = VECTORS / 4;                     // words of one token's value indices for one head
constexpr u32 VALUE_STRIDE = (VALUE_HEAD_WORDS + 3) / 4 * 4;      // in shared memory, 16-byte rows
constexpr u32 STAGE_WORDS = 16 * (KEY_ROW_WORDS + VALUE_STRIDE);  // one staged tile of 16 tokens

// Offsets in shared memory, in bytes. The merge of the warps reuses the place of what the key rebuild needs.
constexpr u32 SHARED_COMPONENT_SCALES = HEAD_DIM * BASIS_STRIDE;
constexpr u32 SHARED_MEAN = SHARED_COMPONENT_SCALES + RANK * 4;
constexpr u32 REBUILD_BYTES = SHARED_MEAN + HEAD_DIM * 4;
constexpr u32 MERGE_BYTES = (WARPS * GROUP_SIZE * (HEAD_DIM + 2) * 4 + 15) / 16 * 16;
constexpr u32 SHARED_QUERY = REBUILD_BYTES > MERGE_BYTES ? REBUILD_BYTES : MERGE_BYTES;
constexpr u32 QUERY_BYTES = 16 * QUERY_STRIDE * 2;                      // of the query as it is, for exact tokens
constexpr u32 SHARED_PAIRED_QUERY = SHARED_QUERY + QUERY_BYTES;         // in the order of a rebuilt key, for the middle
constexpr u32 SHARED_TURNED_QUERY = SHARED_PAIRED_QUERY + QUERY_BYTES;  // transformed, as two halves, for the stream
constexpr u32 SHARED_CODEBOOK = SHARED_TURNED_QUERY + 2 * QUERY_BYTES;
constexpr u32 SHARED_STAGES = SHARED_CODEBOOK + ENTRIES * CHANNELS * 2;

static_assert(SHARED_STAGES + WARPS * 2 * STAGE_WORDS * 4 == SHARED_BYTES, "what is placed is what a launch asks for");

extern __shared__ __align__(16) unsigned char shared_memory[];

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

// Merges the warps of the block and writes one partial result.
__device__ __forceinline__ void write_partial(const Softmax& state, float* partial) {
  __syncthreads();  // the basis, whose place this takes, is no longer read
  store_state(state, threadIdx.x / 32);
  __syncthreads();  // all warps have stored
  merge_states(0, WARPS, partial);
  __syncthreads();  // the merged values are read before anything overwrites them
}

// A rebuilt key lies in places: 16 of them hold eight pairs of channels, first their first channels, then their second.
// So one k = 16 step of the scores has both channels of its pairs, and one lane holds both, whatever pairs are.
__device__ __forceinline__ u32 channel_at(u32 place) {
  const u32 pair = place / 16 * 8 + place % 8;
  return place % 16 < 8 ? first_of_pair_48_48_0(pair) : second_of_pair_48_48_0(pair);
}

// The rebuilt keys of a pass: 16 tokens by PASS_TILES * 16 places, two accumulator tiles a k = 16 step of the scores.
typedef float KeyPass[PASS_TILES][2][4];

// The B operands of the basis for 16 places and 16 components. A product may take its components in any order that both
// operands share; in this one, lane % 4 has four neighbours, whose codes and basis bytes lie side by side.
__device__ __forceinline__ void load_basis(u32 (&tiles)[2][2], u32 place, u32 component) {
  if (BASIS_BYTES == 2) {
    u32 loaded[4];
    const u32 row = place + lane_id() % 8 + lane_id() / 16 * 8;
    ldmatrix_x4(loaded, shared_memory + row * BASIS_STRIDE + component * 2 + lane_id() / 8 % 2 * 16);
    tiles[0][0] = loaded[0];
    tiles[0][1] = loaded[1];
    tiles[1][0] = loaded[2];
    tiles[1][1] = loaded[3];
  } else {
    const u32* words = reinterpret_cast<const u32*>(shared_memory + (place + lane_id() / 4) * BASIS_STRIDE + component);
    unpack_signed_bytes(tiles[0], words[lane_id() % 4]);
    unpack_signed_bytes(tiles[1], words[lane_id() % 4 + 8 * BASIS_STRIDE / 4]);
  }
}

// Adds 16 components to the keys of a pass: `codes` are those of tokens lane / 4 and lane / 4 + 8, four components from
// 4 * (lane % 4) on. The int8 basis is exact in f16; a coefficient, its code times both scales, is COEFFICIENT_HALVES
// halves: with one, the rounding reaches 4e-3 of the output at scores of 40, with two it is below the rounding of the
// weights. None overflows: scales are below 2^8, and codes 2^7 at most.
__device__ __forceinline__ void add_components(KeyPass& keys, const float (&codes)[2][4], u32 first_step, u32 component) {
  const float4* scales = reinterpret_cast<const float4*>(shared_memory + SHARED_COMPONENT_SCALES);
  const float4 scale = scales[component / 4 + lane_id() % 4];
  u32 high[4];
  u32 low[4];
#pragma unroll
  for (u32 upper = 0; upper < 2; ++upper) {
    const float2 first = make_float2(codes[upper][0] * scale.x, codes[upper][1] * scale.y);
    const float2 second = make_float2(codes[upper][2] * scale.z, codes[upper][3] * scale.w);
    high[upper] = pack_half2(first.x, first.y);
    high[upper + 2] = pack_half2(second.x, second.y);
    low[upper] = remainder_pair(high[upper], first.x, first.y);
    low[upper + 2] = remainder_pair(high[upper + 2], second.x, second.y);
  }
#pragma unroll
  for (u32 i = 0; i < PASS_TILES; ++i) {
    if (first_step + i >= CHANNEL_STEPS) break;  // the last pass may be shorter
    u32 basis[2][2];
    load_basis(basis, (first_step + i) * 16, component);
#pragma unroll
    for (u32 tile = 0; tile < 2; ++tile) {
      if (COEFFICIENT_HALVES == 2) mma_m16n8k16(keys[i][tile], low, basis[tile]);
      mma_m16n8k16(keys[i][tile], high, basis[tile]);
    }
  }
}

// Coefficients times basis for 16 staged tokens and the places of a pass.
__device__ __forceinline__ void multiply_basis(KeyPass& keys, const u32* staged, u32 first_step) {
  const u32 row = lane_id() / 4;
  const u32 first = lane_id() % 4 * 4;  // of this lane's components in a step
  float codes[2][4];
  // components 0 to 0 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32* words = staged + (row + upper * 8) * KEY_ROW_WORDS + 0u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        codes[upper][i] = coefficient_value_4(unpack_field_4(step * 16 + first + i, [&](u32 word) { return words[word]; }));
      }
    }
    add_components(keys, codes, first_step, 0u + step * 16);
  }
  // components 64 to 64 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32* words = staged + (row + upper * 8) * KEY_ROW_WORDS + 8u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        codes[upper][i] = coefficient_value_4(unpack_field_4(step * 16 + first + i, [&](u32 word) { return words[word]; }));
      }
    }
    add_components(keys, codes, first_step, 64u + step * 16);
  }
  // components 128 to 128 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32* words = staged + (row + upper * 8) * KEY_ROW_WORDS + 16u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        codes[upper][i] = coefficient_value_4(unpack_field_4(step * 16 + first + i, [&](u32 word) { return words[word]; }));
      }
    }
    add_components(keys, codes, first_step, 128u + step * 16);
  }
  // components 192 to 192 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32* words = staged + (row + upper * 8) * KEY_ROW_WORDS + 24u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        codes[upper][i] = coefficient_value_4(unpack_field_4(step * 16 + first + i, [&](u32 word) { return words[word]; }));
      }
    }
    add_components(keys, codes, first_step, 192u + step * 16);
  }
  // components 256 to 256 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32* words = staged + (row + upper * 8) * KEY_ROW_WORDS + 32u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        codes[upper][i] = coefficient_value_4(unpack_field_4(step * 16 + first + i, [&](u32 word) { return words[word]; }));
      }
    }
    add_components(keys, codes, first_step, 256u + step * 16);
  }
  // components 320 to 320 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32* words = staged + (row + upper * 8) * KEY_ROW_WORDS + 40u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        codes[upper][i] = coefficient_value_4(unpack_field_4(step * 16 + first + i, [&](u32 word) { return words[word]; }));
      }
    }
    add_components(keys, codes, first_step, 320u + step * 16);
  }
  // components 384 to 384 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32* words = staged + (row + upper * 8) * KEY_ROW_WORDS + 48u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        codes[upper][i] = coefficient_value_4(unpack_field_4(step * 16 + first + i, [&](u32 word) { return words[word]; }));
      }
    }
    add_components(keys, codes, first_step, 384u + step * 16);
  }
  // components 448 to 448 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32* words = staged + (row + upper * 8) * KEY_ROW_WORDS + 56u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        codes[upper][i] = coefficient_value_4(unpack_field_4(step * 16 + first + i, [&](u32 word) { return words[word]; }));
      }
    }
    add_components(keys, codes, first_step, 448u + step * 16);
  }
  // components 512 to 512 + 64 - 1, 4 bits each
#pragma unroll
  for (u32 step = 0; step < 64u / 16u; ++step) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32* words = staged + (row + upper * 8) * KEY_ROW_WORDS + 64u;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        codes[upper][i] = coefficient_value_4(unpack_field_4(step * 16 + first + i, [&](u32 word) { return words[word]; }));
      }
    }
    add_components(keys, codes, first_step, 512u + step * 16);
  }
}

// Scores of 16 staged tokens of the middle. Their keys are rebuilt in registers, a pass of places at a time:
// mean + coefficients * basis, then RoPE. Each pass has a power of two of its own to split keys with.
__device__ __forceinline__ void rebuild_scores(
    float (&scores)[2][4], const u32* staged, const float* tables, u32 position, u32 last_position) {
  const u32 row = lane_id() / 4;
  const u32 column = lane_id() % 4 * 2;
  const float* mean = reinterpret_cast<const float*>(shared_memory + SHARED_MEAN);
#pragma unroll 1
  for (u32 first_step = 0; first_step < CHANNEL_STEPS; first_step += PASS_TILES) {
    KeyPass keys = {};
    multiply_basis(keys, staged, first_step);
    float largest = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PASS_TILES; ++i) {
      const u32 step = first_step + i;
      if (step >= CHANNEL_STEPS) break;
#pragma unroll
      for (u32 k = 0; k < 4; ++k) {
        const u32 place = step * 16 + column + k % 2;
        // Rows past the end turn with the last token: the tables need not reach further.
        const float2 angle = angle_at(tables, min(position + row + k / 2 * 8, last_position), step * 8 + column + k % 2);
        const float2 turned = rotate_pair(keys[i][0][k] + mean[place], keys[i][1][k] + mean[place + 8], angle);
        keys[i][0][k] = turned.x;
        keys[i][1][k] = turned.y;
        largest = fmaxf(largest, fmaxf(fabsf(turned.x), fabsf(turned.y)));
      }
    }
    const u32 exponent = scaling_exponent(warp_largest(largest));
    const float factor = power_of_two(exponent);
    float pass_scores[2][4] = {};
#pragma unroll
    for (u32 i = 0; i < PASS_TILES; ++i) {
      const u32 step = first_step + i;
      if (step >= CHANNEL_STEPS) break;
      u32 high[2][2];
      u32 low[2][2];
#pragma unroll
      for (u32 tokens = 0; tokens < 2; ++tokens) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
          const float first = keys[i][half][tokens * 2] * factor;
          const float second = keys[i][half][tokens * 2 + 1] * factor;
          high[tokens][half] = pack_half2(first, second);
          low[tokens][half] = remainder_pair(high[tokens][half], first, second);
        }
      }
      add_scores(pass_scores, SHARED_PAIRED_QUERY, step, low);
      add_scores(pass_scores, SHARED_PAIRED_QUERY, step, high);
    }
#pragma unroll
    for (u32 i = 0; i < 8; ++i) scores[i / 4][i % 4] += pass_scores[i / 4][i % 4] * power_of_two(254 - exponent);
  }
}

// Bits of the tokens of a tile, first to first + 15, that lie in [begin, end).
__device__ __forceinline__ u32 valid_tokens(u32 first, u32 begin, u32 end) {
  const u32 low = begin > first ? begin - first : 0;
  const u32 high = end > first ? min(end - first, 16u) : 0;
  return low < high ? ((1u << high) - 1u) & ~((1u << low) - 1u) : 0u;
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

// The middle: codes of a tile stream in while the tile before is attended to; two stages a warp.
__device__ __forceinline__ void attend_middle(
    Softmax& state, const u32* record, const u32* cache, const float* tables, float scale, u32 kv_head, TokenRange own) {
  if (own.begin >= own.end) return;
  const u32 sinks = record[AT_SINK_TOKENS];
  const u32 middle = record[AT_MIDDLE_TOKENS];
  const u32 warp = threadIdx.x / 32;
  u32* stages = reinterpret_cast<u32*>(shared_memory + SHARED_STAGES) + warp * 2 * STAGE_WORDS;
  const u32* codebook = reinterpret_cast<const u32*>(shared_memory + SHARED_CODEBOOK);
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

  const u32 last = (own.end + 15) / 16;
  u32 tile = own.begin / 16 + warp;
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
    float scores[2][4] = {};
    rebuild_scores(scores, staged_keys, tables, sinks + tile * 16, sinks + middle - 1);
    take_tokens(state, scores, scale, valid_tokens(tile * 16, own.begin, own.end), [&](u32 token, u32 vector, u32 k) {
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
      const float factor = channel < HEAD_DIM ? half_at(channel_max, kv_head * HEAD_DIM + channel) : 0.0f;
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
    return make_float2(level_value(unpack_field_8(channel, word_at), level_at) * norm,
                       level_value(unpack_field_8(channel + 1, word_at), level_at) * norm);
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

// The exact tokens of a segment, tiles dealt out to the warps.
template <typename Slot>
__device__ __forceinline__ void attend_exact(
    Softmax& state, const u32* key_rows, const u32* value_rows, u32 kv_head, TokenRange own, Slot slot) {
  for (u32 first = own.begin + threadIdx.x / 32 * 16; first < own.end; first += WARPS * 16) {
    attend_exact_tile(state, key_rows, value_rows, kv_head, first, own, slot);
  }
}

// Puts the query heads of the group into shared memory as halves, zero rows below them: as they are, in the order of
// places, and Hadamard-transformed as two halves. Returns the exponent of the power of two that the last are times.
__device__ __forceinline__ u32 stage_query(const u32* query, const WorkItem& own) {
  u16* exact = reinterpret_cast<u16*>(shared_memory + SHARED_QUERY);
  u16* paired = reinterpret_cast<u16*>(shared_memory + SHARED_PAIRED_QUERY);
  u16* turned_high = reinterpret_cast<u16*>(shared_memory + SHARED_TURNED_QUERY);
  u16* turned_low = reinterpret_cast<u16*>(shared_memory + SHARED_TURNED_QUERY + QUERY_BYTES);
  float* scratch = reinterpret_cast<float*>(shared_memory);  // where the basis will be
  const u32* rows = query + (own.row * HEADS + own.kv_head * GROUP_SIZE) * HEAD_DIM / 2;
  for (u32 i = threadIdx.x; i < 16 * HEAD_DIM; i += THREADS) {
    const u32 head = i / HEAD_DIM;
    const u32 place = i % HEAD_DIM;
    const u32 at = head * QUERY_STRIDE + place;
    exact[at] = paired[at] = turned_high[at] = turned_low[at] = 0;
    if (head < GROUP_SIZE) {
      scratch[i] = half_at(rows, i);
      exact[at] = float_to_half(scratch[i]);
      paired[at] = float_to_half(half_at(rows, head * HEAD_DIM + channel_at(place)));
    }
  }
  hadamard(scratch, GROUP_SIZE * HEAD_DIM);
  float largest = 0.0f;
  for (u32 i = lane_id(); i < GROUP_SIZE * HEAD_DIM; i += 32) largest = fmaxf(largest, fabsf(scratch[i]));
  const u32 exponent = scaling_exponent(warp_largest(largest));
  for (u32 i = threadIdx.x; i < GROUP_SIZE * HEAD_DIM; i += THREADS) {
    const float turned = scratch[i] * power_of_two(exponent);
    const u32 at = i / HEAD_DIM * QUERY_STRIDE + i % HEAD_DIM;
    turned_high[at] = float_to_half_saturated(turned);
    turned_low[at] = float_to_half_saturated(turned - half_to_float(turned_high[at]));
  }
  __syncthreads();  // scratch is read before the basis takes its place
  return exponent;
}

// Puts what the middle of this KV head needs into shared memory; what has channels, in the order of places. Returns the
// exponent of the power of two that scales and mean are times.
__device__ __forceinline__ u32 stage_rebuild(const u32* record, const u32* cache, u32 kv_head) {
  const u32* rows = cache + record[AT_KEY_BASIS] + kv_head * HEAD_DIM * RANK_WORDS;
  for (u32 i = threadIdx.x; i < HEAD_DIM * RANK_WORDS; i += THREADS) {
    const u32 place = i / RANK_WORDS;
    const u32 word = i % RANK_WORDS;
    const u32 bytes = rows[channel_at(place) * RANK_WORDS + word];
    u32* row = reinterpret_cast<u32*>(shared_memory + place * BASIS_STRIDE);
    if (BASIS_BYTES == 2) {
      // The four components of a word become slots 2c, 2c + 1, 2c + 8 and 2c + 9 of their k = 16 step (see load_basis).
      u32 halves[2];
      unpack_signed_bytes(halves, bytes);
      row[word / 4 * 8 + word % 4] = halves[0];
      row[word / 4 * 8 + word % 4 + 4] = halves[1];
    } else {
      row[word] = bytes;
    }
  }
  // Both scales of a component in one.
  const auto scale_of = [&](u32 component) {
    return half_at(cache + record[AT_KEY_SCALES], component) * half_at(cache + record[AT_KEY_BASIS_SCALES], component);
  };
  float largest = 0.0f;
  for (u32 component = lane_id(); component < RANK; component += 32) largest = fmaxf(largest, scale_of(component));
  // Twice the largest, so that a scale times a code of -128 is within a half.
  const u32 exponent = scaling_exponent(2.0f * warp_largest(largest));
  float* scales = reinterpret_cast<float*>(shared_memory + SHARED_COMPONENT_SCALES);
  for (u32 component = threadIdx.x; component < RANK; component += THREADS) {
    scales[component] = scale_of(component) * power_of_two(exponent);
  }
  float* mean = reinterpret_cast<float*>(shared_memory + SHARED_MEAN);
  for (u32 place = threadIdx.x; place < HEAD_DIM; place += THREADS) {
    const u32 channel = kv_head * HEAD_DIM + channel_at(place);
    mean[place] = half_at(cache + record[AT_KEY_MEAN], channel) * power_of_two(exponent);
  }
  u32* codebook = reinterpret_cast<u32*>(shared_memory + SHARED_CODEBOOK);
  for (u32 word = threadIdx.x; word < ENTRIES * CHANNELS / 2; word += THREADS) {
    codebook[word] = cache[record[AT_CODEBOOK] + word];
  }
  return exponent;
}

extern "C" __global__ void __launch_bounds__(128) attend(
    const u32* __restrict__ sequences,  // records of all sequences
    const u32* __restrict__ work,  // [work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const u32* __restrict__ query,  // f16 [query rows][32 heads][96], after RoPE
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    float* partials,  // [work items][2: Hadamard space, exact][1 query heads][96 output, maximum, weight sum]
    float* output,  // [query rows][32 heads][96]
    u32* counters  // [query rows][32 KV heads], zero before and after
) {
  const u32 item = blockIdx.x;
  const WorkItem own = work_item(work, item);
  const u32 kv_head = own.kv_head;
  const u32* record = sequences + own.sequence * RECORD_WORDS;
  const u32 sinks = record[AT_SINK_TOKENS];
  const u32 middle = record[AT_MIDDLE_TOKENS];
  const u32 stream = record[AT_STREAM_TOKENS];
  const u32 window = record[AT_WINDOW_TOKENS];
  const TokenRange share = share_of(own, record, sinks + middle + stream + window);
  // This block's share of a segment that starts at `start` and has `count` tokens, counted within the segment.
  const auto share_in = [&](u32 start, u32 count) {
    return TokenRange{min(max(share.begin, start) - start, count), min(max(share.end, start) - start, count)};
  };

  const u32 query_exponent = stage_query(query, own);
  const TokenRange middle_share = share_in(sinks, middle);
  u32 key_exponent = 127;
  if (middle_share.begin < middle_share.end) key_exponent = stage_rebuild(record, cache, kv_head);
  __syncthreads();  // query, basis and codebook are in place

  float* partial = partials + item * PARTIAL_WORDS;
  Softmax state;
  reset(state);
  const float middle_scale = SCORE_SCALE * power_of_two(254 - key_exponent);
  const float stream_scale = SCORE_SCALE * HADAMARD_SCALE * power_of_two(254 - query_exponent);
  attend_middle(state, record, cache, tables, middle_scale, kv_head, middle_share);
  attend_stream(state, record, cache, tables, stream_scale, kv_head, share_in(sinks + middle, stream));
  write_partial(state, partial);

  reset(state);
  attend_exact(state, cache + record[AT_SINK_KEYS], cache + record[AT_SINK_VALUES], kv_head, share_in(0, sinks),
               [](u32 token) { return token; });
  const u32 oldest = record[AT_WINDOW_START];
  attend_exact(state, cache + record[AT_WINDOW_KEYS], cache + record[AT_WINDOW_VALUES], kv_head,
               share_in(sinks + middle + stream, window), [=](u32 token) { return (oldest + token) % WINDOW; });
  write_partial(state, partial + GROUP_SIZE * (HEAD_DIM + 2));

  // The last block of a row merges: its partials are visible before the count that announces them.
  __threadfence();
  __syncthreads();  // every thread's fence comes before the count
  u32* is_last = reinterpret_cast<u32*>(shared_memory);
  if (threadIdx.x == 0) {
    u32* counter = counters + own.row * KV_HEADS + kv_head;
    const u32 finished = atomicAdd(counter, 1u);
    is_last[0] = finished == own.splits - 1 ? 1u : 0u;
    if (finished == own.splits - 1) *counter = 0u;
  }
  __syncthreads();  // the decision is shared
  const bool merges = is_last[0] != 0u;
  __syncthreads();  // the decision is read before scratch takes its place
  if (!merges) return;
  __threadfence();
  merge_splits(partials + (item - own.split) * PARTIAL_WORDS, own.splits,
               output + (own.row * HEADS + kv_head * GROUP_SIZE) * HEAD_DIM, reinterpret_cast<float*>(shared_memory));
}
