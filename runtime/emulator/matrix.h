// The arithmetic of mma and the moves of ldmatrix, over the fragments of the PTX ISA. With g = lane / 4, t = lane % 4:
//   m16n8k16 f16: a0 (g, 2t..2t+1), a1 (g+8, same), a2 (g, 2t+8..2t+9), a3 (g+8, same as a2); b0 (k = 2t..2t+1, n = g),
//                 b1 (k = 2t+8..2t+9, n = g); d0 (g, 2t), d1 (g, 2t+1), d2 (g+8, 2t), d3 (g+8, 2t+1)
#pragma once
#include <cstring>

#include "block.h"
#include "half.h"

namespace kvf {

// A row of eight columns, which g++ maps to what the processor has.
typedef float FloatRow __attribute__((vector_size(32)));

// Sums run over ascending k, one rounding to f32 per product; products of halves are exact. Real tensor cores sum in an
// order and at a width that NVIDIA does not specify, so results agree to rounding, not to the bit.
inline void multiply_f16(Thread* lanes) {
  float a[16][16];
  alignas(32) float b[16][8];
  alignas(32) float d[16][8];
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 g = lane / 4, t = lane % 4;
    const u32* operand = lanes[lane].operand;
    for (u32 i = 0; i < 4; ++i) {
      memcpy(&d[g + i / 2 * 8][2 * t + i % 2], &operand[i], 4);
      const float2 pair = unpack_half2(operand[4 + i]);
      a[g + i % 2 * 8][2 * t + i / 2 * 8] = pair.x;
      a[g + i % 2 * 8][2 * t + i / 2 * 8 + 1] = pair.y;
    }
    for (u32 i = 0; i < 2; ++i) {
      const float2 pair = unpack_half2(operand[8 + i]);
      b[2 * t + 8 * i][g] = pair.x;
      b[2 * t + 8 * i + 1][g] = pair.y;
    }
  }
  for (u32 m = 0; m < 16; ++m) {
    FloatRow sum;
    memcpy(&sum, d[m], sizeof sum);
    for (u32 k = 0; k < 16; ++k) {
      FloatRow row;
      memcpy(&row, b[k], sizeof row);
      sum += row * a[m][k];
    }
    memcpy(d[m], &sum, sizeof sum);
  }
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < 4; ++i) memcpy(&lanes[lane].result[i], &d[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2], 4);
  }
}

// Lanes 8i..8i+7 name the rows of the 8x8 matrix i; register i of lane l gets two neighbours of row g of that matrix.
inline void load_matrices(Thread* lanes) {
  for (u32 i = 0; i < 4; ++i) {
    u16 matrix[8][8];
    for (u32 row = 0; row < 8; ++row) memcpy(matrix[row], lanes[8 * i + row].row, 16);
    for (u32 lane = 0; lane < 32; ++lane) {
      const u32 g = lane / 4, t = lane % 4;
      const u32 low = matrix[g][2 * t];
      const u32 high = matrix[g][2 * t + 1];
      lanes[lane].result[i] = high << 16 | low;
    }
  }
}

}  // namespace kvf
