// attend: One work item a block: 16 query heads over their share of the tokens that a query sees.
// Stage attend of scheme latent-int8 for deepseek-v3. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// latent: perToken(symmetric, 8 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64
// tunables: products = 1, productTokens = 64, tileTokens = 8

#include "prelude.cuh"

constexpr u32 HEADS = 128;  // query heads
constexpr u32 LATENT_DIM = 512;  // channels of a latent, the first of a token
constexpr u32 ROTARY_DIM = 64;  // channels of a rotary part
constexpr u32 TOKEN_DIM = 576;  // channels of a token: latent, then rotary part
constexpr u32 TOKEN_WORDS = 288;  // words of a token in f16
constexpr u32 HEADS_PER_BLOCK = 16;  // query heads that a block takes
constexpr u32 LATENT_WORDS = 128;  // words of a middle token's latent
constexpr u32 LATENT_SCALE_CHANNELS = 128;  // channels of a latent that share a scale
constexpr u32 LATENT_BLOCKS = 4;  // scales of a latent
constexpr u32 LATENT_SCALE_WORDS = 2;  // words of the scales of a latent, two each
constexpr u32 LATENT_SPAN = 512;  // channels of one Hadamard block of a latent
constexpr float LATENT_HADAMARD_SCALE = 0.0441941731f;  // 1 / sqrt(LATENT_SPAN)
constexpr u32 ROTARY_WORDS = 16;  // words of a middle token's rotary part
constexpr u32 ROTARY_SCALE_CHANNELS = 64;  // channels of a rotary part that share a scale
constexpr u32 ROTARY_SCALE_WORDS = 1;  // words of the scales of a rotary part, two each
constexpr u32 ROTARY_SPAN = 64;  // channels of one Hadamard block of a rotary part
constexpr float ROTARY_HADAMARD_SCALE = 0.125f;  // 1 / sqrt(ROTARY_SPAN)
constexpr u32 STREAM_LATENT_WORDS = 128;  // words of a stream token's latent
constexpr u32 STREAM_ROTARY_WORDS = 16;  // words of a stream token's rotary part
constexpr u32 LATENT_LEVELS = 256;  // offset in the tables: values of the codes of latents, over their scales
constexpr u32 ROTARY_LEVELS = 512;  // offset in the tables: values of the codes of rotary parts, over their scales
constexpr u32 STREAM_ROTARY_LEVELS = 768;  // offset in the tables: stream levels of rotary parts
constexpr u32 WINDOW = 64;  // slots of the exact ring at the end
constexpr u32 RECORD_WORDS = 64;  // words of a sequence record
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_STREAM_TOKENS = 2;  // in the record, generated tokens that left the window
constexpr u32 AT_WINDOW_TOKENS = 3;  // in the record, exact tokens in the ring
constexpr u32 AT_WINDOW_START = 4;  // in the record, slot of the ring's oldest token
constexpr u32 AT_SLIDING_WINDOW = 8;  // in the record, tokens that a query sees, itself included; 0 for all
constexpr u32 AT_SINK_KEYS = 10;  // in the record, first word of sinkKeys: f16 [sinks][512 latent, 64 rotary after RoPE]
constexpr u32 AT_WINDOW_KEYS = 12;  // in the record, first word of windowKeys: f16 ring [window][512 latent, 64 rotary after RoPE]
constexpr u32 AT_LATENT_CODES = 34;  // in the record, first word of latentCodes: 8-bit fields [middle][512]
constexpr u32 AT_LATENT_SCALES = 35;  // in the record, first word of latentScales: f16 [middle][4 of 128 channels]
constexpr u32 AT_ROTARY_KEYS = 37;  // in the record, first word of rotaryKeys: 8-bit fields [middle][64]
constexpr u32 AT_ROTARY_SCALES = 38;  // in the record, first word of rotaryScales: f16 [middle][1 of 64 channels]
constexpr u32 AT_STREAM_LATENTS = 40;  // in the record, first word of streamLatents: 8-bit fields [stream][512], after Hadamard
constexpr u32 AT_STREAM_ROTARY_KEYS = 41;  // in the record, first word of streamRotaryKeys: 8-bit fields [stream][64], after Hadamard
constexpr u32 AT_STREAM_NORMS = 42;  // in the record, first word of streamNorms: f16 [stream][of the latent, of the rotary part]
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 TILE_TOKENS = 64;  // tokens of a tile
constexpr u32 SHARED_BYTES = 114560;  // shared memory that a launch asks for
constexpr u32 LATENT_BITS = 8;  // bits of a channel of a latent
constexpr u32 LATENT_FLOAT_SHIFT = 0;  // bits by which the code of a latent, an 8-bit float, is widened to be a half; 0 if it is a whole number
constexpr float LATENT_STEP = 0.00787401572f;  // what a half is times to be the value of a code of a latent
constexpr float LATENT_BASE = 0.0f;  // value of the code of a latent whose half is 0, over its scale
constexpr u32 ROTARY_BITS = 8;  // bits of a channel of a rotary part
constexpr u32 ROTARY_FLOAT_SHIFT = 0;  // bits by which the code of a rotary part, an 8-bit float, is widened to be a half; 0 if it is a whole number
constexpr float ROTARY_STEP = 0.00787401572f;  // what a half is times to be the value of a code of a rotary part
constexpr float ROTARY_BASE = 0.0f;  // value of the code of a rotary part whose half is 0, over its scale
constexpr u32 WORK_ITEM_WORDS = 6;  // words of a work item
constexpr u32 PARTIAL_WORDS = 8224;  // numbers of one partial result
constexpr u32 CHUNK_UNIT = 16;  // a split gets a multiple of so many tokens
constexpr float SCORE_SCALE = 0.195101097f;  // what q.k is multiplied with first

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

// Products run on tensor cores: scores take the query heads of the block as rows and a tile's tokens as columns, outputs
// the weights as rows and the tile's channels as columns. A tile holds codes as halves, which are exact, and beside them
// each token's coefficients: a number is coefficient times half plus offset, over a run of channels. Coefficients go to
// the sums of a run, and into the weights. The query is exact too, so scores lose nothing but what float32 does.

constexpr u32 SINK_SEGMENT = 0;
constexpr u32 MIDDLE_SEGMENT = 1;
constexpr u32 STREAM_SEGMENT = 2;
constexpr u32 WINDOW_SEGMENT = 3;

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// Hadamard transform (Sylvester order) of `count` channels in shared memory, in place, in blocks of `span` channels, each
// channel COLUMNS vectors wide; `scale` is 1 / sqrt(span). Barriers on entry, none on exit: then every thread may read the
// channels threadIdx.x + k * THREADS of the range, times COLUMNS, and after a barrier all of them.
template <u32 COLUMNS>
__device__ __forceinline__ void turn(float* channels, u32 count, u32 span, float scale) {
  for (u32 stride = 1; stride < span; stride *= 2) {
    __syncthreads();  // the caller's stores, then the stores of the previous stride, are complete
    for (u32 i = threadIdx.x; i < count / 2 * COLUMNS; i += THREADS) {
      const u32 pair = i / COLUMNS;
      const u32 low = (pair / stride * stride * 2 + pair % stride) * COLUMNS + i % COLUMNS;
      const float first = channels[low];
      const float second = channels[low + stride * COLUMNS];
      channels[low] = first + second;
      channels[low + stride * COLUMNS] = first - second;
    }
  }
  __syncthreads();  // the last stride is complete
  for (u32 i = threadIdx.x; i < count * COLUMNS; i += THREADS) channels[i] *= scale;
}

// One channel of a latent of the middle, as it was coded: scale times the value of its code.
__device__ __forceinline__ float latent_channel(
    const u32* record, const u32* cache, const float* __restrict__ tables, u32 token, u32 channel) {
  const u32* row = cache + record[AT_LATENT_CODES] + token * LATENT_WORDS;
  const u32 code = unpack_field_8(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[LATENT_LEVELS + level]; });
  const u32 block = token * LATENT_SCALE_WORDS * 2 + channel / LATENT_SCALE_CHANNELS;
  const float scale = half_at(cache + record[AT_LATENT_SCALES], block);
  return scale * unit;
}

// One channel of a rotary part of the middle, as it was coded: scale times the value of its code.
__device__ __forceinline__ float rotary_channel(
    const u32* record, const u32* cache, const float* __restrict__ tables, u32 token, u32 channel) {
  const u32* row = cache + record[AT_ROTARY_KEYS] + token * ROTARY_WORDS;
  const u32 code = unpack_field_8(channel, [&](u32 word) { return row[word]; });
  const float unit = level_value(code, [&](u32 level) { return tables[ROTARY_LEVELS + level]; });
  const u32 block = token * ROTARY_SCALE_WORDS * 2 + channel / ROTARY_SCALE_CHANNELS;
  const float scale = half_at(cache + record[AT_ROTARY_SCALES], block);
  return scale * unit;
}

// One channel of a token as it is stored; tokens count from the first of their segment.
__device__ __forceinline__ float stored_channel(
    const u32* record, const u32* cache, const float* __restrict__ tables, u32 segment, u32 token, u32 channel) {
  const bool of_latent = channel < LATENT_DIM;
  const u32 rotary = channel - LATENT_DIM;  // used past the latent only
  switch (segment) {
    case SINK_SEGMENT:
      return half_at(cache + record[AT_SINK_KEYS] + token * TOKEN_WORDS, channel);
    case MIDDLE_SEGMENT:
      if (of_latent) return latent_channel(record, cache, tables, token, channel);
      return rotary_channel(record, cache, tables, token, rotary);
    case STREAM_SEGMENT: {
      const u32* norms = cache + record[AT_STREAM_NORMS] + token;
      if (of_latent) {
        const u32* row = cache + record[AT_STREAM_LATENTS] + token * STREAM_LATENT_WORDS;
        const u32 code = unpack_field_8(channel, [&](u32 word) { return row[word]; });
        return level_value(code, [&](u32 level) { return tables[level]; }) * half_at(norms, 0);
      }
      const u32* row = cache + record[AT_STREAM_ROTARY_KEYS] + token * STREAM_ROTARY_WORDS;
      const u32 code = unpack_field_8(rotary, [&](u32 word) { return row[word]; });
      return level_value(code, [&](u32 level) { return tables[STREAM_ROTARY_LEVELS + level]; }) * half_at(norms, 1);
    }
    case WINDOW_SEGMENT:
    default: {
      const u32 slot = (record[AT_WINDOW_START] + token) % WINDOW;
      return half_at(cache + record[AT_WINDOW_KEYS] + slot * TOKEN_WORDS, channel);
    }
  }
}

// Decodes `count` tokens of a segment from `first` on into `tile`, [channel][COLUMNS tokens]; zeros past them. What was
// coded after the Hadamard transform is turned back. A barrier on exit, none on entry: the tile must be free.
template <u32 COLUMNS>
__device__ __forceinline__ void load_tokens(
    float* tile, const u32* record, const u32* cache, const float* __restrict__ tables, u32 segment, u32 first, u32 count) {
  for (u32 i = threadIdx.x; i < TOKEN_DIM * COLUMNS; i += THREADS) {
    const u32 column = i / TOKEN_DIM;
    const u32 channel = i % TOKEN_DIM;
    tile[channel * COLUMNS + column] =
        column < count ? stored_channel(record, cache, tables, segment, first + column, channel) : 0.0f;
  }
  if (segment == STREAM_SEGMENT) {
    turn<COLUMNS>(tile, LATENT_DIM, LATENT_SPAN, LATENT_HADAMARD_SCALE);
  }
  if (segment == STREAM_SEGMENT) turn<COLUMNS>(tile + LATENT_DIM * COLUMNS, ROTARY_DIM, ROTARY_SPAN, ROTARY_HADAMARD_SCALE);
  __syncthreads();  // the tile is complete
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

constexpr u32 PARTIAL_ROW = LATENT_DIM + 2;  // output, then maximum and weight sum

// Merges the partial results of one row (its splits are neighbours) by log-sum-exp, and writes the outputs of its heads.
// The loads are volatile: other blocks wrote the partials during this launch, and a line of this SM's L1 may be older.
__device__ __forceinline__ void merge_splits(const volatile float* partials, u32 splits, float* output) {
  for (u32 head = 0; head < HEADS_PER_BLOCK; ++head) {
    const volatile float* own = partials + head * PARTIAL_ROW;
    float largest = MASKED;
    for (u32 split = 0; split < splits; ++split) largest = fmaxf(largest, own[split * PARTIAL_WORDS + LATENT_DIM]);
    float weight = 0.0f;
    for (u32 split = 0; split < splits; ++split) {
      const volatile float* partial = own + split * PARTIAL_WORDS;
      weight += partial[LATENT_DIM + 1] * exp2f(partial[LATENT_DIM] - largest);
    }
    // A row without tokens has no weight: it stays zero.
    const float normalize = weight > 0.0f ? 1.0f / weight : 0.0f;
    for (u32 channel = threadIdx.x; channel < LATENT_DIM; channel += THREADS) {
      float sum = 0.0f;
      for (u32 split = 0; split < splits; ++split) {
        const volatile float* partial = own + split * PARTIAL_WORDS;
        sum += partial[channel] * exp2f(partial[LATENT_DIM] - largest);
      }
      output[head * LATENT_DIM + channel] = sum * normalize;
    }
  }
}

constexpr u32 WARPS = THREADS / 32;
constexpr u32 HEAD_TILES = (HEADS_PER_BLOCK + 15) / 16;  // m = 16 tiles of query heads
constexpr u32 ROWS = HEAD_TILES * 16;
constexpr u32 HEADS_PER_WARP = (HEADS_PER_BLOCK + WARPS - 1) / WARPS;
constexpr u32 STRIDE = TOKEN_DIM + 8;                    // halves of a token; an odd number of 16 bytes
constexpr u32 RUNS = LATENT_BLOCKS + 1;                  // runs of channels with a coefficient each: of the latent, then the rotary part
constexpr u32 WEIGHT_STRIDE = TILE_TOKENS + 8;           // floats of a head; spreads heads over the banks
constexpr u32 HALF_TILE = TILE_TOKENS / 2;
constexpr u32 STREAM_COLUMNS = 4;                        // tokens of the stream that are decoded together
constexpr u32 OUTPUT_TILES = 8;                          // n = 8 tiles of channels of a warp, which has 64
constexpr bool ADDS = LATENT_BASE != 0.0f || ROTARY_BASE != 0.0f;  // numbers have offsets

constexpr u32 LATENT_STEPS = 4;                          // k = 16 steps of the scores: of a warp's channels
constexpr u32 ROTARY_STEPS = ROTARY_DIM / 16;            // and of the rotary part, which warps take in turn
constexpr u32 OWN_ROTARY_STEPS = (ROTARY_STEPS + WARPS - 1) / WARPS;

// Offsets in shared memory, in bytes. Stream tokens are decoded where scores will be.
constexpr u32 SCORE_FLOATS = WARPS * ROWS * WEIGHT_STRIDE;
constexpr u32 SCRATCH_FLOATS = TOKEN_DIM * STREAM_COLUMNS;
constexpr u32 SHARED_SCORES = TILE_TOKENS * STRIDE * 2;
constexpr u32 SHARED_COEFFICIENTS = SHARED_SCORES + (SCORE_FLOATS > SCRATCH_FLOATS ? SCORE_FLOATS : SCRATCH_FLOATS) * 4;
constexpr u32 SHARED_QUERY_SUMS = SHARED_COEFFICIENTS + RUNS * TILE_TOKENS * 8;
constexpr u32 SHARED_SHRINKS = SHARED_QUERY_SUMS + RUNS * ROWS * 4;
static_assert(SHARED_SHRINKS + ROWS * 4 == SHARED_BYTES, "what is placed is what a launch asks for");

extern __shared__ __align__(16) unsigned char shared_memory[];

__device__ __forceinline__ float warp_largest(float value) {
#pragma unroll
  for (u32 lanes = 16; lanes > 0; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  return value;
}
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (u32 lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  return value;
}

// Four bytes of codes as halves. Whole numbers less 128: a byte as the last bits of the half 1024, less 1152. Floats: sign,
// exponent and mantissa where a half has them, but for the number of exponents.
template <u32 FLOAT_SHIFT, u32 BIAS>
__device__ __forceinline__ uint2 spread_bytes(u32 bytes) {
  if (FLOAT_SHIFT > 0) {
    const u32 low = __byte_perm(bytes, 0u, 0x1404);
    const u32 high = __byte_perm(bytes, 0u, 0x3424);
    constexpr u32 SHIFT = 8 - FLOAT_SHIFT;
    return uint2{(low & 0x80008000u) | (low & 0x7f007f00u) >> SHIFT, (high & 0x80008000u) | (high & 0x7f007f00u) >> SHIFT};
  }
  constexpr u32 LESS = (0xe400u | BIAS) * 0x10001u;  // -(1024 + BIAS), twice
  return uint2{fma_half2(__byte_perm(bytes, 0x64646464u, 0x4140), 0x3c003c00u, LESS),
               fma_half2(__byte_perm(bytes, 0x64646464u, 0x4342), 0x3c003c00u, LESS)};
}

// Eight codes as halves, and the words that hold them: lanes that store neighbouring ones meet in no bank.
template <u32 BITS>
struct Eight;
template <>
struct Eight<8> {
  typedef uint2 Words;
  template <u32 FLOAT_SHIFT>
  static __device__ __forceinline__ uint4 spread(uint2 codes) {
    const uint2 first = spread_bytes<FLOAT_SHIFT, 128>(codes.x);
    const uint2 second = spread_bytes<FLOAT_SHIFT, 128>(codes.y);
    return uint4{first.x, first.y, second.x, second.y};
  }
};
template <>
struct Eight<4> {
  typedef u32 Words;
  template <u32 FLOAT_SHIFT>
  static __device__ __forceinline__ uint4 spread(u32 codes) {
    // Even channels are in the lower halves of bytes, odd ones in the upper halves.
    const u32 even = codes & 0x0f0f0f0fu;
    const u32 odd = codes >> 4 & 0x0f0f0f0fu;
    const uint2 first = spread_bytes<0, 8>(__byte_perm(even, odd, 0x5140));
    const uint2 second = spread_bytes<0, 8>(__byte_perm(even, odd, 0x7362));
    return uint4{first.x, first.y, second.x, second.y};
  }
};

// The power of two that brings a norm to [2^4, 2^5), and its inverse; 1 for zero. A half keeps eleven bits only above 2^-14.
__device__ __forceinline__ u32 norm_exponent(float norm) { return norm > 0.0f ? __float_as_uint(norm) >> 23 & 0xffu : 131u; }
__device__ __forceinline__ float norm_factor(float norm) { return __uint_as_float((258u - norm_exponent(norm)) << 23); }
__device__ __forceinline__ float norm_inverse(float norm) { return __uint_as_float((norm_exponent(norm) - 4u) << 23); }

extern "C" __global__ void __launch_bounds__(256, 2) attend(
    const u32* __restrict__ sequences,  // records of all sequences
    const u32* __restrict__ work,  // [work items][sequence, block of 16 heads, query row, tokens after the query, split, splits]; splits of a row are neighbours
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    const u32* __restrict__ query,  // f16 [query rows][128 heads][512 for the latent, 64 after RoPE]
    const float* __restrict__ tables,  // stream levels, then fine and coarse angles as (cosine, sine)
    float* partials,  // [work items][16 query heads][512 output, maximum, weight sum]
    float* output,  // [query rows][128 heads][512]
    u32* counters  // [query rows][8 blocks of heads], zero before and after
) {
  __shared__ u32 finished;
  u16* tile = reinterpret_cast<u16*>(shared_memory);                                   // [token][STRIDE]
  float* scores = reinterpret_cast<float*>(shared_memory + SHARED_SCORES);             // [warp][head][WEIGHT_STRIDE]
  float* weights = scores;                                                             // [head][WEIGHT_STRIDE], once scores are summed
  float* scratch = scores;                                                             // [channel][STREAM_COLUMNS]
  float2* coefficients = reinterpret_cast<float2*>(shared_memory + SHARED_COEFFICIENTS);  // [run][token]: coefficient, offset
  float* query_sums = reinterpret_cast<float*>(shared_memory + SHARED_QUERY_SUMS);     // [run][head]: what an offset is times
  float* shrinks = reinterpret_cast<float*>(shared_memory + SHARED_SHRINKS);           // [head]: what a tile multiplies sums with

  const u32 thread = threadIdx.x;
  const u32 warp = thread / 32;
  const u32 lane = lane_id();
  const u32 group = lane / 4;        // row of a fragment
  const u32 pair = lane % 4 * 2;     // first of two columns of a fragment
  const u32 item = blockIdx.x;
  const WorkItem own = work_item(work, item);
  const u32 head_block = own.kv_head;  // all heads read the same tokens: an item is for HEADS_PER_BLOCK of them
  const u32* record = sequences + own.sequence * RECORD_WORDS;

  const u32* own_query = query + (own.row * HEADS + head_block * HEADS_PER_BLOCK) * TOKEN_WORDS;
  if (thread < ROWS) shrinks[thread] = 0.0f;
  if (ADDS) {
    for (u32 i = thread; i < RUNS * ROWS; i += THREADS) {
      const u32 head = i % ROWS;
      const u32 first = i / ROWS * LATENT_SCALE_CHANNELS;
      const u32 count = i / ROWS < LATENT_BLOCKS ? LATENT_SCALE_CHANNELS : ROTARY_DIM;
      float sum = 0.0f;
      for (u32 channel = first; head < HEADS_PER_BLOCK && channel < first + count; ++channel) {
        sum += half_at(own_query + head * TOKEN_WORDS, channel);
      }
      query_sums[i] = sum;
    }
  }

  // The warp's share of the query as operands, kept in registers: its 64 channels, and its steps of the rotary part.
  u32 latent_rows[HEAD_TILES][LATENT_STEPS][4];
  u32 rotary_rows[HEAD_TILES][OWN_ROTARY_STEPS][4];
  const auto load_rows = [&](u32(&rows)[4], u32 m, u32 channel) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 head = m * 16 + group + i % 2 * 8;
      rows[i] = head < HEADS_PER_BLOCK ? own_query[head * TOKEN_WORDS + (channel + pair + i / 2 * 8) / 2] : 0u;
    }
  };
  const auto load_latent_rows = [&] {
#pragma unroll
    for (u32 i = 0; i < HEAD_TILES * LATENT_STEPS; ++i) {
      load_rows(latent_rows[i / LATENT_STEPS][i % LATENT_STEPS], i / LATENT_STEPS, warp * 64 + i % LATENT_STEPS * 16);
    }
  };
#pragma unroll
  for (u32 m = 0; m < HEAD_TILES; ++m) {
#pragma unroll
    for (u32 k = 0; k < OWN_ROTARY_STEPS; ++k) {
      const u32 step = min(warp + k * WARPS, ROTARY_STEPS - 1);
      load_rows(rotary_rows[m][k], m, LATENT_DIM + step * 16);
    }
  }
  load_latent_rows();

  float sums[HEAD_TILES][OUTPUT_TILES][4] = {};  // over `unit`
  float added[HEAD_TILES][2] = {};               // by offsets: this lane's share of the sums of heads group and group + 8
  float unit = __uint_as_float(27u << 23);       // the largest power of two up to a coefficient of the warp's run so far; 2^-100 at first
  float maxima[HEADS_PER_WARP];                  // of head warp + k * WARPS
  float weight_sums[HEADS_PER_WARP] = {};
#pragma unroll
  for (u32 k = 0; k < HEADS_PER_WARP; ++k) maxima[k] = MASKED;
  const u32 own_run = warp * 64 / LATENT_SCALE_CHANNELS;

  // What the warp's channels add to the scores of all tokens of the tile.
  const auto score_tile = [&](bool of_middle) {
    const u16* keys = tile + lane % 8 * STRIDE + lane / 8 * 8;
    float* own_scores = scores + warp * ROWS * WEIGHT_STRIDE;
#pragma unroll 2
    for (u32 first = 0; first < TILE_TOKENS; first += 8) {
      u32 columns[2][4];
      ldmatrix_x4(columns[0], keys + first * STRIDE + warp * 64);
      ldmatrix_x4(columns[1], keys + first * STRIDE + warp * 64 + 32);
      float products[HEAD_TILES][4] = {};
      float rotary_products[HEAD_TILES][4] = {};
#pragma unroll
      for (u32 step = 0; step < LATENT_STEPS; ++step) {
        const u32 column[2] = {columns[step / 2][step % 2 * 2], columns[step / 2][step % 2 * 2 + 1]};
#pragma unroll
        for (u32 m = 0; m < HEAD_TILES; ++m) {
          mma_m16n8k16(products[m], latent_rows[m][step], column);
        }
      }
#pragma unroll
      for (u32 k = 0; k < OWN_ROTARY_STEPS; ++k) {
        const u32 step = warp + k * WARPS;
        if (step >= ROTARY_STEPS) break;
        const u32* row = reinterpret_cast<const u32*>(tile + (first + group) * STRIDE + LATENT_DIM + step * 16 + pair);
        const u32 column[2] = {row[0], row[4]};
#pragma unroll
        for (u32 m = 0; m < HEAD_TILES; ++m) mma_m16n8k16(rotary_products[m], rotary_rows[m][k], column);
      }
      const u32 token = first + pair;
      float4 latent = *reinterpret_cast<const float4*>(coefficients + own_run * TILE_TOKENS + token);
      const float4 rotary = *reinterpret_cast<const float4*>(coefficients + LATENT_BLOCKS * TILE_TOKENS + token);
#pragma unroll
      for (u32 m = 0; m < HEAD_TILES; ++m) {
#pragma unroll
        for (u32 upper = 0; upper < 2; ++upper) {
          const u32 k = upper * 2;
          *reinterpret_cast<float2*>(own_scores + (m * 16 + group + upper * 8) * WEIGHT_STRIDE + token) =
              make_float2(products[m][k] * latent.x + rotary_products[m][k] * rotary.x,
                          products[m][k + 1] * latent.z + rotary_products[m][k + 1] * rotary.z);
        }
      }
    }
  };

  // Weights of the tile from its scores, zero past `count` tokens. In a tile of pairs a token is the sum of two rows.
  const auto weigh_tile = [&](u32 count, bool pairs) {
#pragma unroll
    for (u32 k = 0; k < HEADS_PER_WARP; ++k) {
      const u32 head = warp + k * WARPS;
      if (head >= HEADS_PER_BLOCK) break;
      float* row = weights + head * WEIGHT_STRIDE;
      const auto score_of = [&](u32 token) {
        float score = 0.0f;
#pragma unroll
        for (u32 part = 0; part < WARPS; ++part) score += row[part * ROWS * WEIGHT_STRIDE + token];
        if (ADDS) {
          for (u32 run = 0; run < RUNS; ++run) score += query_sums[run * ROWS + head] * coefficients[run * TILE_TOKENS + token].y;
        }
        return score;
      };
      float exponents[TILE_TOKENS / 32];
      float top = maxima[k];
#pragma unroll
      for (u32 j = 0; j < TILE_TOKENS / 32; ++j) {
        const u32 token = j * 32 + lane;
        exponents[j] = MASKED;
        if (token < count) {
          const float score = pairs ? score_of(token) + score_of(token + HALF_TILE) : score_of(token);
          exponents[j] = score_exponent(score * SCORE_SCALE);
        }
        top = fmaxf(top, exponents[j]);
      }
      top = warp_largest(top);
      __syncwarp();  // all scores have been read before weights take their place
      const float shrink = exp2f(maxima[k] - top);
      float sum = 0.0f;
#pragma unroll
      for (u32 j = 0; j < TILE_TOKENS / 32; ++j) {
        const u32 token = j * 32 + lane;
        const float weight = exp2f(exponents[j] - top);
        sum += weight;
        if (!pairs) {
          row[token] = weight;
        } else if (token < HALF_TILE) {
          row[token] = weight;
          row[token + HALF_TILE] = weight;
        }
      }
      weight_sums[k] = weight_sums[k] * shrink + warp_sum(sum);
      maxima[k] = top;
      if (lane == 0) shrinks[head] = shrink;
    }
  };

  // Adds the tile to the warp's 64 channels of all outputs. Weights times coefficients are halves; over the largest
  // coefficient so far, so that none of consequence is too small for one.
  const auto add_values = [&] {
    const float2* own_coefficients = coefficients + own_run * TILE_TOKENS;
    float largest = 0.0f;
#pragma unroll
    for (u32 j = 0; j < TILE_TOKENS / 32; ++j) largest = fmaxf(largest, own_coefficients[j * 32 + lane].x);
    const float power = __uint_as_float(__float_as_uint(warp_largest(largest)) & 0x7f800000u);
    const float grown = fmaxf(unit, power);
    const float ratio = unit / grown;
    unit = grown;
    const float inverse = 1.0f / unit;
#pragma unroll
    for (u32 m = 0; m < HEAD_TILES; ++m) {
#pragma unroll
      for (u32 upper = 0; upper < 2; ++upper) {
        const float shrink = shrinks[m * 16 + group + upper * 8];
        added[m][upper] *= shrink;
#pragma unroll
        for (u32 n = 0; n < OUTPUT_TILES; ++n) {
          sums[m][n][upper * 2] *= shrink * ratio;
          sums[m][n][upper * 2 + 1] *= shrink * ratio;
        }
      }
    }
    const u16* values = tile + (lane % 8 + lane / 8 % 2 * 8) * STRIDE + warp * 64 + lane / 16 * 8;
#pragma unroll 1
    for (u32 first = 0; first < TILE_TOKENS; first += 16) {
      u32 rows[HEAD_TILES][4];
#pragma unroll
      for (u32 later = 0; later < 2; ++later) {
        const u32 token = first + pair + later * 8;
        const float2 even = own_coefficients[token];
        const float2 odd = own_coefficients[token + 1];
#pragma unroll
        for (u32 m = 0; m < HEAD_TILES; ++m) {
#pragma unroll
          for (u32 upper = 0; upper < 2; ++upper) {
            const float2 two =
                *reinterpret_cast<const float2*>(weights + (m * 16 + group + upper * 8) * WEIGHT_STRIDE + token);
            rows[m][later * 2 + upper] = pack_half2(two.x * even.x * inverse, two.y * odd.x * inverse);
            if (ADDS) added[m][upper] += two.x * even.y + two.y * odd.y;
          }
        }
      }
#pragma unroll
      for (u32 n = 0; n < OUTPUT_TILES; n += 2) {
        u32 columns[4];
        ldmatrix_x4_trans(columns, values + first * STRIDE + n * 8);
        const u32 low[2] = {columns[0], columns[1]};
        const u32 high[2] = {columns[2], columns[3]};
#pragma unroll
        for (u32 m = 0; m < HEAD_TILES; ++m) {
          mma_m16n8k16(sums[m][n], rows[m], low);
          mma_m16n8k16(sums[m][n + 1], rows[m], high);
        }
      }
    }
  };

  const auto attend_tile = [&](u32 count, bool of_middle, bool pairs) {
    __syncthreads();  // tile and coefficients are complete
    score_tile(of_middle);
    __syncthreads();  // scores are complete
    weigh_tile(count, pairs);
    __syncthreads();  // weights are complete
    add_values();
    __syncthreads();  // tile and weights have been read before the next tile's take their place
  };

  // Exact tokens, one a warp at a time: `slot(token)` is the row of a token in the f16 array. Numbers that are all small are
  // brought to where the halves of codes are: beside coefficients of codes, weights times one would leave too little of theirs.
  const auto load_exact = [&](const u32* rows, u32 count, auto slot) {
    for (u32 token = warp; token < TILE_TOKENS; token += WARPS) {
      const u32* row = rows + slot(min(token, count - 1)) * TOKEN_WORDS;
      float largest = 0.0f;
      for (u32 word = lane; word < TOKEN_WORDS; word += 32) {
        const float2 two = unpack_half2(row[word]);
        largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
      }
      // To [2^6, 2^7) from below; larger numbers stay.
      const u32 exponent = min(__float_as_uint(warp_largest(largest)) >> 23 & 0xffu, 133u);
      const float factor = exponent == 0 ? 1.0f : __uint_as_float((260u - exponent) << 23);
      for (u32 word = lane; word < TOKEN_WORDS; word += 32) {
        const float2 two = unpack_half2(row[word]);
        reinterpret_cast<u32*>(tile + token * STRIDE)[word] = pack_half2(two.x * factor, two.y * factor);
      }
      for (u32 run = lane; run < RUNS; run += 32) {
        coefficients[run * TILE_TOKENS + token] = make_float2(token < count ? 1.0f / factor : 0.0f, 0.0f);
      }
    }
  };

  // Tokens of the middle from `first` on, with zero coefficients past `count`. All of a thread's loads but half of the
  // latents' are on their way before it waits for the first.
  const auto load_middle = [&](u32 first, u32 count) {
    typedef Eight<LATENT_BITS>::Words LatentWords;
    typedef Eight<ROTARY_BITS>::Words RotaryWords;
    constexpr u32 LATENT_EIGHTS = LATENT_DIM / 8;
    constexpr u32 ROTARY_EIGHTS = ROTARY_DIM / 8;
    constexpr u32 LATENT_LOADS = TILE_TOKENS * LATENT_EIGHTS / THREADS;
    constexpr u32 ROTARY_LOADS = (TILE_TOKENS * ROTARY_EIGHTS + THREADS - 1) / THREADS;
    constexpr u32 COEFFICIENT_LOADS = (RUNS * TILE_TOKENS + THREADS - 1) / THREADS;
    const auto* latents = reinterpret_cast<const LatentWords*>(cache + record[AT_LATENT_CODES]) + first * LATENT_EIGHTS;
    const auto* rotary = reinterpret_cast<const RotaryWords*>(cache + record[AT_ROTARY_KEYS]) + first * ROTARY_EIGHTS;
    const u32* latent_scales = cache + record[AT_LATENT_SCALES];
    const u32* rotary_scales = cache + record[AT_ROTARY_SCALES];

    float2 own_coefficients[COEFFICIENT_LOADS];
#pragma unroll
    for (u32 k = 0; k < COEFFICIENT_LOADS; ++k) {
      const u32 token = (k * THREADS + thread) % TILE_TOKENS;
      const u32 run = (k * THREADS + thread) / TILE_TOKENS;
      own_coefficients[k] = make_float2(0.0f, 0.0f);
      if (token < count && run < LATENT_BLOCKS) {
        const u32 block = (first + token) * LATENT_SCALE_WORDS * 2 + run;
        const float scale = half_at(latent_scales, block);
        own_coefficients[k] = make_float2(scale * LATENT_STEP, scale * LATENT_BASE);
      } else if (token < count && run == LATENT_BLOCKS) {
        const u32 block = (first + token) * ROTARY_SCALE_WORDS * 2;
        const float scale = half_at(rotary_scales, block);
        own_coefficients[k] = make_float2(scale * ROTARY_STEP, scale * ROTARY_BASE);
      }
    }
    RotaryWords rotary_codes[ROTARY_LOADS] = {};
#pragma unroll
    for (u32 k = 0; k < ROTARY_LOADS; ++k) {
      const u32 i = k * THREADS + thread;
      if (i / ROTARY_EIGHTS < count) rotary_codes[k] = rotary[i];
    }
#pragma unroll
    for (u32 part = 0; part < 2; ++part) {
      LatentWords codes[LATENT_LOADS / 2] = {};
#pragma unroll
      for (u32 k = 0; k < LATENT_LOADS / 2; ++k) {
        const u32 i = (part * LATENT_LOADS / 2 + k) * THREADS + thread;
        if (i / LATENT_EIGHTS < count) codes[k] = latents[i];
      }
#pragma unroll
      for (u32 k = 0; k < LATENT_LOADS / 2; ++k) {
        const u32 i = (part * LATENT_LOADS / 2 + k) * THREADS + thread;
        reinterpret_cast<uint4*>(tile + i / LATENT_EIGHTS * STRIDE)[i % LATENT_EIGHTS] =
            Eight<LATENT_BITS>::spread<LATENT_FLOAT_SHIFT>(codes[k]);
      }
    }
#pragma unroll
    for (u32 k = 0; k < ROTARY_LOADS; ++k) {
      const u32 i = k * THREADS + thread;
      if (i >= TILE_TOKENS * ROTARY_EIGHTS) break;
      reinterpret_cast<uint4*>(tile + i / ROTARY_EIGHTS * STRIDE + LATENT_DIM)[i % ROTARY_EIGHTS] =
          Eight<ROTARY_BITS>::spread<ROTARY_FLOAT_SHIFT>(rotary_codes[k]);
    }
#pragma unroll
    for (u32 k = 0; k < COEFFICIENT_LOADS; ++k) {
      const u32 i = k * THREADS + thread;
      if (i < RUNS * TILE_TOKENS) coefficients[i] = own_coefficients[k];
    }
  };

  // Stream tokens, at most HALF_TILE: what a half leaves of a number is another one, HALF_TILE rows on.
  const auto load_stream = [&](u32 first, u32 count) {
    const u32* norms = cache + record[AT_STREAM_NORMS] + first;
    const auto norm_of = [&](u32 token, bool of_latent) {
      return half_at(norms + token, of_latent ? 0 : 1);
    };
    for (u32 start = 0; start < HALF_TILE; start += STREAM_COLUMNS) {
      const u32 columns = start < count ? min(count - start, STREAM_COLUMNS) : 0;
      load_tokens<STREAM_COLUMNS>(scratch, record, cache, tables, STREAM_SEGMENT, first + start, columns);
      for (u32 i = thread; i < TOKEN_DIM * STREAM_COLUMNS; i += THREADS) {
        const u32 channel = i % TOKEN_DIM;
        const u32 column = i / TOKEN_DIM;
        u16* target = tile + (start + column) * STRIDE + channel;
        const float factor = column < columns ? norm_factor(norm_of(start + column, channel < LATENT_DIM)) : 0.0f;
        const float number = scratch[channel * STREAM_COLUMNS + column] * factor;
        const u16 rounded = float_to_half_saturated(number);
        target[0] = rounded;
        target[HALF_TILE * STRIDE] = float_to_half_saturated(number - half_to_float(rounded));
      }
      __syncthreads();  // the tokens have been read before the next ones take their place
    }
    for (u32 i = thread; i < RUNS * TILE_TOKENS; i += THREADS) {
      const u32 token = i % HALF_TILE;
      const bool of_latent = i / TILE_TOKENS < LATENT_BLOCKS;
      coefficients[i] = make_float2(token < count ? norm_inverse(norm_of(token, of_latent)) : 0.0f, 0.0f);
    }
  };

  // Where the segments end, in the order of tokens, and the share of this block.
  const u32 sinks_end = record[AT_SINK_TOKENS];
  const u32 middle_end = sinks_end + record[AT_MIDDLE_TOKENS];
  const u32 stream_end = middle_end + record[AT_STREAM_TOKENS];
  const TokenRange share = share_of(own, record, stream_end + record[AT_WINDOW_TOKENS]);
  const u32 middle_to = clamp(share.end, sinks_end, middle_end);
  for (u32 first = clamp(share.begin, sinks_end, middle_end); first < middle_to; first += TILE_TOKENS) {
    const u32 count = min(TILE_TOKENS, middle_to - first);
    load_middle(first - sinks_end, count);
    attend_tile(count, true, false);
  }
  for (u32 first = share.begin; first < min(share.end, sinks_end); first += TILE_TOKENS) {
    const u32 count = min(TILE_TOKENS, min(share.end, sinks_end) - first);
    load_exact(cache + record[AT_SINK_KEYS], count, [&](u32 token) { return first + token; });
    attend_tile(count, false, false);
  }
  const u32 stream_to = clamp(share.end, middle_end, stream_end);
  for (u32 first = clamp(share.begin, middle_end, stream_end); first < stream_to; first += HALF_TILE) {
    const u32 count = min(HALF_TILE, stream_to - first);
    load_stream(first - middle_end, count);
    attend_tile(count, false, true);
  }
  const u32 ring_start = record[AT_WINDOW_START];
  for (u32 first = max(share.begin, stream_end); first < share.end; first += TILE_TOKENS) {
    const u32 count = min(TILE_TOKENS, share.end - first);
    load_exact(cache + record[AT_WINDOW_KEYS], count,
               [&](u32 token) { return (ring_start + first - stream_end + token) % WINDOW; });
    attend_tile(count, false, false);
  }

  float* partial = partials + item * PARTIAL_WORDS;
#pragma unroll
  for (u32 m = 0; m < HEAD_TILES; ++m) {
#pragma unroll
    for (u32 upper = 0; upper < 2; ++upper) {
      float offset = added[m][upper];
      offset += __shfl_xor_sync(0xffffffffu, offset, 1);
      offset += __shfl_xor_sync(0xffffffffu, offset, 2);
      const u32 head = m * 16 + group + upper * 8;
      if (head >= HEADS_PER_BLOCK) continue;
#pragma unroll
      for (u32 n = 0; n < OUTPUT_TILES; ++n) {
        float* target = partial + head * PARTIAL_ROW + warp * 64 + n * 8 + pair;
        target[0] = sums[m][n][upper * 2] * unit + offset;
        target[1] = sums[m][n][upper * 2 + 1] * unit + offset;
      }
    }
  }
#pragma unroll
  for (u32 k = 0; k < HEADS_PER_WARP; ++k) {
    const u32 head = warp + k * WARPS;
    if (lane != 0 || head >= HEADS_PER_BLOCK) continue;
    partial[head * PARTIAL_ROW + LATENT_DIM] = maxima[k];
    partial[head * PARTIAL_ROW + LATENT_DIM + 1] = weight_sums[k];
  }

  __threadfence();  // this thread's part of the partials is visible to whoever sees the count below
  __syncthreads();  // so is every thread's, before the block is counted
  const u32 row = own.row * (HEADS / HEADS_PER_BLOCK) + head_block;
  if (thread == 0) finished = atomicAdd(counters + row, 1u) + 1;
  __syncthreads();  // all know how many blocks of the row are done
  if (finished < own.splits) return;
  __threadfence();  // what the others wrote before they were counted is read after

  merge_splits(partials + (item - own.split) * PARTIAL_WORDS, own.splits,
               output + (own.row * HEADS + head_block * HEADS_PER_BLOCK) * LATENT_DIM);
  if (thread == 0) counters[row] = 0;  // every block of the row has been counted: ready for the next launch
}
