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

// m16n8k32 of bytes, a unsigned: a0 has (g, 4t..4t+3), a1 row g + 8, a2 and a3 the same 16 further along k, b0 and b1 column g.
inline void multiply_bytes(Thread* lanes, bool b_signed) {
  i32 a[16][32];
  i32 b[32][8];
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 g = lane / 4, t = lane % 4;
    const u32* operand = lanes[lane].operand;
    for (u32 i = 0; i < 16; ++i) {
      a[g + i / 4 % 2 * 8][i / 8 * 16 + t * 4 + i % 4] = static_cast<i32>(operand[4 + i / 4] >> i % 4 * 8 & 255u);
    }
    for (u32 i = 0; i < 8; ++i) {
      const u32 byte = operand[8 + i / 4] >> i % 4 * 8 & 255u;
      b[i / 4 * 16 + t * 4 + i % 4][g] = b_signed ? static_cast<signed char>(byte) : static_cast<i32>(byte);
    }
  }
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < 4; ++i) {
      u32 sum = lanes[lane].operand[i];
      for (u32 k = 0; k < 32; ++k) sum += static_cast<u32>(a[lane / 4 + i / 2 * 8][k] * b[k][2 * (lane % 4) + i % 2]);
      lanes[lane].result[i] = sum;
    }
  }
}

// Lanes 8i..8i+7 name the rows of the 8x8 matrix i; register i of lane l gets two neighbours of row g of that matrix, or
// of column g of it.
inline void load_matrices(Thread* lanes, bool transposed) {
  for (u32 i = 0; i < 4; ++i) {
    u16 matrix[8][8];
    for (u32 row = 0; row < 8; ++row) memcpy(matrix[row], lanes[8 * i + row].row, 16);
    for (u32 lane = 0; lane < 32; ++lane) {
      const u32 g = lane / 4, t = lane % 4;
      const u32 low = transposed ? matrix[2 * t][g] : matrix[g][2 * t];
      const u32 high = transposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
      lanes[lane].result[i] = high << 16 | low;
    }
  }
}

// movmatrix: the lanes hold an 8x8 matrix, two neighbours of row g each, and get two neighbours of a column.
inline void transpose_matrix(Thread* lanes) {
  u16 matrix[8][8];
  for (u32 lane = 0; lane < 32; ++lane) memcpy(&matrix[lane / 4][lane % 4 * 2], lanes[lane].operand, 4);
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 g = lane / 4, t = lane % 4;
    const u32 low = matrix[2 * t][g];
    const u32 high = matrix[2 * t + 1][g];
    lanes[lane].result[0] = high << 16 | low;
  }
}

// What a register of a holds along k: two halves, or four signed bytes.
inline void unpack_fields(float (&fields)[2], u32 word) {
  const float2 pair = unpack_half2(word);
  fields[0] = pair.x;
  fields[1] = pair.y;
}
inline void unpack_fields(i32 (&fields)[4], u32 word) {
  for (u32 i = 0; i < 4; ++i) fields[i] = static_cast<signed char>(word >> i * 8);
}

// The 16 rows of one warp in a product of a warpgroup: b lies in shared memory, 32 bytes along k by `columns`. A Sum is
// float for halves and i32 for signed bytes, whose sums are exact.
template <typename Sum>
void multiply_tiles(Thread* lanes, const u8* shared, u64 descriptor, u32 columns, bool accumulate) {
  constexpr u32 fields = static_cast<Sum>(0.5f) == Sum(0) ? 4 : 2;  // in a word
  u32* sums[32];
  for (u32 lane = 0; lane < 32; ++lane) sums[lane] = lanes[lane].products[lanes[lane].operand[8]].sums;
  const u32 first = (descriptor & 0x3fffu) << 4;
  const u32 k_stride = (descriptor >> 16 & 0x3fffu) << 4;
  const u32 column_stride = (descriptor >> 32 & 0x3fffu) << 4;
  Sum a[16][8][fields];
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < 4; ++i) unpack_fields(a[g + i % 2 * 8][t + i / 2 * 4], lanes[lane].operand[i]);
  }
  for (u32 column = 0; column < columns; ++column) {
    Sum b[8][fields];
    for (u32 word = 0; word < 8; ++word) {
      u32 bits;
      memcpy(&bits, shared + first + word / 4 * k_stride + column / 8 * column_stride + column % 8 * 16 + word % 4 * 4, 4);
      unpack_fields(b[word], bits);
    }
    for (u32 row = 0; row < 16; ++row) {
      u32& place = sums[row % 8 * 4 + column % 8 / 2][column / 8 * 4 + row / 8 * 2 + column % 2];
      Sum sum = 0;
      if (accumulate) memcpy(&sum, &place, 4);
      for (u32 word = 0; word < 8; ++word) {
        for (u32 i = 0; i < fields; ++i) sum += a[row][word][i] * b[word][i];
      }
      memcpy(&place, &sum, 4);
    }
  }
}

}  // namespace kvf
