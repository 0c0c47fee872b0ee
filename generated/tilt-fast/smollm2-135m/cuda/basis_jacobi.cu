// basis_jacobi: Eigenvalues of every matrix by cyclic Jacobi rotations, descending, and the rotations; a KV head a block.
// Stage fit of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 THREADS = 1024;  // threads of a block
constexpr u32 MAX_SWEEPS = 12;  // rounds of Jacobi rotations, at most
constexpr u32 RANK = 64;  // rows and columns of a matrix whose eigenvectors are found

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

constexpr u32 pairs = RANK / 2;
constexpr u32 teams = THREADS / pairs;  // of a thread a pair

extern __shared__ __align__(16) unsigned char shared_memory[];

// An entry of the symmetric matrix, held on and above the diagonal. From one thread to the next both indices move by one,
// up or down: rows are even in length, so that these entries lie in banks of their own.
__device__ __forceinline__ float& entry_at(float* matrix, u32 i, u32 j) {
  return matrix[min(i, j) * RANK + max(i, j)];
}

// Whether some off-diagonal entry still matters, beside the larger of its two diagonal entries, to float32.
__device__ __forceinline__ bool is_coupled(float* matrix, float (&scratch)[THREADS]) {
  float diagonal = 0.0f;
  for (u32 i = threadIdx.x; i < RANK; i += THREADS) diagonal = fmaxf(diagonal, fabsf(entry_at(matrix, i, i)));
  diagonal = block_max(diagonal, scratch);
  float excess = 0.0f;
  for (u32 index = threadIdx.x; index < RANK * RANK; index += THREADS) {
    const u32 i = index / RANK;
    const u32 j = index % RANK;
    if (i >= j) continue;
    const float larger = fmaxf(fabsf(entry_at(matrix, i, i)), fabsf(entry_at(matrix, j, j)));
    excess = fmaxf(excess, fabsf(entry_at(matrix, i, j)) - 2e-7f * larger);
  }
  // Where all three are beneath the rounding of the largest entry there is only noise, which never settles.
  return block_max(excess, scratch) > 1e-8f * diagonal;
}

// One block, the matrix in shared memory. Parallel cyclic Jacobi: a step rotates RANK / 2 disjoint pairs at once, paired
// round-robin, so that RANK - 1 steps (a sweep) meet every pair once. RANK is even. The rotations are written down for
// basis_turn, which turns the rows of the eigenvectors on all multiprocessors.
extern "C" __global__ void __launch_bounds__(1024) basis_jacobi(
    const float* __restrict__ small,  // [3 KV heads][64][64], second moments
    float* rotations,  // [3 KV heads][12 sweeps][63 steps][32](sine, sine / (1 + cosine))
    float* values,  // [3 KV heads][64], descending
    u32* order  // [3 KV heads][64 + 1], the column of every place, then the sweeps
) {
  __shared__ float scratch[THREADS];
  __shared__ float2 rotation[pairs];  // as turn() takes it
  __shared__ uint2 pair[pairs];       // the two indices that it turns
  // One matrix a block.
  small += blockIdx.x * RANK * RANK;
  rotations += blockIdx.x * MAX_SWEEPS * (RANK - 1) * RANK;
  values += blockIdx.x * RANK;
  order += blockIdx.x * (RANK + 1);
  float* matrix = reinterpret_cast<float*>(shared_memory);
  const u32 j = threadIdx.x % pairs;
  const u32 first = threadIdx.x / pairs;

  for (u32 index = threadIdx.x; index < RANK * RANK; index += THREADS) {
    if (index / RANK <= index % RANK) entry_at(matrix, index / RANK, index % RANK) = small[index];
  }
  __syncthreads();  // the matrix is in shared memory

  u32 sweep = 0;
  for (; sweep < MAX_SWEEPS; ++sweep) {
    if (!is_coupled(matrix, scratch)) break;
    for (u32 step = 0; step < RANK - 1; ++step) {
      for (u32 i = threadIdx.x; i < pairs; i += THREADS) {
        const uint2 own = pair_of(step, i);
        pair[i] = own;
        const float2 angle = jacobi_rotation(
            entry_at(matrix, own.x, own.x), entry_at(matrix, own.y, own.y), entry_at(matrix, own.x, own.y));
        rotation[i] = make_float2(angle.y, angle.y / (1.0f + angle.x));
        reinterpret_cast<float2*>(rotations)[(sweep * (RANK - 1) + step) * pairs + i] = rotation[i];
      }
      __syncthreads();  // the rotations are known, and nobody reads the matrix for them any more

      // Two pairs meet in four entries that no other thread touches: both rotations at once. In a ring, pair j meets
      // those up to half of the ring ahead, and the one just across if it is in the first half.
      if (first < teams) {
        const uint2 own = pair[j];
        const float2 turning = rotation[j];
        for (u32 ahead = 1 + first; ahead < pairs / 2 + (j < pairs / 2 ? 1 : 0); ahead += teams) {
          const u32 i = j + ahead < pairs ? j + ahead : j + ahead - pairs;
          const uint2 other = pair[i];
          float& at_pp = entry_at(matrix, own.x, other.x);
          float& at_pq = entry_at(matrix, own.x, other.y);
          float& at_qp = entry_at(matrix, own.y, other.x);
          float& at_qq = entry_at(matrix, own.y, other.y);
          float pp = at_pp;
          float pq = at_pq;
          float qp = at_qp;
          float qq = at_qq;
          turn(pp, qp, turning);
          turn(pq, qq, turning);
          turn(pp, pq, rotation[i]);
          turn(qp, qq, rotation[i]);
          at_pp = pp;
          at_pq = pq;
          at_qp = qp;
          at_qq = qq;
        }
      }
      // A pair with itself, by the threads that have no team or the last ones that have.
      if (threadIdx.x >= THREADS - pairs) {
        const uint2 own = pair[threadIdx.x - (THREADS - pairs)];
        const float2 turning = rotation[threadIdx.x - (THREADS - pairs)];
        float pp = entry_at(matrix, own.x, own.x);
        float pq = entry_at(matrix, own.x, own.y);
        float qp = pq;
        float qq = entry_at(matrix, own.y, own.y);
        turn(pp, qp, turning);
        turn(pq, qq, turning);
        turn(pp, pq, turning);
        turn(qp, qq, turning);
        entry_at(matrix, own.x, own.x) = pp;
        entry_at(matrix, own.y, own.y) = qq;
        // The rotation was chosen to zero this one: rounding must not bring it back.
        if (turning.x != 0.0f) entry_at(matrix, own.x, own.y) = 0.0f;
      }
      __syncthreads();  // the matrix is turned before the next step reads it
    }
  }

  // The place of each eigenvalue in descending order is the number of those before it; the lower index wins ties.
  // NaN counts as the smallest, so that `order` is a permutation whatever the input.
  for (u32 i = threadIdx.x; i < RANK; i += THREADS) {
    const float diagonal = entry_at(matrix, i, i);
    const float value = diagonal == diagonal ? diagonal : -3e38f;
    u32 place = 0;
    for (u32 k = 0; k < RANK; ++k) {
      const float entry = entry_at(matrix, k, k);
      const float other = entry == entry ? entry : -3e38f;
      if (other > value || (other == value && k < i)) ++place;
    }
    order[place] = i;
    values[place] = value;
  }
  if (threadIdx.x == 0) order[RANK] = sweep;
}
