// attend: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attend of scheme tilt-fast for llama-3.1-8b. CUDA for sm_90a on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: products = 1, tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 PAIRS = 64;  // pairs of channels of a head; those past the rotary ones have angle zero
constexpr u32 HEADS = 32;  // query heads
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 GROUP_SIZE = 4;  // query heads that share a KV head
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 TILE = 64;  // positions of a tile, whose keys are rotated together
constexpr u32 RANGE_BLOCK = 512;  // positions that share the steps of components; 0 for all
constexpr u32 GROUPS = 8;  // groups of components of a KV head
constexpr u32 ROW_POSITIONS = 64;  // positions of a row of codes
constexpr u32 TILE_ROW_WORDS = 7424;  // words of a row of codes, all KV heads
constexpr u32 HADAMARD_BLOCK = 128;  // channels of one Hadamard block
constexpr float HADAMARD_SCALE = 0.0883883461f;  // 1 / sqrt(HADAMARD_BLOCK)
constexpr u32 STREAM_WORDS = 32;  // words of one coded stream vector
constexpr u32 NORM_WORDS = 4;  // words of one stream token's norms, two each
constexpr u32 SINKS = 4;  // exact tokens at the start
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 VALUE_LEVELS = 256;  // offset in the tables: values of the codes of values, over their scales
constexpr u32 TILE_ANGLES = 8452;  // offset in the tables: [TILE][PAIRS](cosine, sine) of the place in a tile, position % TILE - (TILE - 1) / 2
constexpr u32 COARSE_ANGLES = 16644;  // offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE
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
constexpr u32 AT_TILE_CODES = 43;  // in the record, first word of tileCodes: [rows of 64 positions][8 KV heads]: planes of key fields, 2-bit value codes, f16 norms
constexpr u32 AT_KEY_STEPS = 44;  // in the record, first word of keySteps: f16 [range blocks][8 KV heads][128] components, 128 times step and scale of the basis column
constexpr u32 AT_KEY_BASIS = 16;  // in the record, first word of keyBasis: i8 [8 KV heads][128] components[128 channels, in the order of pairs]
constexpr u32 AT_KEY_MEAN = 18;  // in the record, first word of keyMean: f16 [8 KV heads][128] channels, in the order of pairs, before RoPE
constexpr u32 AT_KEY_FIELDS = 45;  // in the record, first word of keyFields: u32 [8 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
constexpr u32 AT_VALUE_GAINS = 46;  // in the record, first word of valueGains: f16 [8 KV heads][128], after Hadamard
constexpr u32 AT_STREAM_KEY_CODES = 22;  // in the record, first word of streamKeyCodes: 8-bit fields [stream][8 KV heads][128], after RoPE and Hadamard
constexpr u32 AT_STREAM_KEY_NORMS = 23;  // in the record, first word of streamKeyNorms: f16 [stream][8 KV heads]
constexpr u32 AT_STREAM_VALUE_CODES = 24;  // in the record, first word of streamValueCodes: 8-bit fields [stream][8 KV heads][128], after Hadamard
constexpr u32 AT_STREAM_VALUE_NORMS = 25;  // in the record, first word of streamValueNorms: f16 [stream][8 KV heads]
constexpr u32 AT_KEY_WEIGHTS = 27;  // in the record, first word of keyWeights: f16 [1024 channels], above 0: keys are coded times this
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 WARPS = 8;  // warps of a block
constexpr u32 PASS_TILES = 4;  // pairs of 8-channel tiles that a warp rebuilds at a time
constexpr u32 SHARED_BYTES = 232448;  // shared memory that a launch asks for
constexpr u32 WORK_ITEM_WORDS = 6;  // words of a work item
constexpr u32 PARTIAL_WORDS = 520;  // numbers of one partial result
constexpr u32 CHUNK_UNIT = 64;  // a split gets a multiple of so many tokens
constexpr float SCORE_SCALE = 0.127517432f;  // what q.k is multiplied with first

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

// Codes meet integer products four to a word, as bytes of which one field is left: an unsigned number, its code times 2^place,
// and what a place multiplies is divided out of the basis, or out of the output. Eight columns of a product hold four query
// heads, each as two bytes of a 16-bit number: so queries have 16 bits and weights 15.
constexpr u32 SETS = (GROUP_SIZE + 3) / 4;          // of four query heads; the middle is read once for each
constexpr u32 GROUP_TILES = 4;                      // that a warp takes at most at a time: with four heads, 16 rows of a product
constexpr u32 CHANNEL_STEPS = HEAD_DIM / 16;        // k = 16 steps over channels
constexpr u32 MOST_STEPS = (GROUPS + 1) / 2;        // k = 32 steps over components, two groups of them each
constexpr u32 VALUE_WORDS = HEAD_DIM / 32;          // of a lane, for 16 tokens: four channels of four tokens each
constexpr u32 VALUE_TILES = HEAD_DIM / 16;          // m = 16 tiles of output channels
constexpr float LARGEST_FIXED = 32000.0f;           // of a turned query: both of its bytes are signed
constexpr float FIXED_ZERO = 12582912.0f;           // 1.5 * 2^23: a float whose last bits are those of an integer added to it
constexpr u32 FIXED_ZERO_BITS = 0x4b400000u;
constexpr float WEIGHT_ZERO = 32768.0f;             // to which weights are added, so that their integer part is two bytes

// The turned basis in shared memory, as products take columns: 64 for the mean, one a token of a tile, then 16 for every slot.
constexpr u32 MEAN_COLUMNS = TILE;
__device__ __forceinline__ constexpr u32 basis_columns(u32 steps) { return MEAN_COLUMNS + steps * 32; }
__device__ __forceinline__ constexpr u32 basis_bytes(u32 steps) { return basis_columns(steps) * HEAD_DIM * 2; }

// What a warp has on its way, in bytes: angles of a group's tiles (64 more a tile, so that two of them meet in no bank), steps
// of its components, then every tile as it lies in a row.
constexpr u32 ANGLE_BYTES = PAIRS * 8 + 64;
constexpr u32 STEP_BYTES = HEAD_DIM * 2;
constexpr u32 NORM_BYTES = TILE * 2;
constexpr u32 VALUE_BYTES = HEAD_DIM * 16;
constexpr u32 NIBBLE_BYTES = TILE * 8;              // of a tile's nibble plane; a byte plane has twice as many
constexpr u32 STAGE_STEPS = GROUP_TILES * ANGLE_BYTES;
constexpr u32 STAGE_TILES = STAGE_STEPS + STEP_BYTES;
__device__ __forceinline__ u32 tile_bytes(u32 nibbles) { return nibbles * NIBBLE_BYTES + VALUE_BYTES + NORM_BYTES; }
__device__ __forceinline__ u32 stage_bytes(u32 tiles, u32 nibbles) { return STAGE_TILES + tiles * tile_bytes(nibbles); }

// Offsets in shared memory, in bytes. While the middle is read: the turned basis and the stages of the warps, which both are
// as long as the widths of the head make them; at the end the query pairs of all sets, and for every slot its mask.
constexpr u32 QUERY_PAIR_BYTES = HEAD_DIM * 16;     // of a set: four heads of float32
constexpr u32 SLOT_WORDS = 5;                       // that say what a slot of the keys is
constexpr u32 SHARED_FIELDS = (SHARED_BYTES - GROUPS * SLOT_WORDS * 4) / 16 * 16;
constexpr u32 SHARED_QUERY_PAIRS = (SHARED_FIELDS - SETS * QUERY_PAIR_BYTES - SETS * 32) / 16 * 16;

// Exact tokens come while the first codes are on their way: their query and slots lie before these.
constexpr u32 CHANNELS = 8;                                // of a vector, as the other segments take their values
constexpr u32 VECTORS = HEAD_DIM / CHANNELS;
constexpr u32 VECTOR_STEPS = (VECTORS + 7) / 8;            // eight vectors at a time, one for each lane / 4
constexpr u32 OUTPUT_TILES = VECTOR_STEPS * CHANNELS / 2;  // m = 16 tiles of output channels
constexpr u32 HEAD_TILES = (GROUP_SIZE + 7) / 8;           // n = 8 tiles of query heads in their output product
constexpr u32 QUERY_STRIDE = HEAD_DIM + 8;                 // halves
constexpr u32 QUERY_BYTES = 16 * QUERY_STRIDE * 2;
constexpr u32 SLOT_BYTES = GROUP_SIZE * (HEAD_DIM + 2) * 4;
constexpr u32 EXACT_TILES = (SINKS + 15) / 16 + (WINDOW + 15) / 16;
constexpr u32 EXACT_SLOTS = EXACT_TILES < WARPS ? EXACT_TILES : WARPS;
constexpr u32 SHARED_QUERY = (SHARED_QUERY_PAIRS - QUERY_BYTES) / 16 * 16;
constexpr u32 FIRST_EXACT_SLOT = SHARED_QUERY / SLOT_BYTES - EXACT_SLOTS;
constexpr u32 MIDDLE_BYTES = FIRST_EXACT_SLOT * SLOT_BYTES / 16 * 16;  // what basis and stages have
// After the middle: slots of what each warp has found in it and in the stream, then the transformed query as two halves.
constexpr u32 SHARED_TURNED_QUERY = (2 * WARPS * SLOT_BYTES + 15) / 16 * 16;
constexpr u32 SHARED_SCRATCH = SHARED_TURNED_QUERY + 2 * QUERY_BYTES;
static_assert(SHARED_SCRATCH + GROUP_SIZE * HEAD_DIM * 4 <= MIDDLE_BYTES, "what comes after the middle has room");
static_assert(TILE == ROW_POSITIONS, "a row of codes is a tile");

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

// A warp has channels lane + 32 * i of a query head.
constexpr u32 LANE_CHANNELS = HEAD_DIM / 32;

// Hadamard transform (Sylvester order) of a head, in blocks of HADAMARD_BLOCK channels.
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
#pragma unroll
  for (u32 i = 0; i < LANE_CHANNELS; ++i) values[i] *= HADAMARD_SCALE;
}

// A head's output, unnormalised, with the maximum and the weight sum of what it is summed over.
struct HeadSum {
  float values[LANE_CHANNELS];
  float largest, weight;
};

__device__ __forceinline__ void reset_head(HeadSum& sum) {
#pragma unroll
  for (u32 i = 0; i < LANE_CHANNELS; ++i) sum.values[i] = 0.0f;
  sum.largest = MASKED;
  sum.weight = 0.0f;
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
    float top = sum.largest;
#pragma unroll
    for (u32 k = 0; k < batch; ++k) {
      const bool there = first + k < count;
      const float* row = rows + (there ? first + k : first) * stride;
#pragma unroll
      for (u32 i = 0; i < LANE_CHANNELS; ++i) values[k][i] = load(row + i * 32 + lane_id());
      largest[k] = there ? load(row + HEAD_DIM) : MASKED;
      weight[k] = load(row + HEAD_DIM + 1);
      top = fmaxf(top, largest[k]);
    }
    const float own = exp2f(sum.largest - top);
    sum.largest = top;
    sum.weight *= own;
#pragma unroll
    for (u32 i = 0; i < LANE_CHANNELS; ++i) sum.values[i] *= own;
#pragma unroll
    for (u32 k = 0; k < batch; ++k) {
      const float its = first + k < count ? exp2f(largest[k] - top) : 0.0f;
      sum.weight += weight[k] * its;
#pragma unroll
      for (u32 i = 0; i < LANE_CHANNELS; ++i) sum.values[i] += values[k][i] * its;
    }
  }
}

// What the slots of the block have of a head. What is in Hadamard space is turned back before exact tokens are added.
__device__ __forceinline__ HeadSum merge_slots(u32 head, u32 middle_slots, u32 stream_slots, u32 exact_slots) {
  const float* slots = reinterpret_cast<const float*>(shared_memory) + head * (HEAD_DIM + 2);
  constexpr u32 stride = SLOT_BYTES / 4;
  const auto load = [](const float* place) { return *place; };
  HeadSum sum;
  reset_head(sum);
  // A loop, so that one text is read for all parts: what is executed once waits for its instructions.
#pragma unroll 1
  for (u32 part = 0; part < 3; ++part) {
    const bool is_exact = part == 2;
    if (is_exact && middle_slots + stream_slots > 0) turn_channels(sum.values);
    const u32 first = is_exact ? FIRST_EXACT_SLOT : part * WARPS;
    add_rows(sum, slots + first * stride, stride, is_exact ? exact_slots : part == 0 ? middle_slots : stream_slots, load);
  }
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

// Where the fields of a KV head lie, as every block reads it anew: widths are the calibration's, not the text's.
struct Fields {
  u32 nibbles;  // planes of 4 bits that the head has in a row
  u32 slots;    // groups that have bits, in the order of their places
  u32 first;    // word of the head in a row of codes
};

// Where the parts of a sequence begin that the middle takes, asked for together: each alone would be waited for.
struct Parts {
  const u32 *fields, *steps, *basis, *mean, *weights, *codes;
};
__device__ __forceinline__ Parts parts_of(const u32* record, const u32* cache) {
  return Parts{cache + record[AT_KEY_FIELDS], cache + record[AT_KEY_STEPS],   cache + record[AT_KEY_BASIS],
               cache + record[AT_KEY_MEAN],   cache + record[AT_KEY_WEIGHTS], cache + record[AT_TILE_CODES]};
}

// What a slot is: the group it belongs to; the mask of its field once the codes are rotated right by `turn`, which puts it to bit
// `place`; and whether its plane is another one than that of the slot before it.
struct Slot {
  u32 mask, group, place, turn, fresh;
};
static_assert(sizeof(Slot) == SLOT_WORDS * 4, "slots have the place that they need");
__device__ __forceinline__ const Slot& slot_at(u32 slot) { return reinterpret_cast<const Slot*>(shared_memory + SHARED_FIELDS)[slot]; }

// Bits for which a condition of a lane holds: the compiler knows that a ballot is the same in all lanes, so that what depends
// on a bit is a plain branch.
__device__ __forceinline__ u32 lanes_where(bool condition) { return __ballot_sync(0xffffffffu, condition); }

// Puts the slots of a head into shared memory; a barrier is to follow. All components share the 16 bits of a turned query, so
// a field goes to the place at which its steps, as they are at `position`, come closest to those of the others: then no
// component is left with a few of these bits.
__device__ __forceinline__ Fields stage_fields(const Parts& parts, u32 kv_head, u32 position) {
  const u32* entries = parts.fields + kv_head * (GROUPS + 2);
  const u32 block = RANGE_BLOCK == 0 ? 0 : position / (RANGE_BLOCK == 0 ? 1 : RANGE_BLOCK);
  const u32* steps = parts.steps + block * (WIDTH / 2) + (kv_head * HEAD_DIM + min(threadIdx.x, GROUPS - 1) * 16) / 2;
  u32 step_pairs[8];
#pragma unroll
  for (u32 i = 0; i < 8; ++i) step_pairs[i] = steps[i];
  Fields fields{entries[GROUPS], 0u, entries[GROUPS + 1]};
  // Every thread looks at all of them: the order of slots is that of places.
  u32 own = 0u;
  u32 before = 0u;  // the largest place below the own one
  const u32 index = threadIdx.x;
  u32 all[GROUPS];
#pragma unroll
  for (u32 i = 0; i < GROUPS; ++i) {
    all[i] = entries[i];
    if ((all[i] & 15u) != 0u) ++fields.slots;
    if (i == index) own = all[i];
  }
#pragma unroll
  for (u32 i = 0; i < GROUPS; ++i) {
    if ((all[i] & 15u) != 0u && (all[i] >> 4 & 0xfffu) < (own >> 4 & 0xfffu)) before = max(before, 1u + (all[i] >> 4 & 0xfffu));
  }
  Slot* slots = reinterpret_cast<Slot*>(shared_memory + SHARED_FIELDS);
  if (threadIdx.x >= 32) return fields;
  float step = 0.0f;
  if ((own & 15u) != 0u) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
      const float2 two = unpack_half2(step_pairs[i]);
      step = fmaxf(step, fmaxf(two.x, two.y));
    }
  }
  float least = step > 0.0f ? step : INFINITY;
#pragma unroll
  for (u32 lanes = 16; lanes > 0; lanes /= 2) least = fminf(least, __shfl_xor_sync(0xffffffffu, least, lanes));
  if (index < GROUPS) {
    const u32 bits = own & 15u;
    const u32 bit = own >> 4 & 0xfffu;
    if (bits != 0u) {
      // Whole powers of two between the exponents.
      const u32 ratio = step > 0.0f ? (__float_as_uint(step) >> 23) - (__float_as_uint(least) >> 23) : 0u;
      const u32 place = min(ratio, 8u - bits);
      const u32 mask = ((1u << bits) - 1u) << place;
      const u32 fresh = before == 0u || (before - 1u) / 8u != bit / 8u ? 1u : 0u;
      slots[own >> 16] = Slot{mask * 0x01010101u, index, place, (bit % 8u - place) & 31u, fresh};
    }
    // The other half of the last step, where the slots are an odd number of them: a mask that lets nothing through.
    if (index >= fields.slots) slots[index] = Slot{0u, 0u, 0u, 0u, 0u};
  }
  return fields;
}

// The column of component `c` of a slot in the turned basis: an operand of codes has four neighbouring components a lane,
// and these come out of the product in one lane this way.
__device__ __forceinline__ u32 component_column(u32 slot, u32 c) {
  return MEAN_COLUMNS + slot * 16 + c / 2 % 2 * 8 + c / 4 * 2 + c % 2;
}

// 16 bytes of a column: eight channels, those of `half` (first channels of pairs, or second ones) and `step`.
__device__ __forceinline__ uint4& basis_piece(u32 columns, u32 step, u32 half, u32 column) {
  return reinterpret_cast<uint4*>(shared_memory)[(step * 2 + half) * columns + column];
}

// What the basis is filled from, asked for before the codes, behind which it would wait.
constexpr u32 BASIS_PIECES = CHANNEL_STEPS * 2;  // of eight channels of a component, in the order of memory
constexpr u32 BASIS_LOADS = (MOST_STEPS * 32 * BASIS_PIECES + THREADS - 1) / THREADS;
constexpr u32 MEAN_LOADS = (TILE * CHANNEL_STEPS + THREADS - 1) / THREADS;
constexpr bool MEAN_EVEN = TILE * CHANNEL_STEPS % THREADS == 0;  // every thread has as many
constexpr u32 LANE_PAIRS = (PAIRS + 31) / 32;
struct EarlyLoads {
  uint2 bytes[BASIS_LOADS];
  float4 angles[MEAN_LOADS][4];    // of a position, for eight pairs
  u16 mean[LANE_PAIRS][2];         // of a pair of this lane
  u16 weight[LANE_PAIRS];
};

// The slot of piece `i`, which is that of round `k`: where a round is a slot, the compiler is to know it.
__device__ __forceinline__ u32 piece_slot(u32 i, u32 k) { return THREADS == 16 * BASIS_PIECES ? k : i / (16 * BASIS_PIECES); }

// Eight lanes have components of neighbouring columns, so that they store past each other.
__device__ __forceinline__ u32 piece_component(u32 i) { return i / 2 % 4 * 4 + i % 2 + i / 8 % 2 * 2; }

__device__ __forceinline__ u32 piece_of(u32 i) { return (THREADS == 16 * BASIS_PIECES ? threadIdx.x : i) / 16 % BASIS_PIECES; }

// What does not depend on the widths.
__device__ __forceinline__ void load_mean(EarlyLoads& loads, const Parts& parts, const float* tables, u32 kv_head) {
  const u16* mean = reinterpret_cast<const u16*>(parts.mean) + kv_head * HEAD_DIM;
  const u16* weights = reinterpret_cast<const u16*>(parts.weights) + kv_head * HEAD_DIM;
#pragma unroll
  for (u32 i = 0; i < LANE_PAIRS; ++i) {
    const u32 pair = min(i * 32 + lane_id(), PAIRS - 1);
    loads.mean[i][0] = mean[pair];
    loads.mean[i][1] = mean[PAIRS + pair];
    loads.weight[i] = weights[pair];
  }
#pragma unroll
  for (u32 k = 0; k < MEAN_LOADS; ++k) {
    const u32 i = threadIdx.x + k * THREADS;
    if (!MEAN_EVEN && i >= TILE * CHANNEL_STEPS) continue;
    const float* angles = tables + TILE_ANGLES + (i % TILE * PAIRS + i / TILE * 8) * 2;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) loads.angles[k][j] = reinterpret_cast<const float4*>(angles)[j];
  }
}

__device__ __forceinline__ void load_basis(EarlyLoads& loads, const Fields& fields, const Parts& parts, u32 kv_head) {
  const u32* basis = parts.basis + kv_head * (HEAD_DIM * HEAD_DIM / 4);
#pragma unroll
  for (u32 k = 0; k < BASIS_LOADS; ++k) {
    const u32 i = threadIdx.x + k * THREADS;
    const u32 slot = piece_slot(i, k);
    loads.bytes[k] = make_uint2(0u, 0u);
    if (slot >= fields.slots) continue;
    const u32* component = basis + (slot_at(slot).group * 16 + piece_component(threadIdx.x)) * (HEAD_DIM / 4);
    loads.bytes[k] = *reinterpret_cast<const uint2*>(component + piece_of(i) * 2);
  }
}

// Weights the mean, of which every warp has all pairs, and returns the power of two that it is to be times.
__device__ __forceinline__ u32 weigh_mean(const EarlyLoads& loads, float2 (&weighted)[LANE_PAIRS]) {
  float largest = 0.0f;
#pragma unroll
  for (u32 i = 0; i < LANE_PAIRS; ++i) {
    const float weight = half_to_float(loads.weight[i]);
    weighted[i] = make_float2(half_to_float(loads.mean[i][0]) * weight, half_to_float(loads.mean[i][1]) * weight);
    largest = fmaxf(largest, fmaxf(fabsf(weighted[i].x), fabsf(weighted[i].y)));
  }
  return scaling_exponent(warp_largest(largest));
}

// Fills the basis: for every slot the components of its group, as halves, which hold signed bytes exactly, with the place of
// the field divided out; before them the mean at every position of a tile.
__device__ __forceinline__ void stage_basis(
    u32 steps, const EarlyLoads& loads, const float2 (&weighted)[LANE_PAIRS], u32 mean_exponent) {
  const u32 columns = basis_columns(steps);
#pragma unroll
  for (u32 k = 0; k < BASIS_LOADS; ++k) {
    const u32 i = threadIdx.x + k * THREADS;
    const u32 slot = piece_slot(i, k);
    if (slot >= steps * 2) continue;
    const u32 piece = piece_of(i);
    const u32 scale = (15u - slot_at(slot).place) * 0x04000400u;  // 2^-place, twice
    u32 low[2], high[2];
    unpack_signed_bytes(low, loads.bytes[k].x);
    unpack_signed_bytes(high, loads.bytes[k].y);
    basis_piece(columns, piece % CHANNEL_STEPS, piece / CHANNEL_STEPS, component_column(slot, piece_component(threadIdx.x))) = make_uint4(
        multiply_half2(low[0], scale), multiply_half2(low[1], scale), multiply_half2(high[0], scale), multiply_half2(high[1], scale));
  }
  static_assert(THREADS * 8 == TILE * 32, "in a round the warps have 32 pairs between them: one of each lane");
  const float factor = power_of_two(mean_exponent);
#pragma unroll
  for (u32 k = 0; k < MEAN_LOADS; ++k) {
    const u32 i = threadIdx.x + k * THREADS;
    if (!MEAN_EVEN && i >= TILE * CHANNEL_STEPS) continue;
    const auto pair_at = [&](u32 pair) {
      return make_float2(__shfl_sync(0xffffffffu, weighted[k].x, pair), __shfl_sync(0xffffffffu, weighted[k].y, pair));
    };
    u32 halves[2][4];
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      const float4& angles = loads.angles[k][j];
      const float2 one = pair_at(threadIdx.x / TILE * 8 + j * 2);
      const float2 other = pair_at(threadIdx.x / TILE * 8 + j * 2 + 1);
      halves[0][j] = pack_half2((one.x * angles.x - one.y * angles.y) * factor, (other.x * angles.z - other.y * angles.w) * factor);
      halves[1][j] = pack_half2((one.y * angles.x + one.x * angles.y) * factor, (other.y * angles.z + other.x * angles.w) * factor);
    }
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      basis_piece(columns, i / TILE, half, i % TILE) = make_uint4(halves[half][0], halves[half][1], halves[half][2], halves[half][3]);
    }
  }
}

// Where the query pairs of a set are, and what brings the scores of its heads to base-2 exponents.
__device__ __forceinline__ float4* query_pairs(u32 set) {
  return reinterpret_cast<float4*>(shared_memory + SHARED_QUERY_PAIRS + set * QUERY_PAIR_BYTES);
}
__device__ __forceinline__ float& score_scale(u32 head) {
  return reinterpret_cast<float*>(shared_memory + SHARED_QUERY_PAIRS + SETS * QUERY_PAIR_BYTES)[head];
}

// Puts the query heads there, a warp a head: over the weights, turned back from the middle of a tile to its start, times a power
// of two of the head's own. A float4 has two neighbouring pairs. The query as it is lies in shared memory.
__device__ __forceinline__ void stage_query_pairs(
    const Parts& parts, const float* tables, u32 kv_head, u32 mean_exponent) {
  const u16* heads = reinterpret_cast<const u16*>(shared_memory + SHARED_QUERY);
  const u32* weights = parts.weights + kv_head * (HEAD_DIM / 2);
  constexpr u32 rounds = (PAIRS / 2 + 31) / 32;
#pragma unroll 1
  for (u32 head = threadIdx.x / 32; head < SETS * 4; head += WARPS) {
    float4 two[rounds];
    float largest = 0.0f;
#pragma unroll
    for (u32 i = 0; i < rounds; ++i) {
      const u32 pair = (i * 32 + lane_id()) * 2;
      two[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (pair >= PAIRS) continue;
      const float4 angles = *reinterpret_cast<const float4*>(tables + TILE_ANGLES + pair * 2);
      float turned[2][2];
#pragma unroll
      for (u32 j = 0; j < 2; ++j) {
        const float cosine = j == 0 ? angles.x : angles.z;
        const float sine = j == 0 ? angles.y : angles.w;
        const float inverse = __fdividef(1.0f, half_at(weights, pair + j));
        const float first = half_to_float(heads[head * QUERY_STRIDE + first_of_pair_64_64_0(pair + j)]) * inverse;
        const float second = half_to_float(heads[head * QUERY_STRIDE + second_of_pair_64_64_0(pair + j)]) * inverse;
        turned[j][0] = first * cosine - second * sine;
        turned[j][1] = second * cosine + first * sine;
        largest = fmaxf(largest, fmaxf(fabsf(turned[j][0]), fabsf(turned[j][1])));
      }
      two[i] = make_float4(turned[0][0], turned[0][1], turned[1][0], turned[1][1]);
    }
    const u32 exponent = scaling_exponent(warp_largest(largest));
    const float factor = power_of_two(exponent);
#pragma unroll
    for (u32 i = 0; i < rounds; ++i) {
      const u32 at = i * 32 + lane_id();
      if (at >= PAIRS / 2) continue;
      query_pairs(head / 4)[(at / 4 * 4 + head % 4) * 4 + at % 4] =
          make_float4(two[i].x * factor, two[i].y * factor, two[i].z * factor, two[i].w * factor);
    }
    if (lane_id() == 0) score_scale(head) = SCORE_SCALE * power_of_two(254 - exponent) * power_of_two(254 - mean_exponent);
  }
}

// Where a warp's groups of tiles come from.
struct Rows {
  const u32* codes;      // of the head, in row 0
  const u32* steps;      // of the head's components, in range block 0
  const float* angles;   // of the first tile
  u32 planes;            // a bit for every nibble plane
  u32 key_bytes;         // of a tile
  u32 tile_bytes;        // of all of it
  u32 group_tiles;       // tiles that a warp takes at a time
  u32 block_groups;      // groups of GROUP_BLOCK tiles: the last one may be short
  u32 first_tile, end_tile;
  u32 begin, end;        // positions of the share
};
// Tiles, of one range block: so the components of a group of tiles have one step.
constexpr u32 GROUP_BLOCK = RANGE_BLOCK == 0 || RANGE_BLOCK >= 8 * TILE ? 8 : RANGE_BLOCK / TILE;

// A group of tiles, as the warps go through them in turn.
struct Group {
  u32 block, index;
};
__device__ __forceinline__ Group group_at(const Rows& rows, u32 number) {
  return Group{number / rows.block_groups, number % rows.block_groups};
}
__device__ __forceinline__ u32 first_tile_of(const Rows& rows, const Group& group) {
  return group.block * GROUP_BLOCK + group.index * rows.group_tiles;
}
__device__ __forceinline__ u32 number_of_group(const Rows& rows, u32 tile) {
  return tile / GROUP_BLOCK * rows.block_groups + tile % GROUP_BLOCK / rows.group_tiles;
}
// `turn` is WARPS groups on.
__device__ __forceinline__ void advance_group(const Rows& rows, Group& group, const Group& turn) {
  group.block += turn.block;
  group.index += turn.index;
  if (group.index >= rows.block_groups) {
    group.index -= rows.block_groups;
    ++group.block;
  }
}

// A bit for every tile of the group that is of the share.
__device__ __forceinline__ u32 tiles_of_group(const Rows& rows, u32 first) {
  const u32 tile = first + lane_id();
  const u32 count = min(rows.group_tiles, GROUP_BLOCK - first % GROUP_BLOCK);
  return lanes_where(lane_id() < count && tile >= rows.first_tile && tile < rows.end_tile);
}

// Asks for what turns a query to the tiles of a group. Angles are there for all tiles that a product has rows for.
__device__ __forceinline__ void fetch_turns(const Rows& rows, unsigned char* stage, u32 first) {
  const u32 lane = lane_id();
  const u32 last = rows.end_tile - 1;
#pragma unroll
  for (u32 i = 0; i < GROUP_TILES; ++i) {
    const float* from = rows.angles + (min(first + i, last) * PAIRS * 2 + lane * 4);
    if (PAIRS == 64 || lane < PAIRS / 2) cp_async_16_of_line(stage + i * ANGLE_BYTES + lane * 16, from);
  }
  const u32 block = RANGE_BLOCK == 0 ? 0 : min(first, last) * TILE / (RANGE_BLOCK == 0 ? 1 : RANGE_BLOCK);
  if (lane < STEP_BYTES / 16) cp_async_16(stage + STAGE_STEPS + lane * 16, rows.steps + (block * (WIDTH / 2) + lane * 4));
  cp_async_commit();
}

// Asks for two tiles of a group, those of `tiles`, as they lie in their rows.
__device__ __forceinline__ void fetch_pair(const Rows& rows, unsigned char* pair, u32 first, u32 tiles) {
  static_assert(NIBBLE_BYTES == 512 && VALUE_BYTES % 512 == 0, "what comes before norms is whole runs of a piece a lane");
  constexpr u32 value_runs = VALUE_BYTES / 512;
  const u32 lane = lane_id();
  const u32* from = rows.codes + (first * TILE_ROW_WORDS + lane * 4);
  unsigned char* place = pair + lane * 16;
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    if ((tiles >> i & 1u) != 0u) {
#pragma unroll
      for (u32 run = 0; run < value_runs + 4; ++run) {
        if (run < value_runs || (rows.planes >> (run - value_runs) & 1u) != 0u) {
          cp_async_16_of_line(place + run * 512, from + run * 128);
        }
      }
      if ((rows.planes & 16u) != 0u) {
#pragma unroll 1
        for (u32 at = 2048; at < rows.key_bytes; at += 512) {
          cp_async_16_of_line(place + VALUE_BYTES + at, from + (VALUE_BYTES + at) / 4);
        }
      }
      if (lane < NORM_BYTES / 16) {
        cp_async_16(place + rows.tile_bytes - NORM_BYTES, from + (rows.tile_bytes - NORM_BYTES) / 4);
      }
    }
    place += rows.tile_bytes;
    from += TILE_ROW_WORDS;
  }
  cp_async_commit();
}

// What a group's scores are made of: of every tile the turned query as columns of products with codes, the score of the mean
// with every token, and what brings sums of products to its unit.
template <u32 STEPS>
struct Turned {
  u32 columns[GROUP_TILES][STEPS * 2];
  float scores[GROUP_TILES * 2][4];  // [tile, half of 32 tokens][token g + 8 i], of query head lane % 4
  float scale[GROUP_TILES];          // of query head lane % 4
};

// Turns four query heads to the starts of four tiles and multiplies them by the basis, all warps of a warpgroup together.
// Row g of a warp's 16 is query head g / 2 at tile g % 2, row g + 8 the same head two tiles later.
template <u32 STEPS>
__device__ __forceinline__ void turn_query(Turned<STEPS>& turned, const unsigned char* stage, u32 set, float mean_factor) {
  const u32 g = lane_id() / 4;
  const u32 t = lane_id() % 4;
  // Of two words the first in even rows, the second in odd ones: of a condition the compiler would make a branch, and of a
  // shuffle in a branch a slow one.
  const u32 choice = 0x3210u + g % 2 * 0x4444u;
  u32 rows[CHANNEL_STEPS][4];
  u32 rest[CHANNEL_STEPS][4];  // what halves leave of it: scores of 40 may come from few channels, where nothing averages
  const float4* pairs = query_pairs(set) + g / 2 * 4 + t;
#pragma unroll
  for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
    const float4 two = pairs[step * 16];
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const float4 angles =
          *reinterpret_cast<const float4*>(stage + (upper * 2 + g % 2) * ANGLE_BYTES + (step * 4 + t) * 16);
      const float firsts[2] = {two.x * angles.x + two.y * angles.y, two.z * angles.z + two.w * angles.w};
      const float seconds[2] = {two.y * angles.x - two.x * angles.y, two.w * angles.z - two.z * angles.w};
      rows[step][upper] = pack_half2(firsts[0], firsts[1]);
      rows[step][2 + upper] = pack_half2(seconds[0], seconds[1]);
      rest[step][upper] = remainder_pair(rows[step][upper], firsts[0], firsts[1]);
      rest[step][2 + upper] = remainder_pair(rows[step][2 + upper], seconds[0], seconds[1]);
    }
  }

  constexpr u32 columns = basis_columns(STEPS);
  const MatrixTiles basis = matrix_tiles(shared_memory, columns * 16, 128);
  float means[MEAN_COLUMNS / 2];
  float sums[STEPS * 16];
  begin_products();
#pragma unroll
  for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
    issue_products(sums, rows[step], advance(basis, step * columns * 32 + MEAN_COLUMNS * 16), step > 0);
  }
#pragma unroll
  for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
    issue_products(means, rows[step], advance(basis, step * columns * 32), step > 0);
  }
#pragma unroll
  for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
    issue_products(sums, rest[step], advance(basis, step * columns * 32 + MEAN_COLUMNS * 16), true);
  }
  commit_products();
  // What the components are multiplied by on their way: the steps of their codes.
  float steps[STEPS * 2][4];
#pragma unroll
  for (u32 slot = 0; slot < STEPS * 2; ++slot) {
    const uint2 four = *reinterpret_cast<const uint2*>(stage + STAGE_STEPS + slot_at(slot).group * 32 + t * 8);
    const float2 low = unpack_half2(four.x);
    const float2 high = unpack_half2(four.y);
    steps[slot][0] = low.x;
    steps[slot][1] = low.y;
    steps[slot][2] = high.x;
    steps[slot][3] = high.y;
  }
  wait_products(sums);
  wait_products(means);

  // A row as integers of 16 bits, as large as they can be.
  float unit[2];
#pragma unroll
  for (u32 upper = 0; upper < 2; ++upper) {
    float largest = 1e-30f;
#pragma unroll
    for (u32 i = 0; i < STEPS * 8; ++i) {
      float& sum = sums[i / 4 * 8 + i / 2 % 2 * 4 + upper * 2 + i % 2];
      sum *= steps[i / 4][i % 4];
      largest = fmaxf(largest, fabsf(sum));
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float factor = __fdividef(LARGEST_FIXED, largest);
    unit[upper] = largest * (1.0f / LARGEST_FIXED) * mean_factor;
#pragma unroll
    for (u32 slot = 0; slot < STEPS * 2; ++slot) {
      u32 bits[4];
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const float sum = sums[slot * 8 + i / 2 * 4 + upper * 2 + i % 2];
        bits[i] = __float_as_uint(sum * factor + (FIXED_ZERO + 128.0f));  // so that the low byte is a signed one, less 128
      }
      const u32 first = __byte_perm(bits[0], bits[1], 0x5140);
      const u32 second = __byte_perm(bits[2], bits[3], 0x5140);
      const u32 low = __byte_perm(first, second, 0x5410) ^ 0x80808080u;
      const u32 high = __byte_perm(first, second, 0x7632);
      // Even columns are of high bytes: a row of an odd tile sends these, and keeps the low ones.
      const u32 others = __shfl_xor_sync(0xffffffffu, __byte_perm(low, high, choice), 4);
      turned.columns[upper * 2][slot] = __byte_perm(high, others, choice);
      turned.columns[upper * 2 + 1][slot] = __byte_perm(others, low, choice);
    }
  }

#pragma unroll
  for (u32 tile = 0; tile < GROUP_TILES; ++tile) {
    turned.scale[tile] = __shfl_sync(0xffffffffu, unit[tile / 2], (t * 2 + tile % 2) * 4);
  }
  // From a row a head and tile to a lane a head, tokens in rows: numbers of 32 bits in two halves.
#pragma unroll
  for (u32 tokens = 0; tokens < MEAN_COLUMNS / 8; ++tokens) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      const u32 first = __float_as_uint(means[tokens * 4 + upper * 2]);
      const u32 second = __float_as_uint(means[tokens * 4 + upper * 2 + 1]);
      const u32 high = transpose_8x8(__byte_perm(first, second, 0x7632));
      const u32 low = transpose_8x8(__byte_perm(first, second, 0x5410));
      turned.scores[upper * 4 + tokens / 4][tokens % 4] = __uint_as_float(__byte_perm(low, high, 0x5410));
      turned.scores[upper * 4 + 2 + tokens / 4][tokens % 4] = __uint_as_float(__byte_perm(low, high, 0x7632));
    }
  }
}

// Adds to the scores of the first tile what its codes give: products of bytes, a field at a time. No branch stands between the
// products of its tokens, so that loads and products of some run while others wait. `fresh` has a bit for every slot that
// begins a plane.
template <u32 STEPS>
__device__ __forceinline__ void add_codes(Turned<STEPS>& turned, const unsigned char* planes, const u32 (&masks)[STEPS * 2],
                                          const u32 (&turns)[STEPS * 2], u32 fresh, u32 nibbles) {
  const u32(&columns)[STEPS * 2] = turned.columns[0];
  // Codes count from their middle, half of their mask: the sums begin with minus half of what masks would give.
  i32 middle[4] = {0, 0, 0, 0};
#pragma unroll
  for (u32 step = 0; step < STEPS; ++step) {
    const u32 masked[4] = {masks[step * 2], masks[step * 2], masks[step * 2 + 1], masks[step * 2 + 1]};
    const u32 column[2] = {columns[step * 2], columns[step * 2 + 1]};
    multiply_codes_signed(middle, masked, column, middle);
  }
  // The even column has high bytes; half of an odd sum of theirs goes to the low one.
  i32 start[4];
  start[0] = static_cast<i32>(FIXED_ZERO_BITS) - (middle[0] >> 1);
  start[1] = static_cast<i32>(FIXED_ZERO_BITS) - (middle[1] >> 1) - ((middle[0] & 1) << 7);
  start[2] = start[0];
  start[3] = start[1];
  const unsigned char* lane_planes = planes + lane_id() * 16;
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    i32 sums[2][4];  // 16 tokens each
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
      u32 fields[2][4];  // [slot][tokens g, g + 8, g + 16, g + 24]
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        const u32 slot = step * 2 + i;
        // Bits of `fresh` up to the slot's are the planes up to its own. The nibble plane has both halves in a byte.
        const u32 plane = max(__popc(fresh & ((2u << slot) - 1u)), 1) - 1;
        const bool is_nibble = plane * 2 + 1 == nibbles;
        const u32 place = plane * (2 * NIBBLE_BYTES) + (half == 0 || is_nibble ? 0 : NIBBLE_BYTES);
        const uint4 codes = *reinterpret_cast<const uint4*>(lane_planes + place);
        const u32 turn = turns[slot] + (half == 1 && is_nibble ? 4 : 0);
        fields[i][0] = __funnelshift_r(codes.x, codes.x, turn) & masks[slot];
        fields[i][1] = __funnelshift_r(codes.y, codes.y, turn) & masks[slot];
        fields[i][2] = __funnelshift_r(codes.z, codes.z, turn) & masks[slot];
        fields[i][3] = __funnelshift_r(codes.w, codes.w, turn) & masks[slot];
      }
      const u32 column[2] = {columns[step * 2], columns[step * 2 + 1]};
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        const u32 operand[4] = {fields[0][i * 2], fields[0][i * 2 + 1], fields[1][i * 2], fields[1][i * 2 + 1]};
        multiply_codes_signed(sums[i], operand, column, step == 0 ? start : sums[i]);
      }
    }
    const float scale = turned.scale[0];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const i32(&sum)[4] = sums[i / 2];
      const float above = __int_as_float(sum[i % 2 * 2]) - FIXED_ZERO;
      // Its zero stays in it: it is one of all tokens of the tile, and leaves in the exponent.
      const float whole = above * 256.0f + __int_as_float(sum[i % 2 * 2 + 1]);
      float& score = turned.scores[half][i];
      score = whole * scale + score;
    }
  }
}

// What one warp carries through the middle, of query head lane % 4: weights count 2^14 at the reference.
struct Middle {
  float reference;              // base-2 exponent
  float weight;                 // this lane's share of the sum
  i32 output[VALUE_TILES][4];   // sums of integer weights and codes: high bytes of weights, low ones; rows g, then g + 8
  i32 whole[4];                 // of integer weights alone, in row 0 to 7, so that the middle of the codes leaves exactly
};
constexpr float WEIGHT_EXPONENT = 14.0f;

__device__ __forceinline__ void reset_middle(Middle& state) {
  state.reference = MASKED;
  state.weight = 0.0f;
  state.whole[0] = state.whole[1] = state.whole[2] = state.whole[3] = 0;
#pragma unroll
  for (u32 i = 0; i < VALUE_TILES * 4; ++i) state.output[i / 4][i % 4] = 0;
}

// Shifts a number that is 256 high + low right by up to 16 bits, as a whole: a high part's rounding would count 256 fold.
__device__ __forceinline__ void shift_right(i32& high, i32& low, u32 bits) {
  const i32 kept = high >> bits;
  low = (((high - (kept << bits)) << 8) + low + (1 << bits >> 1)) >> bits;
  high = kept;
}

// Raises the reference by a whole number, so that sums are shifted: conversions to float and back would take far longer, and
// the warps of a warpgroup wait for each other.
__device__ __forceinline__ void raise(Middle& state, float reference) {
  const bool is_first = state.reference == MASKED;
  u32 left = is_first ? 0u : static_cast<u32>(fminf(reference - state.reference, 64.0f));
  state.weight *= is_first ? 0.0f : exp2_approximate(state.reference - reference);
  state.reference = reference;
#pragma unroll 1
  while (lanes_where(left > 0u) != 0u) {
    const u32 bits = min(left, 16u);
    left -= bits;
    shift_right(state.whole[0], state.whole[1], bits);
#pragma unroll
    for (u32 i = 0; i < VALUE_TILES; ++i) {
      shift_right(state.output[i][0], state.output[i][1], bits);
      shift_right(state.output[i][2], state.output[i][3], bits);
    }
  }
}

// Low parts pass what is above a byte on to high ones, so that they never overflow.
__device__ __forceinline__ void carry(i32& high, i32& low) {
  high += low >> 8;
  low &= 255;
}
__device__ __forceinline__ void carry_all(Middle& state) {
  carry(state.whole[0], state.whole[1]);
#pragma unroll
  for (u32 i = 0; i < VALUE_TILES; ++i) {
    carry(state.output[i][0], state.output[i][1]);
    carry(state.output[i][2], state.output[i][3]);
  }
}

// Adds 32 tokens to the output. `weights` are floats whose bytes 1 and 2 are an integer weight, of tokens g + 8 i.
__device__ __forceinline__ void add_values(Middle& state, const float (&weights)[4], const unsigned char* codes) {
  const u32 lane = lane_id();
  const u32 g = lane / 4;
  const u32 t = lane % 4;
  const u32 first = __byte_perm(__float_as_uint(weights[0]), __float_as_uint(weights[1]), 0x6251);
  const u32 second = __byte_perm(__float_as_uint(weights[2]), __float_as_uint(weights[3]), 0x6251);
  // A column takes the bytes of four tokens from one lane of its head: even rows send their high bytes in the first round,
  // odd ones in the second, so that every lane has one to send and one to take in both.
  // (Selectors, not conditions: of these the compiler would make branches, and slow ones of the shuffles in them.)
  const u32 odd = g % 2;
  const u32 sent = 0x7632u - odd * 0x2222u;  // high bytes in even rows, low ones in odd rows
  const u32 one = __shfl_sync(0xffffffffu, __byte_perm(first, second, sent), t * 8 + odd * 4 + g / 2);
  const u32 other = __shfl_sync(0xffffffffu, __byte_perm(first, second, 0x5410u + odd * 0x2222u), t * 8 + 4 - odd * 4 + g / 2);
  const u32 choice = 0x3210u + odd * 0x4444u;
  const u32 columns[2] = {__byte_perm(one, other, choice), __byte_perm(other, one, choice)};

  const u32 ones[4] = {0x01010101u, 0u, 0x01010101u, 0u};
  multiply_codes(state.whole, ones, columns, state.whole);

  u32 words[2][VALUE_WORDS];
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    if (VALUE_WORDS % 4 == 0) {
      const uint4 four = *reinterpret_cast<const uint4*>(codes + (i * 32 + lane) * 16);
      words[i][0] = four.x;
      words[i][1 % VALUE_WORDS] = four.y;
      words[i][2 % VALUE_WORDS] = four.z;
      words[i][3 % VALUE_WORDS] = four.w;
    } else {
#pragma unroll
      for (u32 j = 0; j < VALUE_WORDS; ++j) {
        words[i][j] = *reinterpret_cast<const u32*>(codes + ((i * VALUE_WORDS + j) * 32 + lane) * 4);
      }
    }
  }
  // The last of a byte's four fields is the whole byte; the other three are taken away at the end.
#pragma unroll
  for (u32 j = 0; j < VALUE_WORDS; ++j) {
    const u32 lower[4] = {words[0][j] & 0x03030303u, words[0][j] & 0x0c0c0c0cu, words[1][j] & 0x03030303u, words[1][j] & 0x0c0c0c0cu};
    const u32 upper[4] = {words[0][j] & 0x30303030u, words[0][j], words[1][j] & 0x30303030u, words[1][j]};
    multiply_codes(state.output[j * 2], lower, columns, state.output[j * 2]);
    multiply_codes(state.output[j * 2 + 1], upper, columns, state.output[j * 2 + 1]);
  }
}

// An exponent of 2 whose power is above a norm, by no more than twice; of zero, what the least norm has.
__device__ __forceinline__ float exponent_above(float norm) {
  const u32 exponent = __float_as_uint(fmaxf(norm, 0x1p-24f)) >> 23;
  return __uint_as_float(FIXED_ZERO_BITS + exponent) - (FIXED_ZERO + 126.0f);
}

// Takes a tile whose scores are there into the output. A new maximum is looked for only where a weight has outgrown 15
// bits: then their weights are computed again.
template <u32 STEPS>
__device__ __forceinline__ void take_values(
    Middle& state, const Turned<STEPS>& turned, const unsigned char* values, float scale, const float (&dither)[4]) {
  const unsigned char* norms = values + VALUE_BYTES + lane_id() / 4 * 8;
  // What the scores have too much, as exponents.
  const float zero = turned.scale[0] * -FIXED_ZERO * scale;
  const auto norms_of = [&](u32 i, float (&four)[4]) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(norms + i * 64);
    const float2 low = unpack_half2(pairs.x);
    const float2 high = unpack_half2(pairs.y);
    four[0] = low.x;
    four[1] = low.y;
    four[2] = high.x;
    four[3] = high.y;
  };

  float weights[2][4];
  float sum;
  u32 exponents;
  const auto weigh = [&] {
    sum = 0.0f;
    exponents = __float_as_uint(WEIGHT_ZERO);
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const float offset = WEIGHT_EXPONENT - state.reference + zero;
      float norm[4];
      norms_of(i, norm);
#pragma unroll
      for (u32 k = 0; k < 4; ++k) {
        const float weight = exp2_approximate(turned.scores[i][k] * scale + offset);
        sum += weight;
        weights[i][k] = weight * norm[k] + dither[(k + i) % 4];
        exponents |= __float_as_uint(weights[i][k]);
      }
    }
  };
  weigh();
  // All in [2^15, 2^16), or some have other exponents.
  if (lanes_where((exponents & 0xff800000u) != __float_as_uint(WEIGHT_ZERO)) != 0u) {
    float largest = state.reference;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      float norm[4];
      norms_of(i, norm);
#pragma unroll
      for (u32 k = 0; k < 4; ++k) {
        largest = fmaxf(largest, turned.scores[i][k] * scale + zero + exponent_above(norm[k]));
      }
    }
#pragma unroll
    for (u32 lanes = 4; lanes < 32; lanes *= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
    // One to three bits of the weights' range stay free, so that the next tokens seldom come here; more would be missed where
    // values cancel.
    raise(state, largest > state.reference ? ceilf(largest) : state.reference);
    weigh();
  }
  state.weight += sum;
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    add_values(state, weights[i], values + i * (VALUE_BYTES / 2));
  }
}

// Puts what a warp carries of a set into a slot of the merge, channels in their own scale.
__device__ __forceinline__ void store_middle(Middle& state, [[maybe_unused]] const u32* record, [[maybe_unused]] const u32* cache,
                                             const float* tables, [[maybe_unused]] u32 kv_head, u32 set, u32 slot) {
  const float least = tables[VALUE_LEVELS];
  const float step = (tables[VALUE_LEVELS + 3] - least) * (1.0f / 3.0f);
  constexpr float unit = 0x1p-14f;  // of integer weights
  const u32 g = lane_id() / 4;
  const u32 head = set * 4 + lane_id() % 4;
  float weight = state.weight;
#pragma unroll
  for (u32 lanes = 4; lanes < 32; lanes *= 2) weight += __shfl_xor_sync(0xffffffffu, weight, lanes);
  if (head >= GROUP_SIZE) return;
  const u32* gains = cache + record[AT_VALUE_GAINS] + kv_head * (HEAD_DIM / 2);
  float* own = reinterpret_cast<float*>(shared_memory) + (slot * GROUP_SIZE + head) * (HEAD_DIM + 2);
  const auto whole = [](i32 high, i32 low) { return static_cast<float>(high) * 256.0f + static_cast<float>(low); };
  const float all = whole(state.whole[0], state.whole[1]);
#pragma unroll
  for (u32 j = 0; j < VALUE_WORDS; ++j) {
    const i32(&lower)[4] = state.output[j * 2];
    i32(&upper)[4] = state.output[j * 2 + 1];
    upper[2] -= lower[0] + lower[2] + upper[0];
    upper[3] -= lower[1] + lower[3] + upper[1];
    const float fields[4] = {whole(lower[0], lower[1]), whole(lower[2], lower[3]) * 0.25f, whole(upper[0], upper[1]) * 0.0625f,
                             whole(upper[2], upper[3]) * 0.015625f};
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      const u32 channel = (j * 8 + g) * 4 + k;
      own[channel] = (fields[k] * step + all * least) * (unit * half_at(gains, channel));
    }
  }
  if (g == 0) {
    own[HEAD_DIM] = state.reference;
    own[HEAD_DIM + 1] = weight * unit;
  }
}

// Asks for the query heads as they are, and puts zero rows below them. A wait and a barrier are to follow.
__device__ __forceinline__ void fetch_exact_query(const u32* query, const WorkItem& own) {
  constexpr u32 pieces = HEAD_DIM / 8;  // of 16 bytes
  const u32* rows = query + (own.row * HEADS + own.kv_head * GROUP_SIZE) * HEAD_DIM / 2;
  uint4* exact = reinterpret_cast<uint4*>(shared_memory + SHARED_QUERY);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < 16 * pieces; i += THREADS) {
    uint4* place = exact + i / pieces * (QUERY_STRIDE / 8) + i % pieces;
    if (i < GROUP_SIZE * pieces) {
      cp_async_16(place, rows + i * 4);
    } else {
      *place = make_uint4(0u, 0u, 0u, 0u);
    }
  }
  cp_async_commit();
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

// Of how many tiles a warp's groups are: as many as its stage has room for, but few enough that all warps have some.
__device__ __forceinline__ u32 group_tiles(u32 steps, u32 nibbles, u32 tiles) {
  const u32 room = (MIDDLE_BYTES - basis_bytes(steps)) / WARPS;
  u32 most = 1;
#pragma unroll
  for (u32 i = 2; i <= min(GROUP_TILES, GROUP_BLOCK); ++i) {
    if (stage_bytes(i, nibbles) <= room) most = i;
  }
  return min(most, max((tiles + WARPS - 1) / WARPS, 1u));
}

// Scores of tokens that are not of the share, in a tile that is only in part.
template <u32 STEPS>
__device__ __forceinline__ void mask_tile(Turned<STEPS>& turned, u32 position, const Rows& rows) {
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    const u32 own = position + i * 8 + lane_id() / 4;
    if (own < rows.begin || own >= rows.end) turned.scores[i / 4][i % 4] = -INFINITY;
  }
}

// One set of query heads over the share, groups of tiles dealt out to the warps; the first ones are on their way. The loop over
// tiles stays one: a longer text would not stay in the instruction cache, whose 32 KB the whole round just fits.
template <u32 STEPS>
__device__ __forceinline__ void attend_groups(
    Middle& state, const Rows& rows, unsigned char* stage, u32 set, u32 mean_exponent, u32 first_group, u32 rounds) {
  const u32 fresh = lanes_where(lane_id() < STEPS * 2 && slot_at(lane_id() % (STEPS * 2)).fresh != 0u);
  const u32 nibbles = __popc(rows.planes);
  // A pattern of roundings, as far apart as can be, so that sums of many small weights are not biased.
  float dither[4];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const float place = lane_id() * 0.6180339f + i * 0.7548777f;
    dither[i] = WEIGHT_ZERO + (place - floorf(place));
  }
  const Group turn = group_at(rows, WARPS);
  Group group = group_at(rows, first_group + threadIdx.x / 32);
  u32 first = first_tile_of(rows, group);
  u32 tiles = tiles_of_group(rows, first);
#pragma unroll 1
  for (u32 round = 0; round < rounds; ++round) {
    advance_group(rows, group, turn);
    const u32 next_first = first_tile_of(rows, group);
    const u32 next_tiles = tiles_of_group(rows, next_first);
    cp_async_wait<2>();
    __syncwarp();  // what every lane asked for of the group's turns is there
    Turned<STEPS> turned;
    // Steps are 128 times what they are for; the mean is times a power of two, which scores are in.
    turn_query(turned, stage, set, power_of_two(mean_exponent) * (1.0f / 128.0f));
    __syncwarp();  // every lane has read them
    fetch_turns(rows, stage, next_first);
    // Read anew in every round: beside what turns a query there are no registers for them.
    u32 masks[STEPS * 2];
    u32 turns[STEPS * 2];
#pragma unroll
    for (u32 slot = 0; slot < STEPS * 2; ++slot) {
      masks[slot] = slot_at(slot).mask;
      turns[slot] = slot_at(slot).turn;
    }
    unsigned char* place = stage + STAGE_TILES;
#pragma unroll 1
    for (u32 tile = 0; tile < GROUP_TILES; ++tile) {
      if (tile % 2 == 0) {
        cp_async_wait<2>();
        __syncwarp();  // the pair is there
      }
      if ((tiles >> tile & 1u) != 0u) {
        add_codes(turned, place, masks, turns, fresh, nibbles);
        const u32 position = (first + tile) * TILE;
        if (lanes_where(position < rows.begin || position + TILE > rows.end) != 0u) mask_tile(turned, position, rows);
        take_values(state, turned, place + rows.key_bytes, score_scale(set * 4 + lane_id() % 4), dither);
      }
      if (tile % 2 != 0) {
        __syncwarp();  // every lane has read the pair: another one may take its place
        fetch_pair(rows, place - rows.tile_bytes, next_first + tile - 1, next_tiles >> (tile - 1));
      }
      place += rows.tile_bytes;
      // The next tile takes the place of this one.
#pragma unroll
      for (u32 i = 0; i + 1 < GROUP_TILES; ++i) {
#pragma unroll
        for (u32 slot = 0; slot < STEPS * 2; ++slot) turned.columns[i][slot] = turned.columns[i + 1][slot];
#pragma unroll
        for (u32 k = 0; k < 8; ++k) turned.scores[i * 2 + k / 4][k % 4] = turned.scores[i * 2 + 2 + k / 4][k % 4];
        turned.scale[i] = turned.scale[i + 1];
      }
    }
    // A token adds less than 2^16 to a low part, which so has room for 2^15 of them.
    if (round % 64 == 63) carry_all(state);
    first = next_first;
    tiles = next_tiles;
  }
  cp_async_wait<0>();
}

// The middle, and exact tokens while its first codes are on their way: leaves what each warp found in slots. Returns the slots of
// exact tokens.
__device__ __forceinline__ u32 attend_prompt(const WorkItem& own, const u32* record, const u32* query, const u32* cache,
                                             const float* tables, TokenRange positions, TokenRange sinks, TokenRange window) {
  const u32 kv_head = own.kv_head;
  fetch_exact_query(query, own);
  const bool has_middle = positions.begin < positions.end;
  Fields fields{0u, 0u, 0u};
  Rows rows;
  u32 steps = 0, first_group = 0, rounds = 0, mean_exponent = 0;
  unsigned char* stage = shared_memory;
  const u32 warp = threadIdx.x / 32;
  const auto fetch_first = [&] {
    const u32 first = first_tile_of(rows, group_at(rows, first_group + warp));
    const u32 tiles = tiles_of_group(rows, first);
    fetch_turns(rows, stage, first);
#pragma unroll 1
    for (u32 begin = 0; begin < GROUP_TILES; begin += 2) {
      unsigned char* pair = stage + STAGE_TILES + begin * rows.tile_bytes;
      fetch_pair(rows, pair, first + begin, tiles >> begin);
    }
  };
  if (has_middle) {
    // All that is asked for before the codes comes before them; nothing is waited for in between.
    const Parts parts = parts_of(record, cache);
    EarlyLoads loads;
    load_mean(loads, parts, tables, kv_head);
    fields = stage_fields(parts, kv_head, positions.begin);
    steps = max((fields.slots + 1) / 2, 1u);
    __syncthreads();  // the slots are in place
    load_basis(loads, fields, parts, kv_head);
    rows.codes = parts.codes + fields.first;
    rows.steps = parts.steps + kv_head * (HEAD_DIM / 2);
    rows.angles = tables + COARSE_ANGLES;
    rows.planes = lanes_where(lane_id() < fields.nibbles);
    rows.key_bytes = fields.nibbles * NIBBLE_BYTES;
    rows.tile_bytes = tile_bytes(fields.nibbles);
    rows.begin = positions.begin;
    rows.end = positions.end;
    rows.first_tile = positions.begin / TILE;
    rows.end_tile = (positions.end + TILE - 1) / TILE;
    rows.group_tiles = group_tiles(steps, fields.nibbles, rows.end_tile - rows.first_tile);
    rows.block_groups = (GROUP_BLOCK + rows.group_tiles - 1) / rows.group_tiles;
    first_group = number_of_group(rows, rows.first_tile);
    rounds = (number_of_group(rows, rows.end_tile - 1) - first_group + WARPS) / WARPS;
    stage = shared_memory + basis_bytes(steps) + warp * stage_bytes(rows.group_tiles, fields.nibbles);
    fetch_first();
    float2 weighted[LANE_PAIRS];
    mean_exponent = weigh_mean(loads, weighted);
    cp_async_wait<3>();
    __syncthreads();  // the query is in place
    stage_query_pairs(parts, tables, kv_head, mean_exponent);
    stage_basis(steps, loads, weighted, mean_exponent);
    publish_shared();
  } else {
    cp_async_wait<0>();
    __syncthreads();  // the query is in place
  }
  const u32 exact_slots = attend_exact(own, record, cache, sinks, window);
  if (!has_middle) return exact_slots;
  __syncthreads();  // basis and queries are in place
  Middle states[SETS];
#pragma unroll 1
  for (u32 set = 0; set < SETS; ++set) {
    if (set > 0) fetch_first();
    Middle state;
    reset_middle(state);
    if (steps == 1) {
      attend_groups<1>(state, rows, stage, set, mean_exponent, first_group, rounds);
    } else if (steps == 2) {
      attend_groups<2>(state, rows, stage, set, mean_exponent, first_group, rounds);
    } else if (steps == 3 || MOST_STEPS == 3) {
      attend_groups<3>(state, rows, stage, set, mean_exponent, first_group, rounds);
    } else {
      attend_groups<4>(state, rows, stage, set, mean_exponent, first_group, rounds);
    }
#pragma unroll
    for (u32 i = 0; i < SETS; ++i) {
      if (i == set) states[i] = state;
    }
  }
  __syncthreads();  // no warp needs the basis or its stage any more: slots take their place
#pragma unroll
  for (u32 set = 0; set < SETS; ++set) {
    store_middle(states[set], record, cache, tables, kv_head, set, warp);
  }
  return exact_slots;
}

// A block's share of every segment, counted within the segment; of the middle, by positions.
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
  TokenRange positions = share_in(sinks, middle);
  positions.begin += sinks;
  positions.end += sinks;
  return Share{own, record, share_in(0, sinks), positions, share_in(sinks + middle, stream),
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
    const u32* __restrict__ query,  // f16 [query rows][32 heads][128], after RoPE
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    float* partials,  // [work items][4 query heads][128 output, maximum, weight sum]
    float* output,  // [query rows][32 heads][128]
    u32* counters  // [query rows][8 KV heads], zero before and after
) {
  u32 middle_slots = 0;
  u32 exact_slots = 0;
  {
    const Share share = share_of_block(sequences, work);
    prefetch_exact(share, cache);
    exact_slots = attend_prompt(share.own, share.record, query, cache, tables, share.middle, share.sinks, share.window);
    middle_slots = share.middle.begin < share.middle.end ? WARPS : 0;
  }
  // Read anew: kept over the middle, all this would cost it registers.
  const Share share = share_of_block(again(sequences), again(work));
  const WorkItem& own = share.own;
  const u32 kv_head = own.kv_head;
  const u32 item = blockIdx.x;
  const u32 warp = threadIdx.x / 32;
  const u32 stream_slots = share.stream.begin < share.stream.end ? WARPS : 0;
  if (stream_slots > 0) {
    const u32 exponent = stage_turned_query(query, own);
    Softmax state;
    reset(state);
    const float scale = SCORE_SCALE * HADAMARD_SCALE * power_of_two(254 - exponent);
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
  const float* rows = partials + (item - own.split) * PARTIAL_WORDS;
#pragma unroll 1
  for (u32 head = warp; head < GROUP_SIZE; head += WARPS) {
    HeadSum sum;
    reset_head(sum);
    add_rows(sum, rows + head * (HEAD_DIM + 2), PARTIAL_WORDS, own.splits, [](const float* place) { return load_fresh_one(place); });
    write_output(sum, outputs + head * HEAD_DIM);
  }
}
