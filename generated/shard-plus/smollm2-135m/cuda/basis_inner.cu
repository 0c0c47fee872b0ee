// basis_inner: Inner products of all columns in float64: basis^T * basis, on and below the diagonal.
// Stage basis of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: choleskyQr = 1, sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 32;  // components of a key
constexpr u32 THREADS = 512;  // threads of a block

constexpr u32 tile = 16;
constexpr u32 stage_rows = 32;
constexpr u32 teams = THREADS / 64;  // of 64 threads with 2 x 2 entries each; every team adds up rows of its own

// One tile of the inner products of all columns a block, on or below the diagonal. In float64, whose range holds the
// square of every float, and whose precision lets columns be told apart as far as float32 does: their inner products
// lose twice the digits (Yamazaki, Tomov, Dongarra 2015).
extern "C" __global__ void __launch_bounds__(512) basis_inner(
    const float* __restrict__ basis,  // [192][32]
    u32* inner  // [32][32] float64, two words each
) {
  __shared__ __align__(16) double left[stage_rows][tile];
  __shared__ __align__(16) double right[stage_rows][tile];
  __shared__ double sums[teams][tile][tile];
  if (blockIdx.x > blockIdx.y) return;

  const u32 team = threadIdx.x / 64;
  const u32 x = threadIdx.x % 8 * 2;
  const u32 y = threadIdx.x / 8 % 8 * 2;
  double total[2][2] = {};
  for (u32 first = 0; first < WIDTH; first += stage_rows) {
    for (u32 i = threadIdx.x; i < stage_rows * tile; i += THREADS) {
      const u32 row = first + i / tile;
      const u32 column = i % tile;
      left[i / tile][column] = row < WIDTH ? basis[row * RANK + blockIdx.y * tile + column] : 0.0f;
      right[i / tile][column] = row < WIDTH ? basis[row * RANK + blockIdx.x * tile + column] : 0.0f;
    }
    __syncthreads();  // both tiles are filled
#pragma unroll 4
    for (u32 row = team; row < stage_rows; row += teams) {
#pragma unroll
      for (u32 r = 0; r < 2; ++r) {
#pragma unroll
        for (u32 c = 0; c < 2; ++c) total[r][c] += left[row][y + r] * right[row][x + c];
      }
    }
    __syncthreads();  // both tiles have been used
  }

#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
#pragma unroll
    for (u32 c = 0; c < 2; ++c) sums[team][y + r][x + c] = total[r][c];
  }
  __syncthreads();  // every team's sums are there
  double* products = reinterpret_cast<double*>(inner);
  for (u32 i = threadIdx.x; i < tile * tile; i += THREADS) {
    double sum = 0.0;
    for (u32 part = 0; part < teams; ++part) sum += sums[part][i / tile][i % tile];
    products[(blockIdx.y * tile + i / tile) * RANK + blockIdx.x * tile + i % tile] = sum;
  }
}
