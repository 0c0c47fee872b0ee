// basis_solve: Projects every column on those before it, by the factor; lost columns are replaced by seeded ones.
// Stage basis of scheme shard for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: choleskyQr = 1, sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 192;  // components of a key
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 SEED = 1;  // of the random start

// dsl/random.ts:4 hashBits
// A hash of 32 bits with full avalanche (the PCG RXS-M-XS permutation; O'Neill 2014, section 6.3.4).
__device__ __forceinline__ u32 hash_bits(u32 seed) {
  const u32 state = seed * 0x2c9277b5u + 0xac564b05u;
  const u32 word = ((state >> ((state >> 28u) + 4u)) ^ state) * 0x108ef2d9u;
  return (word >> 22u) ^ word;
}

// dsl/random.ts:12 uniformRandom
// A uniform number in [0, 1) from 24 bits of the hash of `seed` and `index`, equal on every target.
__device__ __forceinline__ float uniform_random(u32 seed, u32 index) {
  return float(hash_bits(hash_bits(seed) ^ index) >> 8u) * 5.9604645e-8f;
}

constexpr u32 parts = (RANK + 31) / 32;

// One row of the basis a warp, column `lane + 32 * n` of it in part n of a lane: solves row = orthonormal row * D^(1/2)
// L^T from the left, so that every column is projected on those before it. WIDTH is a multiple of the rows of a block.
extern "C" __global__ void __launch_bounds__(256) basis_solve(
    const u32* __restrict__ inner,  // [192][192] float64, two words each; the factor above the diagonal, pivots on it (0 of a lost column)
    float* basis  // [1024][192]
) {
  __shared__ double inverses[RANK];  // of the diagonal of D; zero where a column is lost
  const double* factor = reinterpret_cast<const double*>(inner);
  for (u32 i = threadIdx.x; i < RANK; i += THREADS) {
    const double pivot = factor[i * RANK + i];
    inverses[i] = pivot > 0.0 ? 1.0 / pivot : 0.0;
  }
  __syncthreads();  // the inverses are known
  const u32 lane = threadIdx.x % 32;
  const u32 row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;

  double own[parts];
#pragma unroll
  for (u32 n = 0; n < parts; ++n) {
    const u32 column = lane + 32 * n;
    own[n] = column < RANK ? basis[row * RANK + column] : 0.0f;
  }
#pragma unroll
  for (u32 part = 0; part < parts; ++part) {
#pragma unroll 4
    for (u32 k = part * 32; k < min(part * 32 + 32, RANK); ++k) {
      // What column k has of this row, over its square; a lost column may hold a NaN.
      const double entry = __shfl_sync(0xffffffffu, own[part], k % 32);
      const double along = inverses[k] > 0.0 ? entry * inverses[k] : 0.0;
#pragma unroll
      for (u32 n = part; n < parts; ++n) {
        const u32 column = lane + 32 * n;
        if (column > k && column < RANK) own[n] -= factor[k * RANK + column] * along;
      }
    }
  }
#pragma unroll
  for (u32 n = 0; n < parts; ++n) {
    const u32 column = lane + 32 * n;
    if (column >= RANK) continue;
    const u32 at = row * RANK + column;
    if (inverses[column] > 0.0) {
      basis[at] = static_cast<float>(own[n] * sqrt(inverses[column]));
    } else {
      // A random column, of length one or so, to be made orthogonal next time. The seeds lie past those of the start.
      basis[at] = (uniform_random(SEED, WIDTH * RANK + at) * 2.0f - 1.0f) * sqrtf(3.0f / static_cast<float>(WIDTH));
    }
  }
}
