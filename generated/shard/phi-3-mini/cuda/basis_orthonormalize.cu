// basis_orthonormalize: Gram-Schmidt, every column projected twice; a column that vanishes is replaced by a seeded one.
// Stage basis of scheme shard for phi-3-mini. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 576, bits 4/4/4/4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: choleskyQr = 0, sharedMatrix = 0

#include "prelude.cuh"

constexpr u32 WIDTH = 3072;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 576;  // components of a key
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

constexpr u32 chunk = 32;  // earlier columns projected out at a time, one a lane
constexpr u32 warps = THREADS / chunk;

// Euclidean norm of a column. The largest magnitude is taken out first, so that no square overflows or vanishes;
// 0 when the column is zero, not finite, or beyond where the inverse of its norm is.
__device__ __forceinline__ float column_norm(const float* column, float (&scratch)[THREADS]) {
  float largest = 0.0f;
  for (u32 row = threadIdx.x; row < WIDTH; row += THREADS) largest = fmaxf(largest, fabsf(column[row * RANK]));
  largest = block_max(largest, scratch);
  if (!(largest > 1e-36f && largest < 1e36f)) return 0.0f;

  const float inverse = 1.0f / largest;
  float sum = 0.0f;
  for (u32 row = threadIdx.x; row < WIDTH; row += THREADS) {
    const float part = column[row * RANK] * inverse;
    sum += part * part;
  }
  const float norm = sqrtf(block_sum(sum, scratch)) * largest;
  return norm > 0.0f ? norm : 0.0f;  // a NaN passes the maximum, but not the sum
}

__device__ __forceinline__ void scale_column(float* column, float factor) {
  for (u32 row = threadIdx.x; row < WIDTH; row += THREADS) column[row * RANK] *= factor;
}

// Takes the components along columns 0 to index - 1 out of column `index`.
__device__ __forceinline__ void project_out(float* basis, u32 index, float (&scratch)[THREADS], float (&along)[chunk]) {
  const u32 lane = threadIdx.x % chunk;
  const u32 warp = threadIdx.x / chunk;
  for (u32 first = 0; first < index; first += chunk) {
    __syncthreads();  // the column is up to date, and the last chunk's `along` has been used
    const u32 count = min(chunk, index - first);
    float sum = 0.0f;
    if (lane < count) {
      for (u32 row = warp; row < WIDTH; row += warps) sum += basis[row * RANK + first + lane] * basis[row * RANK + index];
    }
    scratch[threadIdx.x] = sum;
    __syncthreads();  // every warp's share of the dot products is in scratch
    if (warp == 0) {
      float dot = 0.0f;
      for (u32 part = 0; part < warps; ++part) dot += scratch[part * chunk + lane];
      along[lane] = dot;
    }
    __syncthreads();  // the dot products are complete
    for (u32 row = threadIdx.x; row < WIDTH; row += THREADS) {
      float out = 0.0f;
      for (u32 k = 0; k < count; ++k) out += basis[row * RANK + first + k] * along[k];
      basis[row * RANK + index] -= out;
    }
  }
  __syncthreads();  // the column is up to date
}

// One block. Gram-Schmidt, every column twice against all before it ("twice is enough": Giraud et al. 2005).
extern "C" __global__ void __launch_bounds__(256) basis_orthonormalize(
    float* basis  // [3072][576], orthonormal columns afterwards
) {
  __shared__ float scratch[THREADS];
  __shared__ float along[chunk];
  for (u32 index = 0; index < RANK; ++index) {
    float* column = basis + index;
    // A random column keeps a share of at least 1 / sqrt(WIDTH) outside the earlier ones: one attempt is enough in
    // practice, and the bound is there so that the loop ends whatever the input.
    for (u32 attempt = 1; attempt <= 4; ++attempt) {
      const float before = column_norm(column, scratch);
      if (before > 0.0f) {
        scale_column(column, 1.0f / before);
        project_out(basis, index, scratch, along);
        project_out(basis, index, scratch, along);
        const float left = column_norm(column, scratch);
        if (left > 1e-6f) {
          scale_column(column, 1.0f / left);
          break;
        }
      }
      // Zero, unusable, or within rounding of the span of the earlier columns. The seeds lie past those of the start.
      for (u32 row = threadIdx.x; row < WIDTH; row += THREADS) {
        const u32 seed_index = attempt * WIDTH * RANK + row * RANK + index;
        column[row * RANK] = uniform_random(SEED, seed_index) * 2.0f - 1.0f;
      }
    }
    __syncthreads();  // the column is final before later columns are projected on it
  }
}
