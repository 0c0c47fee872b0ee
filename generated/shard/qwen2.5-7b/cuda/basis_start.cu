// basis_start: A seeded start of the iteration, uniform in [-1, 1).
// Stage basis of scheme shard for qwen2.5-7b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 96, bits 4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: choleskyQr = 1, sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 WIDTH = 512;  // KV_HEADS * HEAD_DIM
constexpr u32 RANK = 96;  // components of a key
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

// One entry a thread, uniform in [-1, 1).
extern "C" __global__ void __launch_bounds__(256) basis_start(
    float* basis  // [512][96]
) {
  const u32 index = blockIdx.x * THREADS + threadIdx.x;
  if (index < WIDTH * RANK) basis[index] = uniform_random(SEED, index) * 2.0f - 1.0f;
}
