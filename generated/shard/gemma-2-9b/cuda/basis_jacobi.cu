// basis_jacobi: Eigenvectors of the small matrix by cyclic Jacobi rotations, eigenvalues descending.
// Stage basis of scheme shard for gemma-2-9b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 384, bits 4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: choleskyQr = 0, sharedMatrix = 0

#include "prelude.cuh"

constexpr u32 RANK = 384;  // components of a key
constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 MAX_SWEEPS = 12;  // rounds of Jacobi rotations, at most

// dsl/codecs/jacobi.ts:7 jacobiRotation
// Cosine and sine of the rotation that zeroes the off-diagonal entry of a symmetric 2 x 2 matrix [[app, apq], [apq, aqq]], the smaller of the two angles (Golub and Van Loan, section 8.5.2).
__device__ __forceinline__ float2 jacobi_rotation(float app, float aqq, float apq) {
  float cosine = 1.0f;
  float sine = 0.0f;
  if (fabsf(apq) > 1.0e-37f) {
    const float tau = (aqq - app) / (2.0f * apq);
    float tangent = 0.0f;
    if (fabsf(tau) < 1000000000.0f) {
      tangent = (tau < 0.0f ? -1.0f : 1.0f) / (fabsf(tau) + sqrtf(1.0f + tau * tau));
    }
    cosine = 1.0f / sqrtf(1.0f + tangent * tangent);
    sine = tangent * cosine;
  }
  return make_float2(cosine, sine);
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

constexpr u32 pairs_per_step = RANK / 2;

// Whether some off-diagonal entry still matters, beside the larger of its two diagonal entries, to float32.
__device__ __forceinline__ bool is_coupled(const float* small, float (&scratch)[THREADS]) {
  float diagonal = 0.0f;
  for (u32 i = threadIdx.x; i < RANK; i += THREADS) diagonal = fmaxf(diagonal, fabsf(small[i * RANK + i]));
  diagonal = block_max(diagonal, scratch);
  float excess = 0.0f;
  for (u32 index = threadIdx.x; index < RANK * RANK; index += THREADS) {
    const u32 i = index / RANK;
    const u32 j = index % RANK;
    if (i >= j) continue;
    const float larger = fmaxf(fabsf(small[i * RANK + i]), fabsf(small[j * RANK + j]));
    excess = fmaxf(excess, fabsf(small[index]) - 2e-7f * larger);
  }
  // Where all three are beneath the rounding of the largest entry there is only noise, which never settles.
  return block_max(excess, scratch) > 1e-8f * diagonal;
}

// Turns (p, q) by a rotation held as (sine, sine / (1 + cosine)). Of a small angle the cosine rounds to one, and vectors
// turned by cosine and sine grow with every sweep; this form keeps their length (Rutishauser 1966).
__device__ __forceinline__ void turn(float& p, float& q, float2 rotation) {
  const float before = p;
  p -= rotation.x * (q + rotation.y * p);
  q += rotation.x * (before - rotation.y * q);
}

// The two columns, lower first, of pair i in a step of a sweep. Circle method: the last index stays, the others move on
// by one a step, so that RANK - 1 steps meet every pair once.
__device__ __forceinline__ uint2 pair_of(u32 step, u32 i) {
  const u32 forward = step + i < RANK - 1 ? step + i : step + i - (RANK - 1);
  const u32 a = i == 0 ? RANK - 1 : forward;
  const u32 b = step >= i ? step - i : step + (RANK - 1) - i;
  return make_uint2(min(a, b), max(a, b));
}

// One block. Parallel cyclic Jacobi: a step rotates RANK / 2 disjoint pairs at once, paired round-robin, so that
// RANK - 1 steps (a sweep) meet every pair once. RANK is even.
extern "C" __global__ void __launch_bounds__(256) basis_jacobi(
    float* small,  // [384][384], destroyed
    float* vectors,  // [384][384], eigenvectors in columns, in the order of the values
    float* values,  // [384], descending
    u32* order  // [384], scratch of the sort
) {
  __shared__ float scratch[THREADS];
  __shared__ float2 rotation[pairs_per_step];  // as turn() takes it
  __shared__ uint2 pair[pairs_per_step];       // the two indices that it turns

  for (u32 index = threadIdx.x; index < RANK * RANK; index += THREADS) {
    vectors[index] = index / RANK == index % RANK ? 1.0f : 0.0f;
  }
  __syncthreads();  // the identity is complete

  for (u32 sweep = 0; sweep < MAX_SWEEPS; ++sweep) {
    if (!is_coupled(small, scratch)) break;
    for (u32 step = 0; step < RANK - 1; ++step) {
      for (u32 i = threadIdx.x; i < pairs_per_step; i += THREADS) {
        const uint2 indices = pair_of(step, i);
        const u32 p = indices.x;
        const u32 q = indices.y;
        pair[i] = indices;
        const float2 angle = jacobi_rotation(small[p * RANK + p], small[q * RANK + q], small[p * RANK + q]);
        rotation[i] = make_float2(angle.y, angle.y / (1.0f + angle.x));
      }
      __syncthreads();  // the rotations are known, and nobody reads the matrix for them any more

      // Rows of pair i and columns of pair j meet in four entries that no other thread touches: both rotations at once.
      // Neither loop unrolled: ptxas would spill for it (72 bytes at rank 576 on sm_90).
#pragma unroll 1
      for (u32 index = threadIdx.x; index < pairs_per_step * pairs_per_step; index += THREADS) {
        const u32 i = index / pairs_per_step;
        const u32 j = index % pairs_per_step;
        const uint2 row = pair[i];
        const uint2 column = pair[j];
        float* at_pp = small + row.x * RANK + column.x;
        float* at_pq = small + row.x * RANK + column.y;
        float* at_qp = small + row.y * RANK + column.x;
        float* at_qq = small + row.y * RANK + column.y;
        float pp = *at_pp;
        float pq = *at_pq;
        float qp = *at_qp;
        float qq = *at_qq;
        turn(pp, qp, rotation[i]);
        turn(pq, qq, rotation[i]);
        turn(pp, pq, rotation[j]);
        turn(qp, qq, rotation[j]);
        // Of one pair with itself, the rotation was chosen to zero these two: rounding must not bring them back.
        const bool zeroed = i == j && rotation[i].x != 0.0f;
        *at_pp = pp;
        *at_pq = zeroed ? 0.0f : pq;
        *at_qp = zeroed ? 0.0f : qp;
        *at_qq = qq;
      }
#pragma unroll 1
      for (u32 index = threadIdx.x; index < RANK * pairs_per_step; index += THREADS) {
        const u32 j = index % pairs_per_step;
        float* row = vectors + index / pairs_per_step * RANK;
        turn(row[pair[j].x], row[pair[j].y], rotation[j]);
      }
      __syncthreads();  // matrix and vectors are turned before the next step reads them
    }
  }

  // The place of each eigenvalue in descending order is the number of those before it; the lower index wins ties.
  // NaN counts as the smallest, so that `order` is a permutation whatever the input.
  for (u32 i = threadIdx.x; i < RANK; i += THREADS) {
    const float diagonal = small[i * RANK + i];
    const float value = diagonal == diagonal ? diagonal : -3e38f;
    u32 place = 0;
    for (u32 j = 0; j < RANK; ++j) {
      const float entry = small[j * RANK + j];
      const float other = entry == entry ? entry : -3e38f;
      if (other > value || (other == value && j < i)) ++place;
    }
    order[place] = i;
    values[place] = value;
  }
  __syncthreads();  // the diagonal has been read, and `order` is complete

  // The columns of `vectors` move to their places by way of `small`.
  for (u32 index = threadIdx.x; index < RANK * RANK; index += THREADS) small[index] = vectors[index];
  __syncthreads();  // the copy is complete
  for (u32 index = threadIdx.x; index < RANK * RANK; index += THREADS) {
    vectors[index] = small[index / RANK * RANK + order[index % RANK]];
  }
}
