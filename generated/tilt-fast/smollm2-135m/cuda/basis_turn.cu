// basis_turn: Eigenvectors of every matrix from the rotations; one row a warp.
// Stage fit of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 MAX_SWEEPS = 12;  // rounds of Jacobi rotations, at most
constexpr u32 RANK = 64;  // rows and columns of a matrix whose eigenvectors are found

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
constexpr u32 lane_pairs = (pairs + 31) / 32;        // of a lane
constexpr u32 batch = lane_pairs < 4 ? 6 : 2;        // steps whose rotations are loaded together, and ahead

// One row of the eigenvectors a warp: a row of the identity, turned by the rotations of every step of every sweep. A
// sum of columns is turned alike in every row, so that rows need not know of each other. RANK is a multiple of the rows.
extern "C" __global__ void __launch_bounds__(128) basis_turn(
    const float* __restrict__ rotations,  // [3 KV heads][12 sweeps][63 steps][32](sine, sine / (1 + cosine))
    const u32* __restrict__ order,  // [3 KV heads][64 + 1], the column of every place, then the sweeps
    float* vectors  // [3 KV heads][64][64], eigenvectors in columns, in the order of the values
) {
  __shared__ float rows[THREADS / 32][RANK];
  float* own = rows[threadIdx.x / 32];
  const u32 lane = threadIdx.x % 32;
  const u32 row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  // Of the matrix of one KV head.
  rotations += blockIdx.y * MAX_SWEEPS * (RANK - 1) * RANK;
  order += blockIdx.y * (RANK + 1);
  vectors += blockIdx.y * RANK * RANK;

  for (u32 i = lane; i < RANK; i += 32) own[i] = i == row ? 1.0f : 0.0f;
  __syncwarp();  // the row is complete
  const u32 steps = order[RANK] * (RANK - 1);
  float2 next[batch][lane_pairs];
  const auto load = [&](u32 first) {
#pragma unroll
    for (u32 part = 0; part < batch * lane_pairs; ++part) {
      const u32 index = min(first + part / lane_pairs, steps - 1);
      const u32 i = min(lane + part % lane_pairs * 32, pairs - 1);
      next[part / lane_pairs][part % lane_pairs] = reinterpret_cast<const float2*>(rotations)[index * pairs + i];
    }
  };
  if (steps > 0) load(0);
  u32 step = 0;
  for (u32 first = 0; first < steps; first += batch) {
    float2 rotation[batch][lane_pairs];
#pragma unroll
    for (u32 part = 0; part < batch * lane_pairs; ++part) {
      rotation[part / lane_pairs][part % lane_pairs] = next[part / lane_pairs][part % lane_pairs];
    }
    load(first + batch);
#pragma unroll
    for (u32 index = 0; index < batch && first + index < steps; ++index) {
#pragma unroll
      for (u32 part = 0; part < lane_pairs; ++part) {
        const u32 i = lane + part * 32;
        if (i >= pairs) continue;
        const uint2 pair = pair_of(step, i);
        turn(own[pair.x], own[pair.y], rotation[index][part]);
      }
      __syncwarp();  // the row is turned before the next step reads it
      step = step + 1 < RANK - 1 ? step + 1 : 0;
    }
  }
  for (u32 i = lane; i < RANK; i += 32) vectors[row * RANK + i] = own[order[i]];
}
