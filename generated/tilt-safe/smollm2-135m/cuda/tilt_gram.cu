// tilt_gram: Second moments of every KV head: a tile of the matrix over one slice of the tokens a block.
// Stage fit of scheme tilt-safe for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 MATRIX_TILE = 64;  // rows and columns of a matrix tile
constexpr u32 PER_THREAD = 4;  // rows and columns of a tile that a thread holds, or rows of one column
constexpr u32 SLICES = 8;  // threads, or blocks, that share one sum

constexpr u32 depth = 32;  // terms of a sum that are staged at a time: enough work to hide the loads of the next ones

// Adds terms first to end - 1 of a tile of a matrix product: (rows * 16) x (columns * 16) entries by 256 threads as
// 16 x 16, neighbouring entries a thread. `left(k, row)` and `right(k, column)` are the factors of term k; neighbouring
// threads ask for neighbouring rows, or terms where `left_along_terms`, as these lie side by side in memory. Two stages
// take turns, so that the loads of one run beside the products of the other.
template <u32 rows, u32 columns, bool left_along_terms, typename Left, typename Right>
__device__ __forceinline__ void add_tile_product(
    float (&total)[rows][columns], float (&left_stages)[2][depth][rows * 16 + 4],
    float (&right_stages)[2][depth][columns * 16 + 4], u32 first, u32 end, const Left& left, const Right& right) {
  if (first >= end) return;

  const u32 x = threadIdx.x % 16 * columns;
  const u32 y = threadIdx.x / 16 * rows;
  constexpr u32 parts = depth / 16;
  float next_left[rows * parts];
  float next_right[columns * parts];
  const auto left_term = [](u32 i) { return left_along_terms ? i % depth : i / (rows * 16); };
  const auto left_row = [](u32 i) { return left_along_terms ? i / depth : i % (rows * 16); };
  const auto load = [&](u32 at) {
#pragma unroll
    for (u32 part = 0; part < rows * parts; ++part) {
      const u32 i = threadIdx.x + part * THREADS;
      const u32 k = at + left_term(i);
      next_left[part] = k < end ? left(k, left_row(i)) : 0.0f;
    }
#pragma unroll
    for (u32 part = 0; part < columns * parts; ++part) {
      const u32 i = threadIdx.x + part * THREADS;
      const u32 k = at + i / (columns * 16);
      next_right[part] = k < end ? right(k, i % (columns * 16)) : 0.0f;
    }
  };
  const auto store = [&](u32 stage) {
#pragma unroll
    for (u32 part = 0; part < rows * parts; ++part) {
      const u32 i = threadIdx.x + part * THREADS;
      left_stages[stage][left_term(i)][left_row(i)] = next_left[part];
    }
#pragma unroll
    for (u32 part = 0; part < columns * parts; ++part) {
      const u32 i = threadIdx.x + part * THREADS;
      right_stages[stage][i / (columns * 16)][i % (columns * 16)] = next_right[part];
    }
  };

  load(first);
  store(0);
  __syncthreads();  // the first stage is filled
  u32 stage = 0;
  for (u32 at = first; at < end; at += depth) {
    const bool more = at + depth < end;
    if (more) load(at + depth);
#pragma unroll
    for (u32 k = 0; k < depth; ++k) {
      float left_factors[rows];
      float right_factors[columns];
#pragma unroll
      for (u32 r = 0; r < rows; ++r) left_factors[r] = left_stages[stage][k][y + r];
#pragma unroll
      for (u32 c = 0; c < columns; ++c) right_factors[c] = right_stages[stage][k][x + c];
#pragma unroll
      for (u32 r = 0; r < rows; ++r) {
#pragma unroll
        for (u32 c = 0; c < columns; ++c) total[r][c] += left_factors[r] * right_factors[c];
      }
    }
    stage ^= 1;
    if (more) store(stage);
    __syncthreads();  // the next stage is filled, and this one has been used
  }
}

// A tile of MATRIX_TILE x MATRIX_TILE entries of one KV head's matrix over one slice of the tokens a block. The matrix is symmetric to
// the bit, as both halves add the same products in the same order.
extern "C" __global__ void __launch_bounds__(256) tilt_gram(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ turned,  // [middle tokens][192], tile-rotated and weighted
    float* partial_gram  // [8 slices of the tokens][3 KV heads][64][64], sums
) {
  __shared__ __align__(16) float left[2][depth][MATRIX_TILE + 4];   // channels of the tile's rows
  __shared__ __align__(16) float right[2][depth][MATRIX_TILE + 4];  // channels of the tile's columns
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 head = blockIdx.z / SLICES;
  const u32 slice = blockIdx.z % SLICES;
  const u32 share = (middle + SLICES - 1) / SLICES;
  const u32 first = min(slice * share, middle);
  const u32 first_row = blockIdx.y * MATRIX_TILE;
  const u32 first_column = blockIdx.x * MATRIX_TILE;
  // Past the last channel: zeros, which add nothing.
  const auto channel_of = [&](u32 token, u32 channel) {
    return channel < HEAD_DIM ? turned[token * WIDTH + head * HEAD_DIM + channel] : 0.0f;
  };
  const auto left_key = [&](u32 token, u32 row) { return channel_of(token, first_row + row); };
  const auto right_key = [&](u32 token, u32 column) { return channel_of(token, first_column + column); };
  // Summed by slice first: the rounding error then grows with slices + tokens of a slice, not with their product.
  float total[PER_THREAD][PER_THREAD] = {};
  add_tile_product<PER_THREAD, PER_THREAD, false>(total, left, right, first, min(first + share, middle), left_key, right_key);

  float* moments = partial_gram + (slice * KV_HEADS + head) * HEAD_DIM * HEAD_DIM;
#pragma unroll
  for (u32 r = 0; r < PER_THREAD; ++r) {
    const u32 row = first_row + threadIdx.x / 16 * PER_THREAD + r;
#pragma unroll
    for (u32 c = 0; c < PER_THREAD; ++c) {
      const u32 column = first_column + threadIdx.x % 16 * PER_THREAD + c;
      if (row < HEAD_DIM && column < HEAD_DIM) moments[row * HEAD_DIM + column] = total[r][c];
    }
  }
}
