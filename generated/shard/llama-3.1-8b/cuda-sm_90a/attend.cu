// attend: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attend of scheme shard for llama-3.1-8b. CUDA for sm_90a on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: split = 1, coefficientHalves = 2, warps = 4, basisBytes = 2

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
constexpr u32 THREADS = 512;  // threads of a block
constexpr u32 WARPGROUPS = 3;  // groups of four warps that take tiles in turn
constexpr u32 WARPS = 16;  // warps of a block
constexpr u32 CONSUMER_REGISTERS = 128;  // registers of a thread that takes tokens
constexpr u32 PRODUCER_REGISTERS = 128;  // registers of a thread that turns queries
constexpr u32 BLOCK_REGISTERS = 128;  // registers of a thread before the middle and after it
constexpr u32 FAST_PAIRS = 24;  // pairs of channels that are rotated token by token; the others turn with the query
constexpr u32 SPLIT_TILE = 128;  // positions that share a turned query
constexpr u32 PASS_TILES = 8;  // pairs of 8-channel tiles that a warp rebuilds at a time
constexpr u32 SHARED_BYTES = 208192;  // shared memory that a launch asks for
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
constexpr u32 KEY_STEPS = RANK / 32;                 // k = 32 steps over components
constexpr u32 LANE_WORDS = KEY_ROW_WORDS / 4;        // words of one token's key codes that a lane unpacks: one a step
constexpr u32 VECTORS = HEAD_DIM / CHANNELS;         // value vectors of a head
constexpr u32 LANE_VECTORS = VECTORS / 8;            // of which a lane looks up so many for each of its tokens
constexpr u32 ANGLE_STRIDE = FAST_PAIRS + 4;         // pairs; spreads the rows over the banks
constexpr u32 TURN_WARPS = 2 * SETS;                 // warps of the producer that turn the query for one tile

// The product with the codes is one of integers. A column is a fixed-point number of 16 bits for every component, in two
// planes of bytes that are columns of their own: high times 256 plus low, times the column's scale. Codes are signed bytes
// 16 times what they stand for. So no product and no sum is rounded, and a column's error is 2^-16 of its largest number.
constexpr u32 TURNED_TILES = SETS * 2;               // 8-column tiles of a plane of turned queries: four functions a head
constexpr u32 FAST_TILES = FAST_PAIRS / 4;           // and of a plane of fast pairs: a column for every channel
constexpr u32 TURNED_STRIDE = TURNED_TILES * 256;    // bytes from 16 components of turned queries to the next 16
constexpr u32 FAST_STRIDE = FAST_TILES * 256;        // and of fast pairs
constexpr u32 SLOW_STRIDE = RANK * 16;               // bytes from eight channels of slow pairs to the next, as columns of components
constexpr float LARGEST_FIXED = 32512.0f;            // both planes of it fit into signed bytes
constexpr float CODE_FACTOR = 16.0f;

// Offsets in shared memory, in bytes. A codebook entry has a copy for every lane, so that lookups never meet in a bank.
constexpr u32 SHARED_SLOW = ENTRIES * 256;
constexpr u32 SHARED_FAST = SHARED_SLOW + SLOW_STEPS * 2 * SLOW_STRIDE;
constexpr u32 SHARED_SLOTS = SHARED_FAST + RANK / 16 * FAST_STRIDE;
// A slot has what the producer makes for one tile: columns of turned queries; the query as the fast pairs of either half
// meet it; of every function of a head, its score with the mean and the scale of its column. A warpgroup has two slots.
constexpr u32 FAST_QUERY_BYTES = SETS * FAST_PAIRS * 32;  // of half a tile
constexpr u32 SLOT_FAST_QUERIES = RANK / 16 * TURNED_STRIDE;
constexpr u32 SLOT_MEANS = SLOT_FAST_QUERIES + 2 * FAST_QUERY_BYTES;
constexpr u32 SLOT_SCALES = SLOT_MEANS + SETS * 64;
constexpr u32 SLOT_BYTES = SLOT_SCALES + SETS * 64;
constexpr u32 SHARED_RAW = SHARED_SLOTS;  // [channel][RANK]: the basis as it comes, before slots are filled
static_assert(HEAD_DIM * RANK <= 2 * WARPGROUPS * SLOT_BYTES, "the basis fits where the slots will be");
constexpr u32 SHARED_ANGLES = SHARED_SLOTS + 2 * WARPGROUPS * SLOT_BYTES;
constexpr u32 SHARED_FUNCTIONS = SHARED_ANGLES + STEP_TOKENS * ANGLE_STRIDE * 8;
constexpr u32 SHARED_COEFFICIENTS = SHARED_FUNCTIONS + SPLIT_TILE * 16;
constexpr u32 SHARED_FAST_SCALES = SHARED_COEFFICIENTS + SLOW_STEPS * 8 * 32;  // [fast pair](both means, both scales)
constexpr u32 SHARED_SLOW_MEANS = SHARED_FAST_SCALES + FAST_PAIRS * 16;        // [slow pair](both means)
constexpr u32 SHARED_COMPONENT_SCALES = SHARED_SLOW_MEANS + SLOW_STEPS * 64;
constexpr u32 SHARED_PLACE_SCALES = SHARED_COMPONENT_SCALES + RANK * 4;  // the same in the order of places along k
constexpr u32 SHARED_QUERY_PAIRS = SHARED_PLACE_SCALES + RANK * 4;
constexpr u32 SHARED_MAXIMA = SHARED_QUERY_PAIRS + SETS * 4 * PAIRS * 8;
// Of every warp that takes tokens, key codes and value indices of 16, on their way from global memory.
constexpr u32 CODE_BYTES = 16 * KEY_ROW_WORDS * 4;
constexpr u32 INDEX_BYTES = 16 * VECTORS;
constexpr u32 SHARED_CODES = SHARED_MAXIMA + 128;
constexpr u32 MIDDLE_BYTES = SHARED_CODES + WARPGROUPS * 4 * (CODE_BYTES + INDEX_BYTES);

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

// The lane and step that unpack a word of a row of key codes.
__device__ __forceinline__ u32 lane_of_word(u32 row_word) {
  return KEY_ROW_WORDS % 8 == 0 ? row_word % 8 / 2 : row_word % 4;
}
__device__ __forceinline__ u32 step_of_word(u32 row_word) {
  return KEY_ROW_WORDS % 8 == 0 ? row_word / 8 * 2 + row_word % 2 : row_word / 4;
}
// The word of a row that a lane unpacks for a step; of two steps they are neighbours where there are enough.
__device__ __forceinline__ u32 word_of_lane(u32 step, u32 lane) {
  return KEY_ROW_WORDS % 8 == 0 ? step / 2 * 8 + lane * 2 + step % 2 : step * 4 + lane;
}

// A word of key codes has eight fields, a code plus 8 each. With its top bit turned a field is the code in two's
// complement, and as the upper half of a byte it is 16 times the code: the even fields make one register of a product's
// operand, the odd ones that of 16 components on.
__device__ __forceinline__ u32 even_codes(u32 word) { return mask_and_flip(word << 4, 0xf0f0f0f0u, 0x80808080u); }
__device__ __forceinline__ u32 odd_codes(u32 word) { return mask_and_flip(word, 0xf0f0f0f0u, 0x80808080u); }

// Where component `i` of a word lies along k.
__device__ __forceinline__ u32 place_of_component(u32 row_word, u32 i) {
  return (step_of_word(row_word) * 2 + i % 2) * 16 + lane_of_word(row_word) * 4 + i / 2;
}

// Four numbers times `factor`, at most LARGEST_FIXED, as fixed point: a byte of each in both planes. Added to 1.5 * 2^23
// a number stands in the last bits of the sum; 128 more makes the lower byte a signed one, but for its top bit.
__device__ __forceinline__ void store_fixed(
    unsigned char* high_plane, u32 low_plane, const float (&numbers)[4], float factor) {
  u32 sums[4];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) sums[i] = __float_as_uint(numbers[i] * factor + 12583040.0f);
  const u32 first = __byte_perm(sums[0], sums[1], 0x5140u);
  const u32 second = __byte_perm(sums[2], sums[3], 0x5140u);
  *reinterpret_cast<u32*>(high_plane) = __byte_perm(first, second, 0x7632u);
  *reinterpret_cast<u32*>(high_plane + low_plane) = __byte_perm(first, second, 0x5410u) ^ 0x80808080u;
}

// What brings a column whose largest number is given to LARGEST_FIXED.
__device__ __forceinline__ float fixed_factor(float largest) { return LARGEST_FIXED / fmaxf(largest, 1e-30f); }
// What a sum over codes and such a column is times.
__device__ __forceinline__ float column_scale(float largest) {
  return fmaxf(largest, 1e-30f) / (LARGEST_FIXED * CODE_FACTOR);
}

// Puts a channel of the basis, which lies in SHARED_RAW, where products read it: of a fast pair, times all scales, as a
// column of the product with codes; of a slow pair as the integers they are, halves along k of the product that turns
// queries, which takes the scales afterwards. Four lanes share a channel. Loops stay loops, as this runs once: written out
// it takes longer to fetch than to run.
__device__ __forceinline__ void stage_channel(float mean, u32 place) {
  const u32 pair = place / 16 * 8 + place % 8;
  const u32 second = place % 16 / 8;
  const u32 first_word = threadIdx.x % 4 * LANE_WORDS;
  const uint2* basis = reinterpret_cast<const uint2*>(shared_memory + SHARED_RAW + place * RANK) + first_word;
  if (pair < FAST_PAIRS) {
    const float4* scales = reinterpret_cast<const float4*>(shared_memory + SHARED_COMPONENT_SCALES) + first_word * 2;
    float numbers[8];
    const auto scale_word = [&](u32 i) {
      const uint2 word = basis[i];
      const float4 low = scales[i * 2];
      const float4 high = scales[i * 2 + 1];
      const float factors[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (u32 k = 0; k < 8; ++k) numbers[k] = signed_byte(k < 4 ? word.x : word.y, k % 4) * factors[k];
    };
    float largest = 0.0f;
#pragma unroll 1
    for (u32 i = 0; i < LANE_WORDS; ++i) {
      scale_word(i);
#pragma unroll
      for (u32 k = 0; k < 8; ++k) largest = fmaxf(largest, fabsf(numbers[k]));
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float factor = fixed_factor(largest);
    unsigned char* column = shared_memory + SHARED_FAST + pair / 4 * 128 + (pair % 4 * 2 + second) * 16;
#pragma unroll 1
    for (u32 i = 0; i < LANE_WORDS; ++i) {
      scale_word(i);
      const u32 row_word = first_word + i;
      unsigned char* core = column + step_of_word(row_word) * 2 * FAST_STRIDE + lane_of_word(row_word) * 4;
#pragma unroll
      for (u32 odd = 0; odd < 2; ++odd) {
        const float own[4] = {numbers[odd], numbers[odd + 2], numbers[odd + 4], numbers[odd + 6]};
        store_fixed(core + odd * FAST_STRIDE, FAST_TILES * 128, own, factor);
      }
    }
    if (threadIdx.x % 4 != 0) return;
    float* fast_scales = reinterpret_cast<float*>(shared_memory + SHARED_FAST_SCALES) + pair * 4 + second;
    fast_scales[0] = mean;
    fast_scales[2] = column_scale(largest);
  } else {
    const u32 k = place - FAST_PAIRS * 2;
    unsigned char* row = shared_memory + SHARED_SLOW + k / 8 * SLOW_STRIDE + k % 8 * 2;
#pragma unroll 1
    for (u32 i = 0; i < LANE_WORDS; ++i) {
      const uint2 word = basis[i];
#pragma unroll
      for (u32 component = 0; component < 8; ++component) {
        // Here components are columns. Those whose places follow each other are two and two in neighbouring core
        // matrices: so a lane has four of them in the sums.
        const u32 along = place_of_component(first_word + i, component);
        const u32 column = along / 16 * 16 + along % 4 / 2 * 8 + along % 16 / 4 * 2 + along % 2;
        const float entry = signed_byte(component < 4 ? word.x : word.y, component % 4);
        *reinterpret_cast<u16*>(row + column * 16) = float_to_half(entry);
      }
    }
    if (threadIdx.x % 4 == 0) {
      reinterpret_cast<float*>(shared_memory + SHARED_SLOW_MEANS)[(pair - FAST_PAIRS) * 2 + second] = mean;
    }
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

  constexpr u32 row_chunks = RANK / 16;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < HEAD_DIM * row_chunks; i += THREADS) {
    const u32* row = cache + record[AT_KEY_BASIS] + channel_of(i / row_chunks) * RANK_WORDS;
    cp_async_16(shared_memory + SHARED_RAW + i * 16, row + i % row_chunks * 4);
  }
  cp_async_commit();
  // Of the rounds of the second loop over channels; fast pairs, whose work is longer, come last and then first.
  const auto place_of_round = [](u32 round) { return ((threadIdx.x + round * THREADS) / 4 + FAST_PAIRS * 2) % HEAD_DIM; };
  float means[channel_rounds];
#pragma unroll
  for (u32 round = 0; round < channel_rounds; ++round) {
    const u32 channel = channel_of(place_of_round(round));
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

  float largest_query = 0.0f;
#pragma unroll
  for (u32 round = 0; round < query_rounds; ++round) {
    largest_query = fmaxf(largest_query, fmaxf(fabsf(queries[round].x), fabsf(queries[round].y)));
  }
  float* maxima = reinterpret_cast<float*>(shared_memory + SHARED_MAXIMA);
  largest_query = warp_largest(largest_query);
  if (lane_id() == 0) maxima[threadIdx.x / 32] = largest_query;

  float* own_scales = reinterpret_cast<float*>(shared_memory + SHARED_COMPONENT_SCALES);
  float* place_scales = reinterpret_cast<float*>(shared_memory + SHARED_PLACE_SCALES);
#pragma unroll
  for (u32 round = 0; round < component_rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    if (i >= RANK) break;
    own_scales[i] = scales[round];
    place_scales[place_of_component(i / 8, i % 8)] = scales[round];
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
    if (i < SPLIT_TILE * 4) own_functions[i] = functions[round];
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
  cp_async_wait<0>();
  __syncthreads();  // basis, scales and maxima are in place
  const u32 query_exponent = scaling_exponent(warp_largest(maxima[lane_id() % WARPS]));
  float2* own_queries = reinterpret_cast<float2*>(shared_memory + SHARED_QUERY_PAIRS);
#pragma unroll
  for (u32 round = 0; round < query_rounds; ++round) {
    const u32 i = threadIdx.x + round * THREADS;
    const float factor = power_of_two(query_exponent);
    if (i < SETS * 4 * PAIRS) own_queries[i] = make_float2(queries[round].x * factor, queries[round].y * factor);
  }
#pragma unroll
  for (u32 round = 0; round < channel_rounds; ++round) {
    if (threadIdx.x + round * THREADS < HEAD_DIM * 4) stage_channel(means[round], place_of_round(round));
  }
  publish_shared();
  __syncthreads();  // the basis is where products read it
  return SCORE_SCALE * power_of_two(254 - query_exponent);
}

// A warpgroup that takes tokens waits at barrier `filled` for the slot of its next tile, and arrives at `emptied` when it
// has read a slot; with it the warps of the producer whose tile it is.
constexpr u32 HANDOVER_THREADS = 128 + TURN_WARPS * 32;
__device__ __forceinline__ u32 filled(u32 group, u32 parity) { return 1 + group * 2 + parity; }
__device__ __forceinline__ u32 emptied(u32 group, u32 parity) { return 1 + (WARPGROUPS + group) * 2 + parity; }
__device__ __forceinline__ u32 slot_of(u32 group, u32 parity) { return SHARED_SLOTS + (group * 2 + parity) * SLOT_BYTES; }
constexpr u32 MIDDLE_BARRIER = 1 + 4 * WARPGROUPS;  // of all threads, when the middle is done

// The slow channels of the turned query, as operands of their product with the basis: row lane / 4 is query head lane / 8 of
// `set` as function lane / 4 % 2 takes it (two more in every second warp), and eight rows on is what a half leaves of it.
// Returns this lane's part of that row's score with the mean.
__device__ __forceinline__ float turn_slow_pairs(u32 (&operands)[SLOW_STEPS][4], const float2* angles, u32 set, u32 upper) {
  const u32 head = set * 4 + lane_id() / 8;
  const u32 first_pair = lane_id() % 4 * 2;
  const float4* queries = reinterpret_cast<const float4*>(shared_memory + SHARED_QUERY_PAIRS) + (head * PAIRS + FAST_PAIRS) / 2;
  const float2* coefficients = reinterpret_cast<const float2*>(shared_memory + SHARED_COEFFICIENTS) + lane_id() / 4 % 2 * 2 + upper;
  const float4* means = reinterpret_cast<const float4*>(shared_memory + SHARED_SLOW_MEANS);
  float of_mean = 0.0f;
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
    const float4 mean = means[pair / 2];
    of_mean += firsts.x * mean.x + seconds.x * mean.y + (firsts.y * mean.z + seconds.y * mean.w);
  }
  return of_mean;
}

// The fast pairs of the turned query, for keys that are turned within half a tile: `angles` are those of the halves. The
// warps of the tile share the pairs of all heads.
__device__ __forceinline__ void turn_fast_pairs(const float2* const (&angles)[2], u32 fast_queries) {
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
    // [four heads][four pairs][two heads][pair][head], heads in the order of the lane that takes the pair.
    const u32 order = (head ^ pair) % 4;
    const u32 at = ((head / 4 * FAST_TILES + pair / 4) * 2 + order / 2) * 8 + pair % 4 * 2 + order % 2;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      float2* own = reinterpret_cast<float2*>(shared_memory + fast_queries + half * FAST_QUERY_BYTES);
      own[at] = rotate_pair(query.x, query.y, make_float2(turns[i][half].x, -turns[i][half].y));
    }
  }
}

// Half of the components of a turned query, from the sums of halves and of what these leave; returns the largest.
__device__ __forceinline__ float scale_components(float (&numbers)[RANK / 8], const float (&sums)[RANK / 4], const float4* scales) {
  float largest = 0.0f;
#pragma unroll
  for (u32 i = 0; i < RANK / 32; ++i) {
    const float* own = sums + i * 8;
    const float4 scale = scales[i * 4 + lane_id() % 4];
    numbers[i * 4] = (own[0] + own[2]) * scale.x;
    numbers[i * 4 + 1] = (own[1] + own[3]) * scale.y;
    numbers[i * 4 + 2] = (own[4] + own[6]) * scale.z;
    numbers[i * 4 + 3] = (own[5] + own[7]) * scale.w;
#pragma unroll
    for (u32 k = 0; k < 4; ++k) largest = fmaxf(largest, fabsf(numbers[i * 4 + k]));
  }
  return largest;
}
__device__ __forceinline__ void store_components(unsigned char* columns, const float (&numbers)[RANK / 8], float factor) {
#pragma unroll
  for (u32 i = 0; i < RANK / 32; ++i) {
    const float four[4] = {numbers[i * 4], numbers[i * 4 + 1], numbers[i * 4 + 2], numbers[i * 4 + 3]};
    store_fixed(columns + i * TURNED_STRIDE, TURNED_TILES * 128, four, factor);
  }
}

// The producer: products of the slow channels of the turned query with the basis, which become columns of the product with
// the codes of the warpgroup whose tile it is. All four warps take part in a product: two turn four query heads for a tile,
// the others the next four, or the next tile.
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
    float of_mean = turn_slow_pairs(operands, angles_at(base), set, upper);
    float numbers[2][RANK / 8];
    float largest = 0.0f;
    const float4* scales = reinterpret_cast<const float4*>(shared_memory + SHARED_PLACE_SCALES);
    // One half of the components after the other, as registers do not hold the sums of both.
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      float sums[RANK / 4];
      begin_products();
#pragma unroll
      for (u32 step = 0; step < SLOW_STEPS; ++step) {
        issue_products(sums, operands[step], advance(basis, step * 2 * SLOW_STRIDE + half * (SLOW_STRIDE / 2)), step > 0);
      }
      commit_products();
      wait_products(sums);
      largest = fmaxf(largest, scale_components(numbers[half], sums, scales + half * (RANK / 8)));
    }
    of_mean += __shfl_xor_sync(0xffffffffu, of_mean, 1);
    of_mean += __shfl_xor_sync(0xffffffffu, of_mean, 2);
    if (tile >= tiles) break;
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float factor = fixed_factor(largest);

    const u32 group = tile % WARPGROUPS;
    const u32 parity = tile / WARPGROUPS % 2;
    const u32 slot = slot_of(group, parity);
    if (tile >= 2 * WARPGROUPS) named_barrier(emptied(group, parity), HANDOVER_THREADS);  // its last tile is read
    unsigned char* columns = shared_memory + slot + (set * 2 + upper) * 128 + lane_id() * 4;
    store_components(columns, numbers[0], factor);
    store_components(columns + RANK / 32 * TURNED_STRIDE, numbers[1], factor);
    if (lane_id() % 4 == 0) {
      const u32 column = (set * 4 + lane_id() / 8) * 4 + lane_id() / 4 % 2 + upper * 2;
      reinterpret_cast<float*>(shared_memory + slot + SLOT_MEANS)[column] = of_mean;
      reinterpret_cast<float*>(shared_memory + slot + SLOT_SCALES)[column] = column_scale(largest);
    }
    const float2* const halves[2] = {angles_at(base), angles_at(base + STEP_TOKENS)};
    turn_fast_pairs(halves, slot + SLOT_FAST_QUERIES);
    publish_shared();
    named_arrive(filled(group, parity), HANDOVER_THREADS);
  }
}

// What one warp carries through the middle, of query heads lane % 4 + 4 * set: the exponent that weights are relative to,
// this lane's sum of weights, and the unnormalised output; channels in the codebook's scale.
struct Middle {
  float reference[SETS];
  float weight[SETS];
  float output[SETS][LANE_VECTORS][4];
};

// 16 tokens as their values are added: value indices of the lane's vectors for tokens 2t, 2t + 1, 2t + 8 and 2t + 9, with
// t = lane % 4, and weights of query head lane / 8 for 2t and 2t + 1 (then + 8).
struct Weighted {
  u32 indices[4];
  u32 weights[SETS][2];
};

__device__ __forceinline__ u32 load_indices(const unsigned char* row) {
  if (LANE_VECTORS == 4) return reinterpret_cast<const u32*>(row)[lane_id() / 4];
  return reinterpret_cast<const u16*>(row)[lane_id() / 4];
}

// Adds weights times values. A product takes the two channels of a pair as neighbours along k, and has a column for each
// of them and query head, whose weight stands where k is that channel: so entries go in as they lie in the codebook.
__device__ __forceinline__ void add_values(Middle& state, const Weighted& tokens) {
  const bool second = lane_id() / 4 % 2 != 0;
  const u32 even_token = second ? 0x1044u : 0x4410u;
  const u32 odd_token = second ? 0x3244u : 0x4432u;
  u32 weights[SETS][2][2];
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      weights[set][0][i] = __byte_perm(tokens.weights[set][i], 0u, even_token);
      weights[set][1][i] = __byte_perm(tokens.weights[set][i], 0u, odd_token);
    }
  }
  const u32 copy = lane_id() * 8;
#pragma unroll
  for (u32 vector = 0; vector < LANE_VECTORS; ++vector) {
    // The index times 256 plus the place of the lane's copy.
    const auto entry = [&](u32 token) {
      return *reinterpret_cast<const uint2*>(shared_memory + __byte_perm(tokens.indices[token], copy, 0x5504u + vector * 16));
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
// as `tokens` has them.
__device__ __forceinline__ void take_scores(Middle& state, Weighted& tokens, const float (&exponents)[SETS][2]) {
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
      tokens.weights[set][upper] = transpose_8x8(pack_half2(weight, weight));
    }
  }
}

// What both planes of a column sum to; exact, as 16 bits times codes of 8 bits over 256 components leave room.
__device__ __forceinline__ i32 join_planes(i32 high, i32 low) { return high * 256 + low; }

// What slow pairs give to the scores of query heads lane % 4 + 4 * set with 16 tokens: their four functions at the tokens'
// places in the tile, of which `place` is that of token lane / 4.
__device__ __forceinline__ void score_slow_pairs(
    float (&scores)[SETS][2], const i32 (&sums)[TURNED_TILES * 8], u32 slot, u32 place) {
  const float4* functions = reinterpret_cast<const float4*>(shared_memory + SHARED_FUNCTIONS) + place;
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    const u32 head = set * 4 + lane_id() % 4;
    const float4 mean = reinterpret_cast<const float4*>(shared_memory + slot + SLOT_MEANS)[head];
    const float4 scale = reinterpret_cast<const float4*>(shared_memory + slot + SLOT_SCALES)[head];
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const float4 function = functions[upper * 8];
      const auto column = [&](u32 i) {
        const u32 at = (set * 2 + i / 2) * 4 + upper * 2 + i % 2;
        return static_cast<float>(join_planes(sums[at], sums[TURNED_TILES * 4 + at]));
      };
      scores[set][upper] = (column(0) * scale.x + mean.x) * function.x;
      scores[set][upper] += (column(1) * scale.y + mean.y) * function.y;
      scores[set][upper] += (column(2) * scale.z + mean.z) * function.z;
      scores[set][upper] += (column(3) * scale.w + mean.w) * function.w;
    }
  }
}

// Adds what fast pairs give: their keys are rebuilt and turned within the half tile, of which `place` is that of token
// lane / 4. A lane has a quarter of the pairs for all query heads, which come in the order of what sets a head apart from
// its own, lane % 4; at the end it keeps the scores of that one.
__device__ __forceinline__ void add_fast_pairs(
    float (&scores)[SETS][2], const i32 (&columns)[FAST_TILES * 8], u32 fast_queries, u32 place) {
  const float2* angles = reinterpret_cast<const float2*>(shared_memory + SHARED_ANGLES) + place % STEP_TOKENS * ANGLE_STRIDE;
  const float4* scales = reinterpret_cast<const float4*>(shared_memory + SHARED_FAST_SCALES);
  const float4* queries = reinterpret_cast<const float4*>(shared_memory + fast_queries);
  float sums[SETS * 4][2] = {};
#pragma unroll
  for (u32 tile = 0; tile < FAST_TILES; ++tile) {
    const u32 pair = tile * 4 + lane_id() % 4;
    const float4 scale = scales[pair];
    float2 turned[2];
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32 at = tile * 4 + upper * 2;
      const i32 first = join_planes(columns[at], columns[FAST_TILES * 4 + at]);
      const i32 second = join_planes(columns[at + 1], columns[FAST_TILES * 4 + at + 1]);
      const float x = static_cast<float>(first) * scale.z + scale.x;
      const float y = static_cast<float>(second) * scale.w + scale.y;
      turned[upper] = rotate_pair(x, y, angles[upper * 8 * ANGLE_STRIDE + pair]);
    }
#pragma unroll
    for (u32 two = 0; two < SETS * 2; ++two) {
      const float4 query = queries[((two / 2 * FAST_TILES + tile) * 2 + two % 2) * 4 + lane_id() % 4];
#pragma unroll
      for (u32 upper = 0; upper < 2; ++upper) {
        sums[two * 2][upper] += query.x * turned[upper].x;
        sums[two * 2][upper] += query.y * turned[upper].y;
        sums[two * 2 + 1][upper] += query.z * turned[upper].x;
        sums[two * 2 + 1][upper] += query.w * turned[upper].y;
      }
    }
  }
  // The lanes of a token add up: each gives away the sums of two heads for those of its own two, then of one.
#pragma unroll
  for (u32 i = 0; i < SETS * 2; ++i) {
    const u32 set = i / 2;
    const u32 upper = i % 2;
    float two[2];
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
      two[k] = sums[set * 4 + k][upper] + __shfl_xor_sync(0xffffffffu, sums[set * 4 + k + 2][upper], 2);
    }
    scores[set][upper] += two[0] + __shfl_xor_sync(0xffffffffu, two[1], 1);
  }
}

// The words of a row of key codes that this lane unpacks.
__device__ __forceinline__ void load_words(u32 (&words)[KEY_STEPS], const u32* row) {
  if (KEY_ROW_WORDS % 8 == 0) {
#pragma unroll
    for (u32 step = 0; step < KEY_STEPS; step += 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(row + word_of_lane(step, lane_id() % 4));
      words[step] = two.x;
      words[step + 1] = two.y;
    }
  } else {
#pragma unroll
    for (u32 step = 0; step < KEY_STEPS; ++step) words[step] = row[word_of_lane(step, lane_id() % 4)];
  }
}

// Takes every WARPGROUPS-th tile of the middle, 64 tokens at a time, of which the next are on their way meanwhile. While a
// warp waits for its products the other warpgroups score theirs.
__device__ __forceinline__ void attend_tiles(
    Middle& state, const u32* record, const u32* cache, float scale, u32 kv_head, u32 begin, u32 end, u32 group) {
  const u32 sinks = record[AT_SINK_TOKENS];
  const u32 row = threadIdx.x % 128 / 32 * 16 + lane_id() / 4;
  const u32 warp_row = threadIdx.x % 128 / 32 * 16;
  const MatrixTiles fast_columns = matrix_tiles(shared_memory + SHARED_FAST, FAST_STRIDE, 128);
  const uint4* key_codes = reinterpret_cast<const uint4*>(cache + record[AT_KEY_CODES]);
  const uint4* value_codes = reinterpret_cast<const uint4*>(cache + record[AT_VALUE_CODES]) + kv_head * (VECTORS / 16);
  unsigned char* own_codes = shared_memory + SHARED_CODES + threadIdx.x / 32 * (CODE_BYTES + INDEX_BYTES);
  unsigned char* own_indices = own_codes + CODE_BYTES;
  // Copies of the warp's 16 rows. What lies before or past the middle is any other part of it, as its tokens are hidden.
  const int middle_tokens = static_cast<int>(record[AT_MIDDLE_TOKENS]);
  const auto copy_codes = [&](u32 position) {
    constexpr u32 chunks = KEY_ROW_WORDS * 4;  // of 16 bytes; rows follow each other
    const int first_chunk = static_cast<int>(position + warp_row - sinks) * static_cast<int>(KEY_ROW_WORDS / 4);
#pragma unroll
    for (u32 i = 0; i < (chunks + 31) / 32; ++i) {
      const u32 own = lane_id() + i * 32;
      if (chunks % 32 != 0 && own >= chunks) break;
      const int last_chunk = middle_tokens * static_cast<int>(KEY_ROW_WORDS / 4) - 1;
      const int chunk = clamp(first_chunk + static_cast<int>(own), 0, last_chunk);
      cp_async_16(own_codes + own * 16, key_codes + chunk);
    }
    cp_async_commit();
  };
  const auto copy_indices = [&](u32 position) {
    constexpr u32 row_chunks = VECTORS / 16;
    const int token = clamp(static_cast<int>(position + warp_row + lane_id() / row_chunks - sinks), 0, middle_tokens - 1);
    if (lane_id() < 16 * row_chunks) {
      const uint4* row = value_codes + token * static_cast<int>(VALUE_ROW_WORDS / 4);
      cp_async_16(own_indices + lane_id() * 16, row + lane_id() % row_chunks);
    }
    cp_async_commit();
  };

  const auto after = [](u32 first) {
    return first + STEP_TOKENS + (first % SPLIT_TILE == 0 ? 0 : SPLIT_TILE * (WARPGROUPS - 1));
  };
  u32 parity = 1;  // of the slot that the last products read
  u32 first = (begin / SPLIT_TILE + group) * SPLIT_TILE;
  if (first < end) copy_codes(first);
  for (; first < end; first = after(first)) {
    copy_indices(first);
    cp_async_wait<1>();  // the codes are there, if not the indices
    __syncwarp();
    u32 fields[KEY_STEPS][4];
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      u32 words[KEY_STEPS];
      load_words(words, reinterpret_cast<const u32*>(own_codes) + (lane_id() / 4 + upper * 8) * KEY_ROW_WORDS);
#pragma unroll
      for (u32 step = 0; step < KEY_STEPS; ++step) {
        fields[step][upper] = even_codes(words[step]);
        fields[step][upper + 2] = odd_codes(words[step]);
      }
    }
    settle(fields);
    if (first % SPLIT_TILE == 0) {
      parity ^= 1u;
      named_barrier(filled(group, parity), HANDOVER_THREADS);  // the columns are there
    }
    const u32 slot = slot_of(group, parity);
    const MatrixTiles turned_columns = matrix_tiles(shared_memory + slot, TURNED_STRIDE, 128);
    i32 turned_sums[TURNED_TILES * 8];
    i32 fast_sums[FAST_TILES * 8];
    begin_products();
#pragma unroll
    for (u32 step = 0; step < KEY_STEPS; ++step) {
      issue_products(turned_sums, fields[step], advance(turned_columns, step * 2 * TURNED_STRIDE), step > 0);
    }
#pragma unroll
    for (u32 step = 0; step < KEY_STEPS; ++step) {
      issue_products(fast_sums, fields[step], advance(fast_columns, step * 2 * FAST_STRIDE), step > 0);
    }
    commit_products();
    __syncwarp();  // all lanes have their codes; and what reads shared memory below does not stand between the products
    copy_codes(after(first));
    wait_products(turned_sums);
    wait_products(fast_sums);

    float scores[SETS][2];
    score_slow_pairs(scores, turned_sums, slot, first % SPLIT_TILE + row);
    const u32 half = first % SPLIT_TILE / STEP_TOKENS;
    add_fast_pairs(scores, fast_sums, slot + SLOT_FAST_QUERIES + half * FAST_QUERY_BYTES, row);
    // The producer waits for this where it has another tile for the slot.
    if (half == 1 && first + STEP_TOKENS + SPLIT_TILE * (2 * WARPGROUPS - 1) < end) {
      named_arrive(emptied(group, parity), HANDOVER_THREADS);
    }
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32 position = first + row + upper * 8;
      const bool seen = position >= begin && position < end;
#pragma unroll
      for (u32 set = 0; set < SETS; ++set) {
        scores[set][upper] = seen ? score_exponent(scores[set][upper] * scale) : HIDDEN;
      }
    }
    Weighted tokens;
    take_scores(state, tokens, scores);
    cp_async_wait<1>();  // the indices are there, if not the next codes
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      tokens.indices[i] = load_indices(own_indices + (lane_id() % 4 * 2 + i % 2 + i / 2 * 8) * VECTORS);
    }
    __syncwarp();  // all lanes have their indices
    add_values(state, tokens);
  }
  cp_async_wait<0>();
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

extern "C" __global__ void __launch_bounds__(512, 1) attend(
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
