// basis_multiply: product = gram * basis.
// Stage basis of scheme shard for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: choleskyQr = 1, sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 192;  // components of a key
constexpr u32 THREADS = 256;  // threads of a block

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

// A tile of 64 x 32 entries of the product a block, 4 x 2 a thread.
extern "C" __global__ void __launch_bounds__(256) basis_multiply(
    const float* __restrict__ gram,  // [1024][1024], symmetric
    const float* __restrict__ basis,  // [1024][192]
    float* product  // [1024][192]
) {
  __shared__ __align__(16) float left[2][depth][68];   // columns of the gram matrix: its rows, as it is symmetric
  __shared__ __align__(16) float right[2][depth][36];  // rows of the basis
  const u32 first_row = blockIdx.y * 64;
  const u32 first_column = blockIdx.x * 32;
  // Past the last row and column: zeros, which nobody stores.
  const auto gram_entry = [&](u32 k, u32 row) {
    return first_row + row < WIDTH ? gram[k * WIDTH + first_row + row] : 0.0f;
  };
  const auto basis_entry = [&](u32 k, u32 column) {
    return first_column + column < RANK ? basis[k * RANK + first_column + column] : 0.0f;
  };
  float total[4][2] = {};
  add_tile_product<4, 2, false>(total, left, right, 0, WIDTH, gram_entry, basis_entry);

#pragma unroll
  for (u32 r = 0; r < 4; ++r) {
    const u32 row = first_row + threadIdx.x / 16 * 4 + r;
#pragma unroll
    for (u32 c = 0; c < 2; ++c) {
      const u32 column = first_column + threadIdx.x % 16 * 2 + c;
      if (row < WIDTH && column < RANK) product[row * RANK + column] = total[r][c];
    }
  }
}
