// basis_ritz: small = basis^T * product, symmetrised: the matrix seen from inside the subspace.
// Stage basis of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: choleskyQr = 1, sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 32;  // components of a key
constexpr u32 TILE = 16;  // rows and columns of a matrix tile

// One TILE x TILE tile of the small matrix a block, one entry a thread: the mean of basis^T * product and its
// transpose. WIDTH and RANK are multiples of TILE.
extern "C" __global__ void __launch_bounds__(256) basis_ritz(
    const float* __restrict__ basis,  // [192][32]
    const float* __restrict__ product,  // [192][32]
    float* small  // [32][32]
) {
  __shared__ float basis_rows[TILE][TILE];       // columns of the basis that the tile's rows stand for
  __shared__ float product_columns[TILE][TILE];  // columns of the product that the tile's columns stand for
  __shared__ float basis_columns[TILE][TILE];    // the same two for the transpose
  __shared__ float product_rows[TILE][TILE];
  const u32 x = threadIdx.x % TILE;
  const u32 y = threadIdx.x / TILE;
  const u32 first_row = blockIdx.y * TILE;
  const u32 first_column = blockIdx.x * TILE;
  float total = 0.0f;
  float transposed = 0.0f;
  for (u32 first = 0; first < WIDTH; first += TILE) {
    const u32 source = (first + y) * RANK + x;
    basis_rows[y][x] = basis[source + first_row];
    product_columns[y][x] = product[source + first_column];
    basis_columns[y][x] = basis[source + first_column];
    product_rows[y][x] = product[source + first_row];
    __syncthreads();  // the tiles are filled
    float sum = 0.0f;
    float mirror = 0.0f;
    for (u32 k = 0; k < TILE; ++k) {
      sum += basis_rows[k][y] * product_columns[k][x];
      mirror += basis_columns[k][x] * product_rows[k][y];
    }
    total += sum;
    transposed += mirror;
    __syncthreads();  // the tiles have been used
  }
  // The entries (i, j) and (j, i) add the same two numbers: the matrix is symmetric to the last bit.
  small[(first_row + y) * RANK + first_column + x] = 0.5f * (total + transposed);
}
