// attend: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attend of scheme shard for llama-3.1-8b. CUDA for sm_90a on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: basisHalves = 2, queryHalves = 2, keyHalves = 2, split = 1, coefficientHalves = 2, warps = 4, basisBytes = 2

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 PAIRS = 64;  // pairs of channels of a head; those past the rotary ones have angle zero
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
constexpr u32 COARSE_ANGLES = 9472;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
constexpr u32 SPLIT_FUNCTIONS = 8448;  // offset in the tables: [SPLIT_TILE][4] functions of position % SPLIT_TILE
constexpr u32 SPLIT_COEFFICIENTS = 8960;  // offset in the tables: [PAIRS][4](cosine, sine) coefficients of these functions
constexpr u32 RECORD_WORDS = 64;  // words of a sequence record
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_SLIDING_WINDOW = 8;  // in the record, tokens that a query sees, itself included; 0 for all
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][8 KV heads][128], after RoPE
constexpr u32 AT_SINK_VALUES = 11;  // in the record, first word of sinkValues: f16 [sinks][8 KV heads][128]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][8 KV heads][128], after RoPE
constexpr u32 AT_WINDOW_VALUES = 13;  // in the record, first word of windowValues: f16 ring [window][8 KV heads][128]
constexpr u32 AT_KEY_CODES = 14;  // in the record, first word of keyCodes: 4-bit fields [middle][192 components]
constexpr u32 AT_KEY_SCALES = 15;  // in the record, first word of keyScales: f16 [192 components]
constexpr u32 AT_KEY_BASIS = 16;  // in the record, first word of keyBasis: i8 [1024 channels][192 components]
constexpr u32 AT_KEY_BASIS_SCALES = 17;  // in the record, first word of keyBasisScales: f16 [192 components]
constexpr u32 AT_KEY_MEAN = 18;  // in the record, first word of keyMean: f16 [1024 channels], before RoPE
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: u8 [middle][256 vectors]
constexpr u32 AT_CODEBOOK = 20;  // in the record, first word of codebook: f16 [256 entries][4]
constexpr u32 AT_CHANNEL_MAX = 21;  // in the record, first word of channelMax: f16 [8 KV heads][128], after Hadamard
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][8 KV heads][128], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][8 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 8-bit fields [stream][8 KV heads][128], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][8 KV heads]
constexpr u32 THREADS = 384;  // threads of a block
constexpr u32 WARPGROUPS = 2;  // groups of four warps that take tiles in turn
constexpr u32 WARPS = 12;  // warps of a block
constexpr u32 CONSUMER_REGISTERS = 176;  // registers of a thread that takes tokens
constexpr u32 PRODUCER_REGISTERS = 152;  // registers of a thread that turns queries
constexpr u32 BLOCK_REGISTERS = 168;  // registers of a thread before the middle and after it
constexpr u32 BASIS_HALVES = 2;  // f16 numbers whose sum is an entry of the basis for fast pairs, times its scales
constexpr u32 QUERY_HALVES = 2;  // f16 numbers whose sum is a number of a turned query
constexpr u32 KEY_HALVES = 2;  // f16 numbers whose sum is a channel of a rebuilt key
constexpr u32 FAST_PAIRS = 24;  // pairs of channels that are rotated token by token; the others turn with the query
constexpr u32 SPLIT_TILE = 128;  // positions that share a turned query
constexpr u32 PASS_TILES = 8;  // pairs of 8-channel tiles that a warp rebuilds at a time
constexpr u32 SHARED_BYTES = 223680;  // shared memory that a launch asks for
constexpr u32 WORK_ITEM_WORDS = 6;  // words of a work item
constexpr u32 PARTIAL_WORDS = 1040;  // numbers of one partial result
constexpr u32 CHUNK_UNIT = 128;  // a split gets a multiple of so many tokens
constexpr float SCORE_SCALE = 0.127517432f;  // what q.k is multiplied with first

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

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 64, pairs = 64, interleaved = 0
// The first channel of a pair.
__device__ __forceinline__ u32 first_of_pair_64_64_0(u32 pair) {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 64, pairs = 64, interleaved = 0
// The second channel of a pair.
__device__ __forceinline__ u32 second_of_pair_64_64_0(u32 pair) {
  return pair + 64u;
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

// Merges the partial results of one row (its splits are neighbours) by log-sum-exp, and writes the row's query heads:
// a thread has two channels of a head, and eight splits on their way at a time. Hadamard-space sums get one inverse
// transform here instead of one a block. `scratch` holds the outputs of all heads.
__device__ __forceinline__ void merge_rows(const float* partials, u32 splits, float* output, float* scratch) {
  constexpr u32 items = GROUP_SIZE * HEAD_DIM / 2;
  constexpr u32 rounds = (items + THREADS - 1) / THREADS;
  constexpr u32 part_words = GROUP_SIZE * (HEAD_DIM + 2);
  float2 exact[rounds];
  float weight[rounds];
#pragma unroll
  for (u32 round = 0; round < rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    const u32 head = min(i, items - 1) / (HEAD_DIM / 2);
    const u32 channel = min(i, items - 1) % (HEAD_DIM / 2) * 2;
    const float* own = partials + head * (HEAD_DIM + 2);
    float2 turned = make_float2(0.0f, 0.0f);
    exact[round] = make_float2(0.0f, 0.0f);
    weight[round] = 0.0f;
    float largest = MASKED;
    for (u32 first = 0; first < splits; first += 8) {
      float2 sums[8][2];
      float2 ends[8][2];  // maximum and weight sum
#pragma unroll
      for (u32 k = 0; k < 16; ++k) {
        const float* part = own + (min(first + k / 2, splits - 1) * 2 + k % 2) * part_words;
        sums[k / 2][k % 2] = load_fresh(part + channel);
        ends[k / 2][k % 2] = load_fresh(part + HEAD_DIM);
      }
      float reference = largest;
#pragma unroll
      for (u32 k = 0; k < 16; ++k) reference = fmaxf(reference, ends[k / 2][k % 2].x);
      const float shrink = exp2f(largest - reference);
      largest = reference;
      turned = make_float2(turned.x * shrink, turned.y * shrink);
      exact[round] = make_float2(exact[round].x * shrink, exact[round].y * shrink);
      weight[round] *= shrink;
#pragma unroll
      for (u32 k = 0; k < 8; ++k) {
        if (first + k >= splits) break;
        const float turned_factor = exp2f(ends[k][0].x - reference);
        const float exact_factor = exp2f(ends[k][1].x - reference);
        turned.x += sums[k][0].x * turned_factor;
        turned.y += sums[k][0].y * turned_factor;
        exact[round].x += sums[k][1].x * exact_factor;
        exact[round].y += sums[k][1].y * exact_factor;
        weight[round] += ends[k][0].y * turned_factor + ends[k][1].y * exact_factor;
      }
    }
    if (i < items) *reinterpret_cast<float2*>(scratch + head * HEAD_DIM + channel) = turned;
  }
  hadamard(scratch, GROUP_SIZE * HEAD_DIM);
#pragma unroll
  for (u32 round = 0; round < rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    if (i >= items) break;
    const float normalize = weight[round] > 0.0f ? 1.0f / weight[round] : 0.0f;
    const float2 turned = *reinterpret_cast<const float2*>(scratch + i * 2);
    *reinterpret_cast<float2*>(output + i * 2) =
        make_float2((turned.x * HADAMARD_SCALE + exact[round].x) * normalize,
                    (turned.y * HADAMARD_SCALE + exact[round].y) * normalize);
  }
}

// RoPE within a tile of SPLIT_TILE positions. Fast pairs are rotated token by token: their keys are rebuilt. The slow
// pairs turn so little that four functions of the position in the tile stand for all of their rotations; there the query
// turns instead, once a tile, into a vector of components for each function, and no key is rebuilt.
constexpr u32 SETS = (GROUP_SIZE + 3) / 4;           // four query heads fill the eight columns of a product
constexpr u32 STEP_TOKENS = 64;                      // a warpgroup takes so many at a time, each of its warps 16
constexpr u32 SLOW_STEPS = (PAIRS - FAST_PAIRS) / 8;  // k = 16 steps of a product over the channels of slow pairs
constexpr u32 FAST_STEPS = FAST_PAIRS / 8;           // and of fast pairs
constexpr u32 KEY_STEPS = RANK / 16;                 // and over components
constexpr u32 LANE_WORDS = KEY_ROW_WORDS / 4;        // words of one token's key codes that a lane unpacks
constexpr u32 VECTORS = HEAD_DIM / CHANNELS;         // value vectors of a head
constexpr u32 LANE_VECTORS = VECTORS / 8;            // of which a lane looks up so many for each of its tokens
constexpr u32 QUERY_TILES = SETS * 2 * QUERY_HALVES;  // 8-column tiles of the product with the codes: turned queries
constexpr u32 FAST_TILES = FAST_PAIRS / 4;             // then a column for every channel of a fast pair
constexpr u32 COLUMN_TILES = QUERY_TILES + FAST_TILES * BASIS_HALVES;  // and one for what a half leaves of its basis
constexpr u32 K_STRIDE = COLUMN_TILES * 128;         // bytes from eight components of these columns to the next eight
constexpr u32 SLOW_STRIDE = (RANK / 8 + 1) * 128;    // bytes from eight channels of slow pairs to the next, as columns of components and mean
constexpr u32 ANGLE_STRIDE = FAST_PAIRS + 4;         // pairs; spreads the rows over the banks
constexpr u32 TURN_WARPS = 2 * SETS;                 // warps of the producer that turn the query for one tile
constexpr float QUERY_SHRINK = 0x1p-17f;             // brings turned queries, sums of 2^32 at most, into a half

// Offsets in shared memory, in bytes. A codebook entry has a copy for every lane, so that lookups never meet in a bank.
constexpr u32 SHARED_SLOW = ENTRIES * 256;
constexpr u32 SHARED_PRODUCTS = SHARED_SLOW + SLOW_STEPS * 2 * SLOW_STRIDE;
constexpr u32 PRODUCT_BYTES = RANK / 8 * K_STRIDE;  // of a warpgroup that takes tokens
constexpr u32 SHARED_ANGLES = SHARED_PRODUCTS + WARPGROUPS * PRODUCT_BYTES;
constexpr u32 SHARED_FUNCTIONS = SHARED_ANGLES + STEP_TOKENS * ANGLE_STRIDE * 8;
constexpr u32 SHARED_COEFFICIENTS = SHARED_FUNCTIONS + SPLIT_TILE * 16;
constexpr u32 SHARED_FAST_MEAN = SHARED_COEFFICIENTS + SLOW_STEPS * 8 * 32;
constexpr u32 SHARED_COMPONENT_SCALES = SHARED_FAST_MEAN + FAST_PAIRS * 8;
constexpr u32 SHARED_PLACE_SCALES = SHARED_COMPONENT_SCALES + RANK * 4;  // of turned queries, in the order of places along k
constexpr u32 SHARED_QUERY_PAIRS = SHARED_PLACE_SCALES + RANK * 4;
constexpr u32 SHARED_MAXIMA = SHARED_QUERY_PAIRS + SETS * 4 * PAIRS * 8;
constexpr u32 SHARED_TURNED = SHARED_MAXIMA + 128;
// Operands of the fast pairs for two tiles, and sums of the mean, of every warpgroup.
constexpr u32 FAST_BYTES = FAST_STEPS * SETS * 256;  // of half a tile
constexpr u32 TURNED_BYTES = 4 * FAST_BYTES + SETS * 64;
constexpr u32 MIDDLE_BYTES = SHARED_TURNED + WARPGROUPS * TURNED_BYTES;

// What the other segments need takes the place of all this: the merge, then the query as it is and, transformed, as two
// halves.
constexpr u32 QUERY_STRIDE = HEAD_DIM + 8;                    // halves
constexpr u32 CHANNEL_STEPS = HEAD_DIM / 16;                  // k = 16 steps of the scores
constexpr u32 HEAD_TILES = (GROUP_SIZE + 7) / 8;              // n = 8 tiles of query heads in the output product
constexpr u32 VECTOR_STEPS = (VECTORS + 7) / 8;               // eight vectors at a time, one for each lane / 4
constexpr u32 OUTPUT_TILES = VECTOR_STEPS * CHANNELS / 2;     // m = 16 tiles of output channels
constexpr u32 QUERY_BYTES = 16 * QUERY_STRIDE * 2;
constexpr u32 SHARED_QUERY = ((WARPGROUPS * 4 + 2 * WARPS) * GROUP_SIZE * (HEAD_DIM + 2) * 4 + 15) / 16 * 16;
constexpr u32 SHARED_TURNED_QUERY = SHARED_QUERY + QUERY_BYTES;
constexpr u32 SHARED_SCRATCH = SHARED_TURNED_QUERY + 2 * QUERY_BYTES;
constexpr u32 OTHERS_BYTES = SHARED_SCRATCH + GROUP_SIZE * HEAD_DIM * 4;

static_assert((MIDDLE_BYTES > OTHERS_BYTES ? MIDDLE_BYTES : OTHERS_BYTES) == SHARED_BYTES,
              "what is placed is what a launch asks for");
static_assert(SPLIT_TILE == 2 * ANGLE_TILE && STEP_TOKENS == ANGLE_TILE, "a step is half a tile, and a row of angles");

extern __shared__ __align__(128) unsigned char shared_memory[];

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

// Puts the query heads of the group into shared memory as halves, zero rows below them: as they are, for exact tokens, and
// if there is one, Hadamard-transformed as two halves, for the stream. Returns the exponent of the power of two that the last are times.
__device__ __forceinline__ u32 stage_query(const u32* query, const WorkItem& own, bool has_stream) {
  u16* exact = reinterpret_cast<u16*>(shared_memory + SHARED_QUERY);
  u16* turned_high = reinterpret_cast<u16*>(shared_memory + SHARED_TURNED_QUERY);
  u16* turned_low = reinterpret_cast<u16*>(shared_memory + SHARED_TURNED_QUERY + QUERY_BYTES);
  float* scratch = reinterpret_cast<float*>(shared_memory + SHARED_SCRATCH);
  const u32* rows = query + (own.row * HEADS + own.kv_head * GROUP_SIZE) * HEAD_DIM / 2;
  for (u32 i = threadIdx.x; i < 16 * HEAD_DIM; i += THREADS) {
    const u32 at = i / HEAD_DIM * QUERY_STRIDE + i % HEAD_DIM;
    const float channel = i < GROUP_SIZE * HEAD_DIM ? half_at(rows, i) : 0.0f;
    exact[at] = float_to_half(channel);
    turned_high[at] = turned_low[at] = 0;
    if (i < GROUP_SIZE * HEAD_DIM) scratch[i] = channel;
  }
  __syncthreads();  // the query is in place
  if (!has_stream) return 127;
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
  __syncthreads();  // the transformed query is in place
  return exponent;
}

// A word of key codes has eight fields, and each of its four masks takes two of them, value and value + 4, as the last
// bits of two halves: subnormal numbers, which a product takes as they are. So no code is converted. Odd values stand
// four bits higher, which their rows of the basis make up for. This word of a row of codes is the lane's, for the steps
// 2 * word and 2 * word + 1.
__device__ __forceinline__ u32 word_of_lane(u32 word, u32 lane) {
  return KEY_ROW_WORDS % 8 == 0 ? word / 2 * 8 + lane * 2 + word % 2 : word * 4 + lane;
}

// Where the components of word `row_word`, value `value` and value + 4, lie along k, in bytes: `k_stride` from eight to
// the next eight.
__device__ __forceinline__ u32 place_of_components(u32 row_word, u32 value, u32 k_stride) {
  const u32 word = KEY_ROW_WORDS % 8 == 0 ? row_word / 8 * 2 + row_word % 2 : row_word / 4;
  const u32 lane = KEY_ROW_WORDS % 8 == 0 ? row_word % 8 / 2 : row_word % 4;
  return ((word * 2 + value / 2) * 2 + value % 2) * k_stride + lane * 4;
}

// What a field of zero bits stands for: a code is its field plus this.
__device__ __forceinline__ float zero_field() {
  return coefficient_value_4(0u);
}

// Puts a channel of the basis into shared memory, as halves: of a fast pair times all scales and a power of two, as a column
// of every warpgroup's product; of a slow pair as the integers they are, along k of the product that turns queries, which
// takes the scales afterwards. `basis` is this lane's quarter of it. The
// mean takes what fields stand for besides their bits; it is in the scale of a product of basis and fields.
__device__ __forceinline__ void stage_channel(const uint2 (&basis)[LANE_WORDS], float mean, float power, u32 place) {
  const u32 pair = place / 16 * 8 + place % 8;
  const u32 second = place % 16 / 8;
  const bool fast = pair < FAST_PAIRS;
  const u32 column = SHARED_PRODUCTS + (QUERY_TILES + pair / 4) * 128 + (pair % 4 * 2 + second) * 16;
  const u32 k = place - FAST_PAIRS * 2;
  const u32 row = SHARED_SLOW + k / 8 * SLOW_STRIDE + k % 8 * 2;
  float sum = 0.0f;
#pragma unroll
  for (u32 i = 0; i < LANE_WORDS; ++i) {
    const u32 row_word = threadIdx.x % 4 * LANE_WORDS + i;
    const float4* scale = reinterpret_cast<const float4*>(shared_memory + SHARED_COMPONENT_SCALES) + row_word * 2;
    const float low[4] = {scale[0].x, scale[0].y, scale[0].z, scale[0].w};
    const float high[4] = {scale[1].x, scale[1].y, scale[1].z, scale[1].w};
#pragma unroll
    for (u32 value = 0; value < 4; ++value) {
      const float raised = value % 2 == 0 ? 1.0f : 16.0f;
      const float one = signed_byte(basis[i].x, value);
      const float other = signed_byte(basis[i].y, value);
      const float2 scaled = make_float2(one * low[value] * power / raised, other * high[value] * power / raised);
      const u32 halves = fast ? pack_half2(scaled.x, scaled.y) : pack_half2(one, other);
      const u32 rest = remainder_pair(halves, scaled.x, scaled.y);
      // Of rebuilt keys the sum is over the halves, as their products are: so what rounding costs is the same for all fields.
      const float2 rounded = unpack_half2(halves);
      const float2 left = unpack_half2(rest);
      const float2 summed = !fast ? scaled : BASIS_HALVES == 1 ? rounded : make_float2(rounded.x + left.x, rounded.y + left.y);
      sum += (summed.x + summed.y) * raised;
      if (fast) {
        const u32 at = column + place_of_components(row_word, value, K_STRIDE);
#pragma unroll
        for (u32 group = 0; group < WARPGROUPS; ++group) {
          *reinterpret_cast<u32*>(shared_memory + at + group * PRODUCT_BYTES) = halves;
          if (BASIS_HALVES == 2) {
            *reinterpret_cast<u32*>(shared_memory + at + group * PRODUCT_BYTES + FAST_TILES * 128) = rest;
          }
        }
      } else {
        // Here components are columns: their places along k, two bytes each, become 16 bytes each.
        const u32 places = place_of_components(row_word, value, 16);
        u16* at = reinterpret_cast<u16*>(shared_memory + row + places * 8);
        at[0] = static_cast<u16>(halves & 0xffffu);
        at[8] = static_cast<u16>(halves >> 16);
      }
    }
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  mean = (mean * power + sum * zero_field()) * 0x1p-24f;
  if (threadIdx.x % 4 != 0) return;
  if (fast) {
    reinterpret_cast<float*>(shared_memory + SHARED_FAST_MEAN)[pair * 2 + second] = mean;
  } else {
    // Both halves of the mean, and six columns of nothing.
    u16* at = reinterpret_cast<u16*>(shared_memory + row + RANK * 16);
    at[0] = float_to_half(mean);
    at[8] = float_to_half(mean - round_to_half(mean));
#pragma unroll
    for (u32 empty = 2; empty < 8; ++empty) at[empty * 8] = 0;
  }
}

// Puts into shared memory what the middle of this KV head needs, and returns the factor that goes with its scores. Loads
// come before the first store: else each would wait for the one before, as the compiler cannot tell that they differ.
__device__ __forceinline__ float stage_middle(
    const u32* query, const u32* record, const u32* cache, const float* tables, const WorkItem& own) {
  constexpr u32 channel_rounds = (HEAD_DIM * 4 + THREADS - 1) / THREADS;  // four lanes share a channel
  constexpr u32 query_rounds = (SETS * 4 * PAIRS + THREADS - 1) / THREADS;
  constexpr u32 component_rounds = (RANK + THREADS - 1) / THREADS;
  constexpr u32 angle_rounds = (STEP_TOKENS * FAST_PAIRS + THREADS - 1) / THREADS;
  constexpr u32 function_rounds = (SPLIT_TILE * 4 + THREADS - 1) / THREADS;
  constexpr u32 coefficient_rounds = (SLOW_STEPS * 64 + THREADS - 1) / THREADS;
  constexpr u32 entry_rounds = (ENTRIES * 16 + THREADS - 1) / THREADS;
  const auto channel_of = [&](u32 place) {
    const u32 pair = place / 16 * 8 + place % 8;
    return own.kv_head * HEAD_DIM + (place % 16 < 8 ? first_of_pair_64_64_0(pair) : second_of_pair_64_64_0(pair));
  };

  uint2 basis[channel_rounds][LANE_WORDS];
  float means[channel_rounds];
#pragma unroll
  for (u32 round = 0; round < channel_rounds; ++round) {
    const u32 channel = channel_of(min((threadIdx.x + round * THREADS) / 4, HEAD_DIM - 1));
    const u32* row = cache + record[AT_KEY_BASIS] + channel * RANK_WORDS + threadIdx.x % 4 * LANE_WORDS * 2;
#pragma unroll
    for (u32 i = 0; i < LANE_WORDS; ++i) basis[round][i] = reinterpret_cast<const uint2*>(row)[i];
    means[round] = half_at(cache + record[AT_KEY_MEAN], channel);
  }
  uint2 entries[entry_rounds];
#pragma unroll
  for (u32 round = 0; round < entry_rounds; ++round) {
    const u32 entry = min((threadIdx.x + round * THREADS) / 16, ENTRIES - 1);
    entries[round] = reinterpret_cast<const uint2*>(cache + record[AT_CODEBOOK])[entry];
  }
  float2 angles[angle_rounds];
#pragma unroll
  for (u32 round = 0; round < angle_rounds; ++round) {
    const u32 i = min(threadIdx.x + round * THREADS, STEP_TOKENS * FAST_PAIRS - 1);
    angles[round] = reinterpret_cast<const float2*>(tables + FINE_ANGLES)[i / FAST_PAIRS * PAIRS + i % FAST_PAIRS];
  }
  float functions[function_rounds];
#pragma unroll
  for (u32 round = 0; round < function_rounds; ++round) {
    functions[round] = tables[SPLIT_FUNCTIONS + min(threadIdx.x + round * THREADS, SPLIT_TILE * 4 - 1)];
  }
  float coefficients[coefficient_rounds];
#pragma unroll
  for (u32 round = 0; round < coefficient_rounds; ++round) {
    // [slow pair][function 0 or 1](cosine, sine of that function, then of function 2 or 3)
    const u32 i = min(threadIdx.x + round * THREADS, SLOW_STEPS * 64 - 1);
    const u32 function = i / 4 % 2 + i % 4 / 2 * 2;
    coefficients[round] = tables[SPLIT_COEFFICIENTS + ((FAST_PAIRS + i / 8) * 4 + function) * 2 + i % 2];
  }
  const u32* rows = query + (own.row * HEADS + own.kv_head * GROUP_SIZE) * HEAD_DIM / 2;
  const auto query_pair = [&](u32 i) {
    const u32 channel = first_of_pair_64_64_0(i % PAIRS);
    float2 pair = make_float2(half_at(rows, i / PAIRS * HEAD_DIM + channel),
                              half_at(rows, i / PAIRS * HEAD_DIM + second_of_pair_64_64_0(i % PAIRS)));
    return pair;
  };
  float2 queries[query_rounds];
#pragma unroll
  for (u32 round = 0; round < query_rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    queries[round] = query_pair(min(i, GROUP_SIZE * PAIRS - 1));
    if (i >= GROUP_SIZE * PAIRS) queries[round] = make_float2(0.0f, 0.0f);
  }
  const auto scale_of = [&](u32 component) {
    return half_at(cache + record[AT_KEY_SCALES], component) * half_at(cache + record[AT_KEY_BASIS_SCALES], component);
  };
  float scales[component_rounds];
#pragma unroll
  for (u32 round = 0; round < component_rounds; ++round) {
    scales[round] = scale_of(min(threadIdx.x + round * THREADS, RANK - 1));
  }

  // The largest number of the query, and twice the largest scale; a mean far larger must not pass a half either.
  float largest_scale = 0.0f;
#pragma unroll
  for (u32 round = 0; round < component_rounds; ++round) largest_scale = fmaxf(largest_scale, 2.0f * scales[round]);
#pragma unroll
  for (u32 round = 0; round < channel_rounds; ++round) {
    largest_scale = fmaxf(largest_scale, fabsf(means[round]) * 0x1p-29f);
  }
  float largest_query = 0.0f;
#pragma unroll
  for (u32 round = 0; round < query_rounds; ++round) {
    largest_query = fmaxf(largest_query, fmaxf(fabsf(queries[round].x), fabsf(queries[round].y)));
  }
  float2* maxima = reinterpret_cast<float2*>(shared_memory + SHARED_MAXIMA);
  largest_scale = warp_largest(largest_scale);
  largest_query = warp_largest(largest_query);
  if (lane_id() == 0) maxima[threadIdx.x / 32] = make_float2(largest_scale, largest_query);

  float* own_scales = reinterpret_cast<float*>(shared_memory + SHARED_COMPONENT_SCALES);
#pragma unroll
  for (u32 round = 0; round < component_rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    if (i < RANK) own_scales[i] = scales[round];
  }
  float2* own_angles = reinterpret_cast<float2*>(shared_memory + SHARED_ANGLES);
#pragma unroll
  for (u32 round = 0; round < angle_rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    if (i < STEP_TOKENS * FAST_PAIRS) own_angles[i / FAST_PAIRS * ANGLE_STRIDE + i % FAST_PAIRS] = angles[round];
  }
  float* own_functions = reinterpret_cast<float*>(shared_memory + SHARED_FUNCTIONS);
#pragma unroll
  for (u32 round = 0; round < function_rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    if (i < SPLIT_TILE * 4) own_functions[i] = functions[round] / QUERY_SHRINK;
  }
  float* own_coefficients = reinterpret_cast<float*>(shared_memory + SHARED_COEFFICIENTS);
#pragma unroll
  for (u32 round = 0; round < coefficient_rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    if (i < SLOW_STEPS * 64) own_coefficients[i] = coefficients[round];
  }
  uint4* codebook = reinterpret_cast<uint4*>(shared_memory);
#pragma unroll
  for (u32 round = 0; round < entry_rounds; ++round) {
    // 16 bytes a store: the entry for two neighbouring lanes.
    const u32 i = threadIdx.x + round * THREADS;
    const uint2 entry = entries[round];
    if (i < ENTRIES * 16) codebook[i] = make_uint4(entry.x, entry.y, entry.x, entry.y);
  }
  __syncthreads();  // scales and maxima are in place
  const float2 own_maxima = maxima[lane_id() % WARPS];
  const u32 key_exponent = scaling_exponent(warp_largest(own_maxima.x));
  const u32 query_exponent = scaling_exponent(warp_largest(own_maxima.y));
  float* place_scales = reinterpret_cast<float*>(shared_memory + SHARED_PLACE_SCALES);
#pragma unroll
  for (u32 round = 0; round < component_rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    const u32 place = place_of_components(i / 8, i % 4, 16) / 2 + i % 8 / 4;
    const float raised = i % 2 == 0 ? 1.0f : 16.0f;
    if (i < RANK) place_scales[place] = scales[round] * power_of_two(key_exponent) / raised * QUERY_SHRINK;
  }
  float2* own_queries = reinterpret_cast<float2*>(shared_memory + SHARED_QUERY_PAIRS);
#pragma unroll
  for (u32 round = 0; round < query_rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    const float factor = power_of_two(query_exponent);
    if (i < SETS * 4 * PAIRS) own_queries[i] = make_float2(queries[round].x * factor, queries[round].y * factor);
  }
#pragma unroll
  for (u32 round = 0; round < channel_rounds; ++round) {
    const u32 place = (threadIdx.x + round * THREADS) / 4;
    if (place < HEAD_DIM) stage_channel(basis[round], means[round], power_of_two(key_exponent), place);
  }
  publish_shared();
  __syncthreads();  // the basis is in place
  // Scores are sums of query times key, both times their powers of two, and 2^-24 of the latter's.
  return SCORE_SCALE * power_of_two(254 - query_exponent) * power_of_two(254 - key_exponent) * 0x1p24f;
}

// The warpgroups that take tokens wait at barrier `filled` for the columns of their next tile, and arrive at `emptied` when
// their products have read the last one's; with them the warps of the producer whose tile it is.
constexpr u32 HANDOVER_THREADS = 128 + TURN_WARPS * 32;
__device__ __forceinline__ u32 filled(u32 group) { return 1 + group; }
__device__ __forceinline__ u32 emptied(u32 group) { return 1 + WARPGROUPS + group; }
constexpr u32 MIDDLE_BARRIER = 1 + 2 * WARPGROUPS;  // of all threads, when the middle is done

// The slow channels of the turned query, as operands of their product with the basis: row lane / 4 is query head lane / 8 of
// `set` as function lane / 4 % 2 takes it (two more in every second warp), and eight rows on is what a half leaves of it.
__device__ __forceinline__ void turn_slow_pairs(u32 (&operands)[SLOW_STEPS][4], const float2* angles, u32 set, u32 upper) {
  const u32 head = set * 4 + lane_id() / 8;
  const u32 first_pair = lane_id() % 4 * 2;
  const float4* queries = reinterpret_cast<const float4*>(shared_memory + SHARED_QUERY_PAIRS) + (head * PAIRS + FAST_PAIRS) / 2;
  const float2* coefficients = reinterpret_cast<const float2*>(shared_memory + SHARED_COEFFICIENTS) + lane_id() / 4 % 2 * 2 + upper;
  float2 turns[SLOW_STEPS][2];
#pragma unroll
  for (u32 i = 0; i < SLOW_STEPS * 2; ++i) turns[i / 2][i % 2] = angles[FAST_PAIRS + i / 2 * 8 + first_pair + i % 2];
#pragma unroll
  for (u32 step = 0; step < SLOW_STEPS; ++step) {
    const u32 pair = step * 8 + first_pair;
    const float4 query = queries[pair / 2];
    const float2 one = rotate_pair(query.x, query.y, make_float2(turns[step][0].x, -turns[step][0].y));
    const float2 other = rotate_pair(query.z, query.w, make_float2(turns[step][1].x, -turns[step][1].y));
    const float2 first = coefficients[pair * 4];
    const float2 second = coefficients[pair * 4 + 4];
    const float2 firsts = make_float2(first.x * one.x + first.y * one.y, second.x * other.x + second.y * other.y);
    const float2 seconds = make_float2(first.x * one.y - first.y * one.x, second.x * other.y - second.y * other.x);
    operands[step][0] = pack_half2(firsts.x, firsts.y);
    operands[step][1] = remainder_pair(operands[step][0], firsts.x, firsts.y);
    operands[step][2] = pack_half2(seconds.x, seconds.y);
    operands[step][3] = remainder_pair(operands[step][2], seconds.x, seconds.y);
  }
}

// The fast pairs of the turned query, as operands of their products with keys that are turned within half a tile: of every
// query head a column of halves, and one of what these leave. `angles` are those of the halves; the warps of the tile share
// the pairs of all heads.
__device__ __forceinline__ void turn_fast_pairs(const float2* const (&angles)[2], u32 fast) {
  constexpr u32 threads = TURN_WARPS * 32;
  constexpr u32 items = (SETS * 4 * FAST_PAIRS + threads - 1) / threads;
  float2 turns[items][2];
#pragma unroll
  for (u32 i = 0; i < items * 2; ++i) {
    turns[i / 2][i % 2] = angles[i % 2][(threadIdx.x % threads + i / 2 * threads) % FAST_PAIRS];
  }
#pragma unroll
  for (u32 i = 0; i < items; ++i) {
    const u32 item = threadIdx.x % threads + i * threads;
    if (item >= SETS * 4 * FAST_PAIRS) break;
    const u32 head = item / FAST_PAIRS;
    const u32 pair = item % FAST_PAIRS;
    const float2 query = reinterpret_cast<const float2*>(shared_memory + SHARED_QUERY_PAIRS)[head * PAIRS + pair];
    const u32 at = (pair / 8 * SETS + head / 4) * 64 + (head % 4 * 8 + pair % 4) * 2 + pair % 8 / 4;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const float2 two = rotate_pair(query.x, query.y, make_float2(turns[i][half].x, -turns[i][half].y));
      u32* own = reinterpret_cast<u32*>(shared_memory + fast + half * FAST_BYTES) + at;
      const u32 halves = pack_half2(two.x, two.y);
      own[0] = halves;
      own[8] = remainder_pair(halves, two.x, two.y);
    }
  }
}

// Eight components of the turned query from their sums: of its halves, and of what these leave. `columns` are those of the
// function and query head lane / 4, at this lane's two components, and `scale` is theirs.
__device__ __forceinline__ void store_components(unsigned char* columns, const float* sums, float2 scale) {
  const float one = (sums[0] + sums[2]) * scale.x;
  const float other = (sums[1] + sums[3]) * scale.y;
  const u32 halves = pack_half2(one, other);
  *reinterpret_cast<u32*>(columns) = halves;
  if (QUERY_HALVES == 2) *reinterpret_cast<u32*>(columns + 256) = remainder_pair(halves, one, other);
}

// The producer: products of the slow channels of the turned query with the basis, which become columns of the product with
// the codes of the warpgroup whose tile it is. Its own columns are components in the order of the codes, and last the mean.
// All four warps take part in a product: two turn four query heads for a tile, the others the next four, or the next tile.
__device__ __forceinline__ void produce_columns(const float* tables, u32 begin, u32 end) {
  const u32 warp = __shfl_sync(0xffffffffu, threadIdx.x / 32 % 4, 0);
  const u32 set = warp / 2 % SETS;
  const u32 upper = warp % 2;  // functions 0 and 1, or 2 and 3
  const float2* angles = reinterpret_cast<const float2*>(tables + COARSE_ANGLES);
  const MatrixTiles basis = matrix_tiles(shared_memory + SHARED_SLOW, SLOW_STRIDE, 128);
  const u32 first = begin / SPLIT_TILE;
  const u32 tiles = (end + SPLIT_TILE - 1) / SPLIT_TILE - first;
  for (u32 round = 0; round * (4 / TURN_WARPS) < tiles; ++round) {
    const u32 tile = round * (4 / TURN_WARPS) + warp / TURN_WARPS;
    // Past the end a warp turns with the last token, and so does half a tile: the tables need not reach further.
    const u32 base = (first + tile) * SPLIT_TILE;
    const auto angles_at = [&](u32 position) { return angles + min(position, end - 1) / ANGLE_TILE * PAIRS; };
    u32 operands[SLOW_STEPS][4];
    turn_slow_pairs(operands, angles_at(base), set, upper);
    float lower_sums[RANK / 4];
    float upper_sums[RANK / 4 + 4];
    begin_products();
#pragma unroll
    for (u32 step = 0; step < SLOW_STEPS; ++step) {
      issue_products(lower_sums, operands[step], advance(basis, step * 2 * SLOW_STRIDE), step > 0);
    }
#pragma unroll
    for (u32 step = 0; step < SLOW_STEPS; ++step) {
      issue_products(upper_sums, operands[step], advance(basis, step * 2 * SLOW_STRIDE + RANK / 16 * 128), step > 0);
    }
    commit_products();
    wait_products(lower_sums);
    wait_products(upper_sums);
    if (tile >= tiles) break;
    const u32 group = tile % WARPGROUPS;
    const u32 turned = SHARED_TURNED + group * TURNED_BYTES;
    if (tile >= WARPGROUPS) named_barrier(emptied(group), HANDOVER_THREADS);  // its columns are read
    unsigned char* columns = shared_memory + SHARED_PRODUCTS + group * PRODUCT_BYTES + set * 256 * QUERY_HALVES +
                             upper * 128 + lane_id() * 4;
    const float2* scales = reinterpret_cast<const float2*>(shared_memory + SHARED_PLACE_SCALES) + lane_id() % 4;
#pragma unroll
    for (u32 i = 0; i < RANK / 16; ++i) store_components(columns + i * K_STRIDE, lower_sums + i * 4, scales[i * 4]);
#pragma unroll
    for (u32 i = 0; i < RANK / 16; ++i) {
      store_components(columns + (RANK / 16 + i) * K_STRIDE, upper_sums + i * 4, scales[RANK / 4 + i * 4]);
    }
    if (lane_id() % 4 == 0) {
      const float* sums = upper_sums + RANK / 4;
      float* sums_of_mean = reinterpret_cast<float*>(shared_memory + turned + 4 * FAST_BYTES);
      sums_of_mean[(set * 4 + lane_id() / 8) * 4 + lane_id() / 4 % 2 + upper * 2] =
          (sums[0] + sums[1] + (sums[2] + sums[3])) * QUERY_SHRINK;
    }
    const float2* const halves[2] = {angles_at(base), angles_at(base + STEP_TOKENS)};
    turn_fast_pairs(halves, turned + tile / WARPGROUPS % 2 * 2 * FAST_BYTES);
    publish_shared();
    named_arrive(filled(group), HANDOVER_THREADS);
  }
}

// What one warp carries through the middle, of query heads lane % 4 + 4 * set: the exponent that weights are relative to,
// this lane's sum of weights, and the unnormalised output; channels in the codebook's scale.
struct Middle {
  float reference[SETS];
  float weight[SETS];
  float output[SETS][LANE_VECTORS][4];
};

// 16 tokens whose weights are known and whose values are still to be added: value indices of the lane's vectors for tokens
// 2t, 2t + 1, 2t + 8 and 2t + 9, with t = lane % 4, and weights of query head lane / 8 for 2t and 2t + 1 (then + 8).
struct Pending {
  u32 indices[4];
  u32 weights[SETS][2];
};

__device__ __forceinline__ u32 load_indices(const u32* row) {
  if (LANE_VECTORS == 4) return row[lane_id() / 4];
  return reinterpret_cast<const u16*>(row)[lane_id() / 4];
}

// Adds weights times values. A product takes the two channels of a pair as neighbours along k, and has a column for each
// of them and query head, whose weight stands where k is that channel: so entries go in as they lie in the codebook.
__device__ __forceinline__ void add_values(Middle& state, const Pending& pending) {
  const bool second = lane_id() / 4 % 2 != 0;
  const u32 even_token = second ? 0x1044u : 0x4410u;
  const u32 odd_token = second ? 0x3244u : 0x4432u;
  u32 weights[SETS][2][2];
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      weights[set][0][i] = __byte_perm(pending.weights[set][i], 0u, even_token);
      weights[set][1][i] = __byte_perm(pending.weights[set][i], 0u, odd_token);
    }
  }
  const u32 copy = lane_id() * 8;
#pragma unroll
  for (u32 vector = 0; vector < LANE_VECTORS; ++vector) {
    // The index times 256 plus the place of the lane's copy.
    const auto entry = [&](u32 token) {
      return *reinterpret_cast<const uint2*>(shared_memory + __byte_perm(pending.indices[token], copy, 0x5504u + vector * 16));
    };
#pragma unroll
    for (u32 token = 0; token < 2; ++token) {
      const uint2 near = entry(token);
      const uint2 far = entry(token + 2);
      const u32 entries[4] = {near.x, near.y, far.x, far.y};
#pragma unroll
      for (u32 set = 0; set < SETS; ++set) mma_m16n8k16(state.output[set][vector], entries, weights[set][token]);
    }
  }
}

// Puts what a warp carries into a slot of the merge; from here on channels are in their own scale.
__device__ __forceinline__ void store_middle(const Middle& state, const u32* channel_max, u32 kv_head, u32 slot) {
  const u32 row = lane_id() / 4;
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    float weight = state.weight[set];
#pragma unroll
    for (u32 lanes = 4; lanes < 32; lanes *= 2) weight += __shfl_xor_sync(0xffffffffu, weight, lanes);
    const u32 head = set * 4 + lane_id() % 4;
    if (head >= GROUP_SIZE) continue;
    float* own = reinterpret_cast<float*>(shared_memory) + (slot * GROUP_SIZE + head) * (HEAD_DIM + 2);
#pragma unroll
    for (u32 vector = 0; vector < LANE_VECTORS; ++vector) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 channel = (row * LANE_VECTORS + vector) * 4 + i;
        own[channel] = state.output[set][vector][i] * half_at(channel_max, kv_head * HEAD_DIM + channel);
      }
    }
    if (row == 0) {
      own[HEAD_DIM] = state.reference[set];
      own[HEAD_DIM + 1] = weight;
    }
  }
}

// A token that is not seen: its weight is zero at any reference.
constexpr float HIDDEN = -3e38f;
// Weights are halves: the largest of a new reference is 2^6, and the reference stays until one would pass 2^15. So what
// weighs 2^-30 of the largest still counts.
constexpr float HEADROOM = 6.0f;
constexpr float WEIGHT_LIMIT = 15.0f;

// Exponents of 16 tokens, lane / 4 and that plus 8, to weights: updates the reference where it must, and leaves the weights
// as `pending` has them.
__device__ __forceinline__ void take_scores(Middle& state, Pending& pending, const float (&exponents)[SETS][2]) {
  bool passes = false;
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    passes |= fmaxf(exponents[set][0], exponents[set][1]) > state.reference[set] + WEIGHT_LIMIT;
  }
  if (__any_sync(0xffffffffu, passes)) {
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      float largest = fmaxf(exponents[set][0], exponents[set][1]);
#pragma unroll
      for (u32 lanes = 4; lanes < 32; lanes *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
      }
      const float reference = fmaxf(state.reference[set], largest - HEADROOM);
      const float shrink = exp2_approximate(state.reference[set] - reference);
      state.reference[set] = reference;
      state.weight[set] *= shrink;
#pragma unroll
      for (u32 i = 0; i < LANE_VECTORS * 4; ++i) state.output[set][i / 4][i % 4] *= shrink;
    }
  }
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const float weight = exp2_approximate(exponents[set][upper] - state.reference[set]);
      state.weight[set] += weight;
      pending.weights[set][upper] = transpose_8x8(pack_half2(weight, weight));
    }
  }
}

// Scores of 16 tokens from their products with the columns: the slow pairs' four functions, then the rebuilt keys of the
// fast pairs, turned within the half tile. `place` is the position of token lane / 4 in the tile.
__device__ __forceinline__ void scores_of(
    float (&scores)[SETS][2], const float (&products)[COLUMN_TILES * 4], const float4 (&means)[SETS], u32 place, u32 fast) {
  const float4* functions = reinterpret_cast<const float4*>(shared_memory + SHARED_FUNCTIONS) + place;
#pragma unroll
  for (u32 upper = 0; upper < 2; ++upper) {
    const float4 function = functions[upper * 8];
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      const u32 at = set * 8 * QUERY_HALVES + upper * 2;
      float parts[4] = {means[set].x, means[set].y, means[set].z, means[set].w};
#pragma unroll
      for (u32 i = 0; i < 4 * QUERY_HALVES; ++i) parts[i % 4] += products[at + i / 2 * 4 + i % 2];
      scores[set][upper] =
          parts[0] * function.x + parts[1] * function.y + (parts[2] * function.z + parts[3] * function.w);
    }
  }
  const float2* angles = reinterpret_cast<const float2*>(shared_memory + SHARED_ANGLES) + place % STEP_TOKENS * ANGLE_STRIDE;
  const float2* means_of_fast = reinterpret_cast<const float2*>(shared_memory + SHARED_FAST_MEAN);
  const uint2* queries = reinterpret_cast<const uint2*>(shared_memory + fast);
  float sums[SETS][4] = {};
#pragma unroll
  for (u32 step = 0; step < FAST_STEPS; ++step) {
    u32 keys[4];
    u32 rests[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 pair = step * 8 + i / 2 * 4 + lane_id() % 4;
      const u32 at = (QUERY_TILES + step * 2 + i / 2) * 4 + i % 2 * 2;
      float2 key = means_of_fast[pair];
#pragma unroll
      for (u32 half = 0; half < BASIS_HALVES; ++half) {
        key.x += products[at + half * FAST_TILES * 4];
        key.y += products[at + half * FAST_TILES * 4 + 1];
      }
      const float2 turned = rotate_pair(key.x, key.y, angles[i % 2 * 8 * ANGLE_STRIDE + pair]);
      keys[i] = pack_half2(turned.x, turned.y);
      if (KEY_HALVES == 2) rests[i] = remainder_pair(keys[i], turned.x, turned.y);
    }
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      const uint2 query = queries[(step * SETS + set) * 32 + lane_id()];
      const u32 operand[2] = {query.x, query.y};
      if (KEY_HALVES == 2) mma_m16n8k16(sums[set], rests, operand);
      mma_m16n8k16(sums[set], keys, operand);
    }
  }
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    scores[set][0] += sums[set][0] + sums[set][1];
    scores[set][1] += sums[set][2] + sums[set][3];
  }
}

// Takes every WARPGROUPS-th tile of the middle, 64 tokens at a time; the values of these are added while the products of the
// next 64 are under way. Codes are loaded a step ahead.
__device__ __forceinline__ void attend_tiles(
    Middle& state, const u32* record, const u32* cache, float scale, u32 kv_head, u32 begin, u32 end, u32 group) {
  const u32 sinks = record[AT_SINK_TOKENS];
  const u32 row = threadIdx.x % 128 / 32 * 16 + lane_id() / 4;
  const u32 first_pair = threadIdx.x % 128 / 32 * 16 + lane_id() % 4 * 2;
  const u32 turned = SHARED_TURNED + group * TURNED_BYTES;
  const MatrixTiles columns = matrix_tiles(shared_memory + SHARED_PRODUCTS + group * PRODUCT_BYTES, K_STRIDE, 128);
  const u32* key_codes = cache + record[AT_KEY_CODES];
  const u32* value_codes = cache + record[AT_VALUE_CODES] + kv_head * (VECTORS / 4);
  // Rows outside the share repeat its ends, whose codes are there, and are hidden.
  const auto token_at = [&](u32 position) { return min(max(position, begin), end - 1) - sinks; };
  const auto is_inside = [&](u32 position) { return position >= begin && position + STEP_TOKENS <= end; };

  u32 codes[2][LANE_WORDS];
  const auto load_row = [&](u32 upper, const u32* words) {
    if (KEY_ROW_WORDS % 8 == 0) {
#pragma unroll
      for (u32 word = 0; word < LANE_WORDS; word += 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(words + word_of_lane(word, 0));
        codes[upper][word] = two.x;
        codes[upper][word + 1] = two.y;
      }
    } else {
#pragma unroll
      for (u32 word = 0; word < LANE_WORDS; ++word) codes[upper][word] = words[word_of_lane(word, 0)];
    }
  };
  const u32* lane_codes = key_codes + word_of_lane(0, lane_id() % 4);
  const auto load_codes = [&](u32 position) {
    if (is_inside(position)) {
      const u32* words = lane_codes + (position - sinks + row) * KEY_ROW_WORDS;
      load_row(0, words);
      load_row(1, words + 8 * KEY_ROW_WORDS);
    } else {
      load_row(0, lane_codes + token_at(position + row) * KEY_ROW_WORDS);
      load_row(1, lane_codes + token_at(position + row + 8) * KEY_ROW_WORDS);
    }
  };
  const auto load_values = [&](u32 (&indices)[4], u32 position) {
    if (is_inside(position)) {
      const u32* words = value_codes + (position - sinks + first_pair) * VALUE_ROW_WORDS;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) indices[i] = load_indices(words + (i % 2 + i / 2 * 8) * VALUE_ROW_WORDS);
    } else {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        indices[i] = load_indices(value_codes + token_at(position + first_pair + i % 2 + i / 2 * 8) * VALUE_ROW_WORDS);
      }
    }
  };

  u32 base = (begin / SPLIT_TILE + group) * SPLIT_TILE;
  if (base < end) load_codes(base);
  Pending pending;
  bool waiting = false;
  for (u32 parity = 0; base < end; parity ^= 1u) {
    const u32 next = base + SPLIT_TILE * WARPGROUPS;
    named_barrier(filled(group), HANDOVER_THREADS);  // the columns are there
    float4 means[SETS];
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      means[set] = reinterpret_cast<const float4*>(shared_memory + turned + 4 * FAST_BYTES)[set * 4 + lane_id() % 4];
    }
#pragma unroll 1
    for (u32 half = 0; half < 2; ++half) {
      const u32 first = base + half * STEP_TOKENS;
      if (first >= end) break;
      u32 fields[KEY_STEPS][4];
#pragma unroll
      for (u32 step = 0; step < KEY_STEPS; ++step) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          const u32 word = codes[i % 2][step / 2] >> (step % 2 * 8);
          fields[step][i] = word & (i < 2 ? 0x000f000fu : 0x00f000f0u);
        }
      }
      float products[COLUMN_TILES * 4];
      begin_products();
#pragma unroll
      for (u32 step = 0; step < KEY_STEPS; ++step) {
        issue_products(products, fields[step], advance(columns, step * 2 * K_STRIDE), step > 0);
      }
      commit_products();

      if (waiting) add_values(state, pending);
      waiting = true;
      load_values(pending.indices, first);
      load_codes(half == 0 ? first + STEP_TOKENS : next);

      wait_products(products);
      if (next < end && half == 1) named_arrive(emptied(group), HANDOVER_THREADS);
      float scores[SETS][2];
      const u32 fast = turned + (parity * 2 + half) * FAST_BYTES;
      scores_of(scores, products, means, half * STEP_TOKENS + row, fast);
#pragma unroll
      for (u32 upper = 0; upper < 2; ++upper) {
        const u32 position = first + row + upper * 8;
        const bool seen = position >= begin && position < end;
#pragma unroll
        for (u32 set = 0; set < SETS; ++set) {
          scores[set][upper] = seen ? score_exponent(scores[set][upper] * scale) : HIDDEN;
        }
      }
      take_scores(state, pending, scores);
    }
    base = next;
  }
  if (waiting) add_values(state, pending);
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

// The middle, with all warps of the block: leaves what each warp that takes tokens found in its slot of the merge.
__device__ __forceinline__ void attend_middle_tokens(
    const Share& share, const u32* query, const u32* cache, const float* tables) {
  const u32* record = share.record;
  const u32 kv_head = share.own.kv_head;
  const float scale = stage_middle(query, record, cache, tables, share.own);
  const u32 begin = record[AT_SINK_TOKENS] + share.middle.begin;  // positions
  const u32 end = record[AT_SINK_TOKENS] + share.middle.end;
  // The same in all lanes, as the compiler then sees too: products must not stand in divergent code.
  const u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (group == WARPGROUPS) {
    give_registers<PRODUCER_REGISTERS>();
    produce_columns(tables, begin, end);
    named_barrier(MIDDLE_BARRIER, THREADS);  // codebook and basis, whose place the merge takes, are no longer read
    take_registers<BLOCK_REGISTERS>();
  } else {
    take_registers<CONSUMER_REGISTERS>();
    Middle state;
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      state.reference[set] = MASKED;
      state.weight[set] = 0.0f;
#pragma unroll
      for (u32 i = 0; i < LANE_VECTORS * 4; ++i) state.output[set][i / 4][i % 4] = 0.0f;
    }
    attend_tiles(state, record, cache, scale, kv_head, begin, end, group);
    named_barrier(MIDDLE_BARRIER, THREADS);  // codebook and basis, whose place the merge takes, are no longer read
    store_middle(state, cache + record[AT_CHANNEL_MAX], kv_head, threadIdx.x / 32);
    give_registers<BLOCK_REGISTERS>();
  }
}

extern "C" __global__ void __launch_bounds__(384, 1) attend(
    const u32* __restrict__ sequences,  // records of all sequences
    const u32* __restrict__ work,  // [work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const u32* __restrict__ query,  // f16 [query rows][32 heads][128], after RoPE
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    float* partials,  // [work items][2: Hadamard space, exact][4 query heads][128 output, maximum, weight sum]
    float* output,  // [query rows][32 heads][128]
    u32* counters  // [query rows][8 KV heads], zero before and after
) {
  u32 slots = 0;
  {
    const Share share = share_of_block(sequences, work);
    if (share.middle.begin < share.middle.end) {
      attend_middle_tokens(share, query, cache, tables);
      slots = WARPGROUPS * 4;
    }
  }
  // Read anew: kept over the middle, all this would cost it registers.
  const Share share = share_of_block(again(sequences), again(work));
  const WorkItem& own = share.own;
  const u32* record = share.record;
  const TokenRange own_sinks = share.sinks;
  const TokenRange own_stream = share.stream;
  const TokenRange own_window = share.window;
  const u32 kv_head = own.kv_head;
  const bool has_stream = own_stream.begin < own_stream.end;
  const bool has_exact = own_sinks.begin < own_sinks.end || own_window.begin < own_window.end;
  const u32 item = blockIdx.x;
  float* partial = partials + item * PARTIAL_WORDS;
  const u32 warp = threadIdx.x / 32;
  u32 query_exponent = 127;
  if (has_stream || has_exact) query_exponent = stage_query(query, own, has_stream);
  if (has_stream) {
    Softmax state;
    reset(state);
    const float scale = SCORE_SCALE * HADAMARD_SCALE * power_of_two(254 - query_exponent);
    attend_stream(state, record, cache, tables, scale, kv_head, own_stream);
    store_state(state, slots + warp);
    slots += WARPS;
  }
  u32 exact_slots = 0;
  if (has_exact) {
    Softmax state;
    reset(state);
    // Sinks and window in one run, as tiles of 16 tokens: most warps have one or none.
    const u32 sink_tiles = (own_sinks.end - own_sinks.begin + 15) / 16;
    const u32 tiles = sink_tiles + (own_window.end - own_window.begin + 15) / 16;
    const u32 oldest = record[AT_WINDOW_START];
#pragma unroll 1
    for (u32 tile = warp; tile < tiles; tile += WARPS) {
      const bool is_sink = tile < sink_tiles;
      const TokenRange range = is_sink ? own_sinks : own_window;
      const u32 first = range.begin + (is_sink ? tile : tile - sink_tiles) * 16;
      attend_exact_tile(state, cache + record[is_sink ? AT_SINK_KEYS : AT_WINDOW_KEYS],
                        cache + record[is_sink ? AT_SINK_VALUES : AT_WINDOW_VALUES], kv_head, first, range,
                        [=](u32 token) { return is_sink ? token : (oldest + token) % WINDOW; });
    }
    exact_slots = min(tiles, WARPS);
    if (warp < exact_slots) store_state(state, slots + warp);
  }
  __syncthreads();  // all warps have stored
  merge_states(0, slots, partial);
  merge_states(slots, exact_slots, partial + GROUP_SIZE * (HEAD_DIM + 2));

  // The last block of a row merges: its partials are visible before the count that announces them.
  if (own.splits > 1) {
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
    if (!merges) return;
    __threadfence();
  }
  __syncthreads();  // the decision is read before scratch takes its place, and the block's own partials are there
  merge_rows(partials + (item - own.split) * PARTIAL_WORDS, own.splits,
             output + (own.row * HEADS + kv_head * GROUP_SIZE) * HEAD_DIM, reinterpret_cast<float*>(shared_memory));
}
