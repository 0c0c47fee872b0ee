// tilt_store: The int8 codes of every basis, component by component, with one scale each; one component a thread.
// Stage fit of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 AT_KEY_BASIS = 16;  // in the record, first word of keyBasis: i8 [3 KV heads][64] components[64 channels, in the order of pairs]
constexpr u32 THREADS = 64;  // threads of a block

// dsl/codecs/pca.ts:148 basisCode
// The int8 code of a basis entry.
__device__ __forceinline__ int basis_code(float entry, float scale) {
  float code = 0.0f;
  if (scale > 0.0f) {
    code = fminf(fmaxf(rintf(entry / scale), -127.0f), 127.0f);
  }
  return int(code);
}

// One column of one KV head's basis a thread.
extern "C" __global__ void __launch_bounds__(64) tilt_store(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ vectors,  // [3 KV heads][64][64], eigenvectors in columns
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    float* column_scales  // [192 components]
) {
  const u32 column = blockIdx.x * THREADS + threadIdx.x;
  if (column >= WIDTH) return;

  const float* entries = vectors + column / HEAD_DIM * HEAD_DIM * HEAD_DIM + column % HEAD_DIM;
  float largest = 0.0f;
  for (u32 channel = 0; channel < HEAD_DIM; ++channel) largest = fmaxf(largest, fabsf(entries[channel * HEAD_DIM]));
  const float scale = largest / 127.0f;
  column_scales[column] = scale;
  u32* words = cache + sequence[AT_KEY_BASIS] + column * (HEAD_DIM / 4);
  for (u32 word = 0; word < HEAD_DIM / 4; ++word) {
    u32 packed = 0;
    for (u32 lane = 0; lane < 4; ++lane) {
      const i32 code = basis_code(entries[(word * 4 + lane) * HEAD_DIM], scale);
      packed |= (static_cast<u32>(code) & 0xffu) << lane * 8;
    }
    words[word] = packed;
  }
}
