// Integer and vector types of CUDA, for the emulated kernels and for the host program that runs them.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

// Aggregates without constructors: shared variables are thread_local, and need constant initialisation.
struct uint3 {
  u32 x, y, z;
};
typedef uint3 dim3;
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  u32 x, y;
};
struct alignas(8) int2 {
  i32 x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  u32 x, y, z, w;
};
struct alignas(16) int4 {
  i32 x, y, z, w;
};
