// basis_factor: Cholesky factorisation of the inner products, in the registers of one block.
// Stage basis of scheme shard-plus for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: choleskyQr = 1, sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 RANK = 32;  // components of a key
constexpr u32 THREADS = 512;  // threads of a block

constexpr u32 row_blocks = (RANK + 31) / 32;
constexpr u32 column_blocks = RANK / 16;

// One block of 16 x 32 threads: thread (x, y) holds the entries (y + 32 m, x + 16 n) of the lower half in registers.
// Cholesky factorisation without its roots, a column a step: inner = L * D * L^T with ones on the diagonal of L. Row k of
// the upper half gets column k of L * D. A column that is zero, not finite, or within rounding of the span of those
// before it is lost: its row is zero, and nobody is projected on it.
extern "C" __global__ void __launch_bounds__(512) basis_factor(
    u32* inner  // [32][32] float64, two words each; the factor above the diagonal, pivots on it (0 of a lost column)
) {
  __shared__ double columns[2][RANK];  // the column of a step, and that of the next
  __shared__ double limits[RANK];      // a column whose pivot is no larger is lost
  double* entries = reinterpret_cast<double*>(inner);
  const u32 x = threadIdx.x % 16;
  const u32 y = threadIdx.x / 16;
  double own[row_blocks][column_blocks];
#pragma unroll
  for (u32 m = 0; m < row_blocks; ++m) {
#pragma unroll
    for (u32 n = 0; n < column_blocks && n <= 2 * m + 1; ++n) {
      const u32 row = y + 32 * m;
      const u32 column = x + 16 * n;
      own[m][n] = row < RANK && column <= row ? entries[row * RANK + column] : 0.0;
    }
  }
  for (u32 i = threadIdx.x; i < RANK; i += THREADS) {
    // The squared length as the column came. Beyond these bounds, and for a NaN, float32 cannot make it one.
    const double square = entries[i * RANK + i];
    limits[i] = square > 1e-72 && square < 1e74 ? 1e-12 * square : 1e300;
  }

#pragma unroll
  for (u32 block = 0; block < column_blocks; ++block) {
#pragma unroll 1
    for (u32 k = block * 16; k < block * 16 + 16; ++k) {
      double(&column)[RANK] = columns[k % 2];
      if (x == k % 16) {
#pragma unroll
        for (u32 m = block / 2; m < row_blocks; ++m) {
          const u32 row = y + 32 * m;
          if (row >= k && row < RANK) column[row] = own[m][block];
        }
      }
      __syncthreads();  // the column is known; that before the last has been used, and all entries have been read

      const double pivot = column[k];
      const bool kept = pivot > limits[k];  // a NaN is not
      for (u32 i = k + threadIdx.x; i < RANK; i += THREADS) entries[k * RANK + i] = kept ? column[i] : 0.0;
      if (!kept) continue;

      const double inverse = 1.0 / pivot;
      double right[column_blocks];
#pragma unroll
      for (u32 n = block; n < column_blocks; ++n) {
        const u32 i = x + 16 * n;
        right[n] = i > k ? column[i] * inverse : 0.0;
      }
#pragma unroll
      for (u32 m = block / 2; m < row_blocks; ++m) {
        const u32 i = y + 32 * m;
        const double left = i > k && i < RANK ? column[i] : 0.0;
#pragma unroll
        for (u32 n = block; n < column_blocks && n <= 2 * m + 1; ++n) own[m][n] -= left * right[n];
      }
    }
  }
}
