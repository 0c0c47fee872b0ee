// gram_keys: One tile of the matrix a block; only tiles on or above the diagonal are computed, both halves are written.
// Stage gram of scheme shard for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tile = 32, tileTokens = 16

#include "prelude.cuh"

constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 TILE = 32;  // rows and columns of a matrix tile
constexpr u32 TILE_TOKENS = 16;  // tokens of a tile
constexpr u32 PER_THREAD = 4;  // matrix entries of a thread

// One TILE x TILE tile of the matrix a block; PER_THREAD entries of one column a thread.
extern "C" __global__ void __launch_bounds__(256) gram_keys(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][1024], before RoPE
    const float* __restrict__ mean,  // [1024]
    float* gram  // [1024][1024], divided by the middle tokens; zero for an empty middle
) {
  constexpr u32 row_step = THREADS / TILE;
  __shared__ float left[TILE_TOKENS][TILE];   // centred keys, channels of the tile's rows
  __shared__ float right[TILE_TOKENS][TILE];  // centred keys, channels of the tile's columns
  // The matrix is symmetric: blocks below the diagonal have nothing to do.
  if (blockIdx.x < blockIdx.y) return;

  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 first_row = blockIdx.y * TILE;
  const u32 first_column = blockIdx.x * TILE;
  const u32 column = threadIdx.x % TILE;
  const u32 row = threadIdx.x / TILE;
  float total[PER_THREAD] = {};
  for (u32 first = 0; first < middle; first += TILE_TOKENS) {
    __syncthreads();  // the previous tile of tokens has been used
    for (u32 i = threadIdx.x; i < TILE_TOKENS * TILE; i += THREADS) {
      const u32 token = first + i / TILE;
      const u32 left_channel = first_row + i % TILE;
      const u32 right_channel = first_column + i % TILE;
      const float* key = plain + token * WIDTH;
      // Past the last token and past the last channel: zeros, which add nothing.
      left[i / TILE][i % TILE] = token < middle && left_channel < WIDTH ? key[left_channel] - mean[left_channel] : 0.0f;
      right[i / TILE][i % TILE] = token < middle && right_channel < WIDTH ? key[right_channel] - mean[right_channel] : 0.0f;
    }
    __syncthreads();  // both tiles are filled

    // Summed by tile first: the rounding error then grows with tiles + TILE_TOKENS, not with their product.
    float sum[PER_THREAD] = {};
    for (u32 token = 0; token < TILE_TOKENS; ++token) {
      const float factor = right[token][column];
#pragma unroll
      for (u32 k = 0; k < PER_THREAD; ++k) sum[k] += left[token][row + k * row_step] * factor;
    }
#pragma unroll
    for (u32 k = 0; k < PER_THREAD; ++k) total[k] += sum[k];
  }

  const float count = static_cast<float>(middle > 0 ? middle : 1u);
#pragma unroll
  for (u32 k = 0; k < PER_THREAD; ++k) {
    const u32 i = first_row + row + k * row_step;
    const u32 j = first_column + column;
    // On the diagonal tile, the thread of (i, j) writes (j, i) too, and the thread of (j, i) nothing.
    if (i > j || j >= WIDTH) continue;
    gram[i * WIDTH + j] = total[k] / count;
    gram[j * WIDTH + i] = total[k] / count;
  }
}
