// What the fake driver does for a kernel of some name: the kernels of test/runtime/conformance/kernels.ts, and
// that of the documentation's examples, on the host.
#pragma once

#include <stdint.h>
#include <string.h>

typedef uint32_t u32;

typedef struct {
  const char* name;
  int pointers;
  void (*run)(u32** p, const u32* grid);
} Kernel;

static void affine(u32** p, const u32* grid) {
  for (u32 i = 0; i < p[0][0] && i < grid[0] * 64; i++) p[2][i] = p[1][i] * 3u + 1u;
}
static void blockIds(u32** p, const u32* grid) {
  for (u32 z = 0; z < grid[2]; z++) {
    for (u32 y = 0; y < grid[1]; y++) {
      for (u32 x = 0; x < grid[0]; x++) p[0][(z * grid[1] + y) * grid[0] + x] = x + 10 * y + 100 * z;
    }
  }
}
static void eightBuffers(u32** p, const u32* grid) {
  for (u32 i = 0; i < 32; i++) {
    p[7][i] = 0;
    for (u32 k = 0; k < 7; k++) p[7][i] += (k + 1) * p[k][i];
  }
}
static void reduce(u32** p, const u32* grid) {
  for (u32 block = 0; block < grid[0]; block++) {
    u32 sum = 0;
    for (u32 i = 0; i < 64; i++) sum += p[0][block * 64 + i];
    p[1][block] = sum;
  }
}
static void pairOne(u32** p, const u32* grid) { p[0][0] = 1; }
static void pairTwo(u32** p, const u32* grid) { p[0][1] = 2; }
static void twoWriters(u32** p, const u32* grid) {
  p[0][0] = 1;
  p[1][0] = 2;
}
static void grow(u32** p, const u32* grid) { p[0][0] = p[0][0] * 3u + 1u; }
static void dynamic(u32** p, const u32* grid) { p[1][0] = (u32)((uint64_t)p[0][0] * (p[0][0] - 1) / 2); }
static void doubleWords(u32** p, const u32* grid) {
  for (u32 i = 0; i < 4; i++) p[1][i] = 2 * p[0][i];
}
static void nothing(u32** p, const u32* grid) {}

static const Kernel kernels[] = {
    {"affine", 3, affine},
    {"blockIds", 1, blockIds},
    {"eightBuffers", 8, eightBuffers},
    {"reduce", 2, reduce},
    {"pair_one", 2, pairOne},
    {"pair_two", 2, pairTwo},
    {"twoWriters", 2, twoWriters},
    {"grow", 1, grow},
    {"dynamic", 2, dynamic},
    {"double_words", 2, doubleWords},
};

static const Kernel* kernelOf(const char* name) {
  static const Kernel none = {"", 0, nothing};
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
    if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
  }
  return &none;
}
