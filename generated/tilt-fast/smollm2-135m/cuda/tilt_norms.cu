// tilt_norms: The f16 norm of every value; one KV head of a token a thread.
// Stage codeValues of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 THREADS = 128;  // threads of a block

__device__ __forceinline__ float vector_dot(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }
__device__ __forceinline__ float2 vector_add(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ float2 vector_subtract(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
__device__ __forceinline__ float2 vector_multiply(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }
__device__ __forceinline__ float2 vector_scale(float2 a, float factor) { return make_float2(a.x * factor, a.y * factor); }
__device__ __forceinline__ float vector_dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ __forceinline__ float3 vector_add(float3 a, float3 b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }
__device__ __forceinline__ float3 vector_subtract(float3 a, float3 b) { return make_float3(a.x - b.x, a.y - b.y, a.z - b.z); }
__device__ __forceinline__ float3 vector_multiply(float3 a, float3 b) { return make_float3(a.x * b.x, a.y * b.y, a.z * b.z); }
__device__ __forceinline__ float3 vector_scale(float3 a, float factor) { return make_float3(a.x * factor, a.y * factor, a.z * factor); }
__device__ __forceinline__ float vector_dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__device__ __forceinline__ float4 vector_add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float4 vector_subtract(float4 a, float4 b) { return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w); }
__device__ __forceinline__ float4 vector_multiply(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
__device__ __forceinline__ float4 vector_scale(float4 a, float factor) { return make_float4(a.x * factor, a.y * factor, a.z * factor, a.w * factor); }

// dsl/codecs/lloydMax.ts:58 vectorNorm
// The norm of the vector, stored as f16: the codebook is for the unit sphere.
__device__ __forceinline__ float vector_norm(float sum_of_squares, float max_abs) {
  return round_to_half(fminf(sqrtf(sum_of_squares) * max_abs, 65504.0f));
}

// One value of one KV head a thread.
extern "C" __global__ void __launch_bounds__(128) tilt_norms(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ plain,  // [middle tokens][192], after Hadamard
    float* norms  // [middle tokens][3 KV heads], rounded to f16
) {
  const u32 vector = blockIdx.x * THREADS + threadIdx.x;
  if (vector >= sequence[AT_MIDDLE_TOKENS] * KV_HEADS) return;

  const float* channels = plain + vector * HEAD_DIM;
  float largest = 0.0f;
  for (u32 i = 0; i < HEAD_DIM; ++i) largest = fmaxf(largest, fabsf(channels[i]));
  // Squares are relative to the largest magnitude, so that none overflows or vanishes.
  const float divisor = largest > 0.0f ? largest : 1.0f;
  float sum = 0.0f;
  for (u32 i = 0; i < HEAD_DIM; ++i) {
    const float share = channels[i] / divisor;
    sum += share * share;
  }
  norms[vector] = vector_norm(sum, largest);
}
