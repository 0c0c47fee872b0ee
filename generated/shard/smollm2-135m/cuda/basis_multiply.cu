// basis_multiply: product = gram * basis.
// Stage basis of scheme shard for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tile = 16

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 32;  // components of a key
constexpr u32 TILE = 16;  // rows and columns of a matrix tile

// One TILE x TILE tile of the product a block, one entry a thread. WIDTH and RANK are multiples of TILE.
extern "C" __global__ void __launch_bounds__(256) basis_multiply(
    const float* __restrict__ gram,  // [192][192], symmetric
    const float* __restrict__ basis,  // [192][32]
    float* product  // [192][32]
) {
  __shared__ float left[TILE][TILE];   // rows of the gram matrix
  __shared__ float right[TILE][TILE];  // rows of the basis
  const u32 x = threadIdx.x % TILE;
  const u32 y = threadIdx.x / TILE;
  const u32 row = blockIdx.y * TILE + y;
  const u32 column = blockIdx.x * TILE + x;
  float total = 0.0f;
  for (u32 first = 0; first < WIDTH; first += TILE) {
    left[y][x] = gram[row * WIDTH + first + x];
    right[y][x] = basis[(first + y) * RANK + column];
    __syncthreads();  // both tiles are filled
    float sum = 0.0f;
    for (u32 k = 0; k < TILE; ++k) sum += left[y][k] * right[k][x];
    total += sum;
    __syncthreads();  // both tiles have been used
  }
  product[row * RANK + column] = total;
}
