// project_keys: coefficients = (plain - mean) * columns, and the magnitudes of every component over a tile of tokens.
// Stage project of scheme shard for phi-3-mini. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 576, bits 4/4/4/4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 WIDTH = 3072;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 576;  // components of a key
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 TILE = 16;  // rows and columns of a matrix tile
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile

// One TILE_TOKENS x TILE tile of coefficients a block, one a thread. WIDTH and RANK are multiples of TILE.
extern "C" __global__ void __launch_bounds__(256) project_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][3072], before RoPE
    const float* __restrict__ mean,  // [3072]
    const float* __restrict__ columns,  // [3072][576]
    float* coefficients,  // [middle tokens][576]
    float* partial_maxima  // [tiles][576]
) {
  __shared__ float centred[TILE_TOKENS][TILE];
  __shared__ float column_rows[TILE][TILE];
  __shared__ float magnitudes[TILE_TOKENS][TILE];
  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 x = threadIdx.x % TILE;
  const u32 y = threadIdx.x / TILE;
  const u32 token = blockIdx.y * TILE_TOKENS + y;
  const u32 component = blockIdx.x * TILE + x;
  if (blockIdx.y * TILE_TOKENS >= middle) return;

  float total = 0.0f;
  for (u32 first = 0; first < WIDTH; first += TILE) {
    const u32 channel = first + x;
    centred[y][x] = token < middle ? plain[token * WIDTH + channel] - mean[channel] : 0.0f;
    column_rows[y][x] = columns[(first + y) * RANK + component];
    __syncthreads();  // both tiles are filled
    float sum = 0.0f;
    for (u32 k = 0; k < TILE; ++k) sum += centred[y][k] * column_rows[k][x];
    total += sum;
    __syncthreads();  // both tiles have been used
  }
  if (token < middle) coefficients[token * RANK + component] = total;

  magnitudes[y][x] = fabsf(total);
  __syncthreads();  // all magnitudes of the tile are there; rows past the last token hold zero
  if (y > 0) return;
  float largest = 0.0f;
  for (u32 row = 0; row < TILE_TOKENS; ++row) largest = fmaxf(largest, magnitudes[row][x]);
  partial_maxima[blockIdx.y * RANK + component] = largest;
}
