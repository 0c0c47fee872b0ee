// attend_fp16: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attendFp16 for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// tunables: warps = 8, stages = 2, tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 HEADS = 32;  // query heads
constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 GROUP_SIZE = 4;  // query heads that share a KV head
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 WORK_ITEM_WORDS = 6;  // words of a work item
constexpr u32 PARTIAL_WORDS = 528;  // numbers of one partial result
constexpr u32 RECORD_WORDS = 3;  // words of a sequence record
constexpr u32 AT_TOKENS = 0;  // in the record, tokens that the sequence holds
constexpr u32 AT_ROOM = 1;  // in the record, tokens that the sequence has room for
constexpr u32 AT_SLIDING_WINDOW = 2;  // in the record, tokens that a query sees, its own included; 0 for all
constexpr u32 CHUNK_UNIT = 16;  // a split gets a multiple of so many tokens
constexpr float SCORE_SCALE = 0.127517432f;  // what q.k is multiplied with first
constexpr u32 WARPS = 8;  // warps of a block
constexpr u32 STAGES = 2;  // tiles of a warp in shared memory, most of them on their way
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile
constexpr u32 SHARED_BYTES = 139264;  // shared memory that a launch asks for

// Every warp takes tiles of tokens in turn, and keeps a ring of them in shared memory that it fills by asynchronous
// copies: until its last tile has been asked for, STAGES - 1 tiles are on their way from memory. Warps wait for nobody
// until they merge. Both products run on tensor cores, with the query heads of the group in the rows (scores) and in
// the columns (output) of their operands.

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

constexpr u32 ROW_BYTES = HEAD_DIM * 2 + 16;              // of a token in shared memory; an odd number of 16 spreads rows over the banks
constexpr u32 ROW_PIECES = HEAD_DIM / 8;                  // pieces of 16 bytes, as they are copied
constexpr u32 TILE_BYTES = TILE_TOKENS * ROW_BYTES;       // keys or values of a tile
constexpr u32 RING_BYTES = STAGES * 2 * TILE_BYTES;       // of a warp: stage by stage, keys and then values
constexpr u32 CHANNEL_STEPS = HEAD_DIM / 16;              // k = 16 steps of the scores, m = 16 tiles of the output
constexpr u32 TOKEN_STEPS = TILE_TOKENS / 16;             // k = 16 steps of the output
constexpr u32 HEAD_TILES = (GROUP_SIZE + 7) / 8;          // n = 8 tiles of query heads in the output product
constexpr bool KEEPS_QUERY = HEAD_DIM * HEAD_TILES <= 256;  // in registers; read again for every tile where outputs fill them
constexpr u32 PART_ROW = HEAD_DIM + 4;                    // floats of a head in a partial result; 4 more spread heads over the banks
constexpr u32 QUADS = GROUP_SIZE * HEAD_DIM / 4;          // vectors of four channels of a partial result
constexpr u32 SLICES = THREADS / QUADS > WARPS ? WARPS : THREADS / QUADS > 1 ? THREADS / QUADS : 1;  // threads that share a merged sum
constexpr u32 MERGE_BATCH = 8;                            // partial results that a thread loads before it adds the first

// What takes the place of the rings at the end, in bytes.
constexpr u32 SHARED_SLICES = WARPS * PARTIAL_WORDS * 4;  // after the partial results of the warps
constexpr u32 SHARED_FLAG = SHARED_SLICES + THREADS * 32;
constexpr u32 MERGE_BYTES = SHARED_FLAG + 16;

static_assert(PARTIAL_WORDS == GROUP_SIZE * PART_ROW, "a partial result is what a launch has room for");
static_assert((WARPS * RING_BYTES > MERGE_BYTES ? WARPS * RING_BYTES : MERGE_BYTES) == SHARED_BYTES,
              "what is placed is what a launch asks for");

extern __shared__ __align__(16) unsigned char shared_memory[];

// What a warp carries from tile to tile: the running maximum of query heads lane / 4 and lane / 4 + 8, this lane's share
// of their weight sum, and the unnormalised output, channels by heads, in mma accumulator layout.
struct Softmax {
  float largest[HEAD_TILES];
  float weight[HEAD_TILES];
  float output[CHANNEL_STEPS][HEAD_TILES][4];
};

__device__ __forceinline__ void reset(Softmax& state) {
#pragma unroll
  for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
    state.largest[heads] = MASKED;
    state.weight[heads] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < CHANNEL_STEPS * 4; ++i) state.output[i / 4][heads][i % 4] = 0.0f;
  }
}

// Asks for `count` rows that lie one after the other; rows past them become zero, as zero times what was there before
// need not be zero.
__device__ __forceinline__ void fetch_rows(unsigned char* tile, const u32* rows, u32 count) {
#pragma unroll
  for (u32 i = 0; i < TILE_TOKENS * ROW_PIECES / 32; ++i) {
    const u32 piece = i * 32 + lane_id();
    const u32 token = piece / ROW_PIECES;
    unsigned char* place = tile + token * ROW_BYTES + piece % ROW_PIECES * 16;
    if (token < count) {
      cp_async_16_of_line(place, rows + piece * 4);
    } else {
      *reinterpret_cast<uint4*>(place) = uint4{0u, 0u, 0u, 0u};
    }
  }
}

// The query heads of the group as an A operand of the scores, zero in the rows below them.
__device__ __forceinline__ void load_query(u32 (&fragment)[4], const u32* query, const WorkItem& own, u32 step) {
  const u32* rows = query + (own.row * HEADS + own.kv_head * GROUP_SIZE) * (HEAD_DIM / 2);
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 head = lane_id() / 4 + i % 2 * 8;
    const u32 word = step * 8 + lane_id() % 4 + i / 2 * 4;
    fragment[i] = head < GROUP_SIZE ? rows[head * (HEAD_DIM / 2) + word] : 0u;
  }
}

// Where this lane's row of four 8x8 matrices begins: tokens 0 to 7 of a step of 16, their next eight channels, and the
// same of tokens 8 to 15.
__device__ __forceinline__ const unsigned char* matrix_row(const unsigned char* tile, u32 token_step, u32 channel_step) {
  const u32 token = token_step * 16 + lane_id() / 16 * 8 + lane_id() % 8;
  return tile + token * ROW_BYTES + channel_step * 32 + lane_id() / 8 % 2 * 16;
}

// Takes the `count` tokens of a tile into the softmax; `query_at(fragment, step)` gives the operands of the query.
template <typename QueryAt>
__device__ __forceinline__ void take_tile(Softmax& state, QueryAt query_at, const unsigned char* keys,
                                          const unsigned char* values, u32 count) {
  float scores[TOKEN_STEPS * 2][4] = {};  // [eight tokens][head lane / 4, tokens 2t and 2t + 1, then head lane / 4 + 8]
#pragma unroll
  for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
    u32 query[4];
    query_at(query, step);
#pragma unroll
    for (u32 tokens = 0; tokens < TOKEN_STEPS; ++tokens) {
      u32 rows[4];
      ldmatrix_x4(rows, matrix_row(keys, tokens, step));
      const u32 first[2] = {rows[0], rows[1]};
      const u32 second[2] = {rows[2], rows[3]};
      mma_m16n8k16(scores[tokens * 2], query, first);
      mma_m16n8k16(scores[tokens * 2 + 1], query, second);
    }
  }

  float shrink[HEAD_TILES];
  bool risen = false;
#pragma unroll
  for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
    float largest = state.largest[heads];
#pragma unroll
    for (u32 i = 0; i < TOKEN_STEPS * 4; ++i) {
      const u32 token = i / 2 * 8 + lane_id() % 4 * 2 + i % 2;
      float& score = scores[i / 2][heads * 2 + i % 2];
      score = token < count ? score_exponent(score * SCORE_SCALE) : MASKED;
      largest = fmaxf(largest, score);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    risen = risen || largest > state.largest[heads];
    shrink[heads] = exp2f(state.largest[heads] - largest);
    state.largest[heads] = largest;
    state.weight[heads] *= shrink[heads];
#pragma unroll
    for (u32 i = 0; i < TOKEN_STEPS * 4; ++i) {
      float& score = scores[i / 2][heads * 2 + i % 2];
      score = exp2f(score - largest);
      state.weight[heads] += score;
    }
  }

  // The output holds heads in columns: its factor comes from the lanes that hold those heads in rows.
  if (__any_sync(0xffffffffu, risen)) {
#pragma unroll
    for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
      const float factors[2] = {__shfl_sync(0xffffffffu, shrink[heads], lane_id() % 4 * 8),
                                __shfl_sync(0xffffffffu, shrink[heads], lane_id() % 4 * 8 + 4)};
#pragma unroll
      for (u32 i = 0; i < CHANNEL_STEPS * 4; ++i) state.output[i / 4][heads][i % 4] *= factors[i % 2];
    }
  }

#pragma unroll
  for (u32 tokens = 0; tokens < TOKEN_STEPS; ++tokens) {
    u32 weights[HEAD_TILES][2];
#pragma unroll
    for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
      weights[heads][0] = pack_half2(scores[tokens * 2][heads * 2], scores[tokens * 2][heads * 2 + 1]);
      weights[heads][1] = pack_half2(scores[tokens * 2 + 1][heads * 2], scores[tokens * 2 + 1][heads * 2 + 1]);
    }
#pragma unroll
    for (u32 step = 0; step < CHANNEL_STEPS; ++step) {
      u32 columns[4];
      ldmatrix_x4_trans(columns, matrix_row(values, tokens, step));
#pragma unroll
      for (u32 heads = 0; heads < HEAD_TILES; ++heads) mma_m16n8k16(state.output[step][heads], columns, weights[heads]);
    }
  }
}

// Writes the partial result of a warp: outputs, maximum and weight sum of every query head.
__device__ __forceinline__ void store_part(const Softmax& state, float* part) {
#pragma unroll
  for (u32 heads = 0; heads < HEAD_TILES; ++heads) {
#pragma unroll
    for (u32 i = 0; i < CHANNEL_STEPS * 4; ++i) {
      const u32 head = heads * 8 + lane_id() % 4 * 2 + i % 2;
      const u32 channel = i / 4 * 16 + i % 4 / 2 * 8 + lane_id() / 4;
      if (head < GROUP_SIZE) part[head * PART_ROW + channel] = state.output[i / 4][heads][i % 4];
    }
    float weight = state.weight[heads];
    weight += __shfl_xor_sync(0xffffffffu, weight, 1);
    weight += __shfl_xor_sync(0xffffffffu, weight, 2);
    const u32 head = heads * 8 + lane_id() / 4;
    if (head < GROUP_SIZE && lane_id() % 4 == 0) {
      part[head * PART_ROW + HEAD_DIM] = state.largest[heads];
      part[head * PART_ROW + HEAD_DIM + 1] = weight;
    }
  }
}

// Four channels of a head, unnormalised, with the maximum and the weight sum of what they are summed over.
struct __align__(16) Sum {
  float4 channels;
  float largest, weight;
};

__device__ __forceinline__ void add(Sum& sum, const Sum& other) {
  const float largest = fmaxf(sum.largest, other.largest);
  const float own = exp2f(sum.largest - largest);
  const float its = exp2f(other.largest - largest);
  sum.channels.x = sum.channels.x * own + other.channels.x * its;
  sum.channels.y = sum.channels.y * own + other.channels.y * its;
  sum.channels.z = sum.channels.z * own + other.channels.z * its;
  sum.channels.w = sum.channels.w * own + other.channels.w * its;
  sum.weight = sum.weight * own + other.weight * its;
  sum.largest = largest;
}

// Merges `count` partial results by log-sum-exp and calls `take(head, channel, sum)` for every four channels. Threads
// that share a sum take every SLICES-th part; a thread loads several before it adds them, as each load takes long.
template <typename Take>
__device__ __forceinline__ void merge_parts(const float* parts, u32 count, Take take) {
  Sum* slices = reinterpret_cast<Sum*>(shared_memory + SHARED_SLICES);
  for (u32 i = threadIdx.x; i < QUADS * SLICES; i += THREADS) {
    const u32 head = i % QUADS / (HEAD_DIM / 4);
    const u32 channel = i % (HEAD_DIM / 4) * 4;
    Sum sum = {};
    sum.largest = MASKED;
    for (u32 first = i / QUADS; first < count; first += SLICES * MERGE_BATCH) {
      Sum loaded[MERGE_BATCH] = {};
#pragma unroll
      for (u32 k = 0; k < MERGE_BATCH; ++k) {
        loaded[k].largest = MASKED;
        if (first + k * SLICES < count) {
          const float* row = parts + (first + k * SLICES) * PARTIAL_WORDS + head * PART_ROW;
          loaded[k].channels = *reinterpret_cast<const float4*>(row + channel);
          const float2 both = *reinterpret_cast<const float2*>(row + HEAD_DIM);
          loaded[k].largest = both.x;
          loaded[k].weight = both.y;
        }
      }
#pragma unroll
      for (u32 k = 0; k < MERGE_BATCH; ++k) add(sum, loaded[k]);
    }
    if (SLICES == 1) {
      take(head, channel, sum);
    } else {
      slices[i] = sum;
    }
  }
  if (SLICES == 1) return;
  __syncthreads();  // all slices of every sum are there
  if (threadIdx.x < QUADS) {
    Sum sum = slices[threadIdx.x];
    for (u32 slice = 1; slice < SLICES; ++slice) add(sum, slices[slice * QUADS + threadIdx.x]);
    take(threadIdx.x / (HEAD_DIM / 4), threadIdx.x % (HEAD_DIM / 4) * 4, sum);
  }
}

extern "C" __global__ void __launch_bounds__(256) attend_fp16(
    const u32* __restrict__ sequences,  // [sequences][tokens, room, sliding window or 0]
    const u32* __restrict__ work,  // [work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours
    const u32* __restrict__ keys,  // f16 [sequences][8 KV heads][tokens that there is room for][128], after RoPE
    const u32* __restrict__ values,  // f16 [sequences][8 KV heads][tokens that there is room for][128]
    const u32* __restrict__ query,  // f16 [query rows][32 heads][128], after RoPE
    float* partials,  // [work items][4 query heads][128 output, maximum, weight sum, 2 unused]
    float* output,  // [query rows][32 heads][128]
    u32* counters  // [query rows][8 KV heads], zero before and after
) {
  const u32 item = blockIdx.x;
  const WorkItem own = work_item(work, item);
  const u32* record = sequences + own.sequence * RECORD_WORDS;
  const TokenRange share = share_of(own, record, record[AT_TOKENS]);
  const u32 head_words = (own.sequence * KV_HEADS + own.kv_head) * record[AT_ROOM] * (HEAD_DIM / 2);
  const u32 warp = threadIdx.x / 32;
  unsigned char* ring = shared_memory + warp * RING_BYTES;
  const auto fetch_tile = [&](u32 stage, u32 first) {
    if (first < share.end) {
      unsigned char* tile = ring + stage * 2 * TILE_BYTES;
      const u32 at = head_words + first * (HEAD_DIM / 2);
      fetch_rows(tile, keys + at, min(share.end - first, TILE_TOKENS));
      fetch_rows(tile + TILE_BYTES, values + at, min(share.end - first, TILE_TOKENS));
    }
    cp_async_commit();  // also with nothing in it: a wait counts groups
  };

  const u32 begin = share.begin + warp * TILE_TOKENS;
#pragma unroll 1
  for (u32 stage = 0; stage < STAGES; ++stage) fetch_tile(stage, begin + stage * WARPS * TILE_TOKENS);
  u32 fragments[CHANNEL_STEPS][4];
#pragma unroll
  for (u32 step = 0; step < CHANNEL_STEPS; ++step) load_query(fragments[step], query, own, step);
  const auto query_at = [&](u32(&fragment)[4], u32 step) {
    if (KEEPS_QUERY) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) fragment[i] = fragments[step][i];
    } else {
      load_query(fragment, query, own, step);
    }
  };
  Softmax state;
  reset(state);
  u32 stage = 0;
  for (u32 first = begin; first < share.end; first += WARPS * TILE_TOKENS) {
    cp_async_wait<STAGES - 1>();
    __syncwarp();  // what every lane asked for of this tile is there
    const unsigned char* tile = ring + stage * 2 * TILE_BYTES;
    take_tile(state, query_at, tile, tile + TILE_BYTES, share.end - first);
    __syncwarp();  // every lane has read the tile: another one may take its place
    fetch_tile(stage, first + STAGES * WARPS * TILE_TOKENS);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }

  float* outputs = output + (own.row * HEADS + own.kv_head * GROUP_SIZE) * HEAD_DIM;
  const auto finish = [&](u32 head, u32 channel, const Sum& sum) {
    // A row without tokens has no weight: it stays zero.
    const float scale = sum.weight > 0.0f ? 1.0f / sum.weight : 0.0f;
    *reinterpret_cast<float4*>(outputs + head * HEAD_DIM + channel) = float4{
        sum.channels.x * scale, sum.channels.y * scale, sum.channels.z * scale, sum.channels.w * scale};
  };
  float* parts = reinterpret_cast<float*>(shared_memory);
  __syncthreads();  // no warp needs its ring any more: the results of the warps take the place
  store_part(state, parts + warp * PARTIAL_WORDS);
  __syncthreads();  // the results of all warps are there
  if (own.splits == 1) {
    merge_parts(parts, WARPS, finish);
    return;
  }
  float* partial = partials + item * PARTIAL_WORDS;
  merge_parts(parts, WARPS, [&](u32 head, u32 channel, const Sum& sum) {
    *reinterpret_cast<float4*>(partial + head * PART_ROW + channel) = sum.channels;
    if (channel == 0) *reinterpret_cast<float2*>(partial + head * PART_ROW + HEAD_DIM) = float2{sum.largest, sum.weight};
  });

  // The last block of a row merges. Its fence and its atomic stand for the whole block, as barriers are around them.
  __syncthreads();  // the partial result is complete before the block is counted
  u32* merges = reinterpret_cast<u32*>(shared_memory + SHARED_FLAG);
  if (threadIdx.x == 0) {
    __threadfence();
    u32* counter = counters + own.row * KV_HEADS + own.kv_head;
    const bool last = atomicAdd(counter, 1u) == own.splits - 1;
    if (last) *counter = 0u;
    __threadfence();
    merges[0] = last ? 1u : 0u;
  }
  __syncthreads();  // all know whether the other blocks of the row are done
  if (merges[0] != 0u) merge_parts(partials + (item - own.split) * PARTIAL_WORDS, own.splits, finish);
}
