// basis_store: columns = basis * vectors, and their int8 codes with one scale a column; four columns a block.
// Stage basis of scheme shard-plus for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: choleskyQr = 1, sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 192;  // components of a key
constexpr u32 RANK_WORDS = 48;  // words of a basis row, four int8 columns each
constexpr u32 AT_KEY_BASIS = 16;  // in the record, first word of keyBasis: i8 [1024 channels][192 components]
constexpr u32 AT_KEY_BASIS_SCALES = 17;  // in the record, first word of keyBasisScales: f16 [192 components]
constexpr u32 THREADS = 256;  // threads of a block

// dsl/codecs/pca.ts:142 basisScale
// One scale a basis column: its largest magnitude over 127, stored as f16.
__device__ __forceinline__ float basis_scale(float max_abs) {
  return round_to_half(fminf(max_abs / 127.0f, 65504.0f));
}

// dsl/codecs/pca.ts:148 basisCode
// The int8 code of a basis entry.
__device__ __forceinline__ int basis_code(float entry, float scale) {
  float code = 0.0f;
  if (scale > 0.0f) {
    code = fminf(fmaxf(rintf(entry / scale), -127.0f), 127.0f);
  }
  return int(code);
}

// Sum and maximum over the threads of the block, in two strides of 16: the order of additions never varies. Every
// thread gets the result, and scratch may be reused at once.
__device__ __forceinline__ float block_sum(float value, float (&scratch)[THREADS]) {
  scratch[threadIdx.x] = value;
  __syncthreads();  // all values are in scratch
  if (threadIdx.x < 16) {
    for (u32 i = threadIdx.x + 16; i < THREADS; i += 16) value += scratch[i];
    scratch[threadIdx.x] = value;
  }
  __syncthreads();  // 16 sums are left
  float total = 0.0f;
  for (u32 i = 0; i < 16; ++i) total += scratch[i];
  __syncthreads();  // all have read them
  return total;
}

__device__ __forceinline__ float block_max(float value, float (&scratch)[THREADS]) {
  scratch[threadIdx.x] = value;
  __syncthreads();  // all values are in scratch
  if (threadIdx.x < 16) {
    for (u32 i = threadIdx.x + 16; i < THREADS; i += 16) value = fmaxf(value, scratch[i]);
    scratch[threadIdx.x] = value;
  }
  __syncthreads();  // 16 maxima are left
  float largest = scratch[0];
  for (u32 i = 1; i < 16; ++i) largest = fmaxf(largest, scratch[i]);
  __syncthreads();  // all have read them
  return largest;
}

constexpr u32 depth = 16;  // terms of a sum that are staged at a time

// Four columns a block: one int8 word of every row of the stored basis, and two words of scales.
extern "C" __global__ void __launch_bounds__(256) basis_store(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ basis,  // [1024][192]
    const float* __restrict__ vectors,  // [192][192]
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    float* columns  // [1024][192], orthonormal, descending eigenvalues
) {
  __shared__ float scratch[THREADS];
  __shared__ float rows[THREADS][depth + 1];  // of the basis; odd in length, to spread them over the banks
  __shared__ __align__(16) float factors[depth][4];  // of the four columns
  const u32 first = blockIdx.x * 4;
  float largest[4] = {};
  for (u32 first_row = 0; first_row < WIDTH; first_row += THREADS) {
    float sum[4] = {};
    for (u32 first_term = 0; first_term < RANK; first_term += depth) {
      __syncthreads();  // the last rows and factors have been used
      if (threadIdx.x < depth * 4) {
        factors[threadIdx.x / 4][threadIdx.x % 4] = vectors[(first_term + threadIdx.x / 4) * RANK + first + threadIdx.x % 4];
      }
#pragma unroll
      for (u32 part = 0; part < depth; ++part) {
        const u32 i = threadIdx.x + part * THREADS;
        const u32 row = min(first_row + i / depth, WIDTH - 1);
        rows[i / depth][i % depth] = basis[row * RANK + first_term + i % depth];
      }
      __syncthreads();  // rows and factors are there
#pragma unroll
      for (u32 k = 0; k < depth; ++k) {
        const float factor = rows[threadIdx.x][k];
#pragma unroll
        for (u32 c = 0; c < 4; ++c) sum[c] += factor * factors[k][c];
      }
    }
    const u32 row = first_row + threadIdx.x;
#pragma unroll
    for (u32 c = 0; c < 4 && row < WIDTH; ++c) {
      columns[row * RANK + first + c] = sum[c];
      largest[c] = fmaxf(largest[c], fabsf(sum[c]));
    }
  }

  float scale[4];
#pragma unroll
  for (u32 c = 0; c < 4; ++c) scale[c] = basis_scale(block_max(largest[c], scratch));
  if (threadIdx.x < 2) {
    const u32 pair = threadIdx.x * 2;
    cache[sequence[AT_KEY_BASIS_SCALES] + first / 2 + threadIdx.x] =
        pair == 0 ? pack_half2(scale[0], scale[1]) : pack_half2(scale[2], scale[3]);
  }

  u32* codes = cache + sequence[AT_KEY_BASIS] + blockIdx.x;
  for (u32 row = threadIdx.x; row < WIDTH; row += THREADS) {
    u32 word = 0;
#pragma unroll
    for (u32 c = 0; c < 4; ++c) {
      const i32 code = basis_code(columns[row * RANK + first + c], scale[c]);
      word |= (static_cast<u32>(code) & 0xffu) << (c * 8);
    }
    codes[row * RANK_WORDS] = word;
  }
}
