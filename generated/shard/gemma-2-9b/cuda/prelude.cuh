// What every kernel of kvforge builds on. Needs no header, so that NVRTC can compile it alone; half conversions, tensor
// core products and asynchronous copies are PTX. The emulator has a file of the same name with the same functions.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;

// NVRTC has no math.h.
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

__device__ __forceinline__ u32 lane_id() {
  u32 lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

__device__ __forceinline__ i32 clamp(i32 value, i32 low, i32 high) { return min(max(value, low), high); }
__device__ __forceinline__ u32 clamp(u32 value, u32 low, u32 high) { return min(max(value, low), high); }
__device__ __forceinline__ float clamp(float value, float low, float high) { return fminf(fmaxf(value, low), high); }

__device__ __forceinline__ float half_to_float(u16 half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}

// Rounds to nearest, ties to even; overflow gives infinity, NaN gives 0x7fff.
__device__ __forceinline__ u16 float_to_half(float value) {
  u16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

// Not fminf() and fmaxf(): they would turn a NaN into a number.
__device__ __forceinline__ u16 float_to_half_saturated(float value) {
  return float_to_half(value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value);
}

__device__ __forceinline__ float round_to_half(float value) { return half_to_float(float_to_half(value)); }

__device__ __forceinline__ u32 pack_half2(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float2 unpack_half2(u32 pair) {
  return make_float2(half_to_float((u16)(pair & 0xffffu)), half_to_float((u16)(pair >> 16)));
}

// The signed bytes of a word as halves, exactly: bytes 0 and 1, then 2 and 3. A byte plus 128 as the last bits of the
// half 1024 makes 1152 plus the byte.
__device__ __forceinline__ void unpack_signed_bytes(u32 (&pairs)[2], u32 bytes) {
  const u32 raised = bytes ^ 0x80808080u;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pairs[0]) : "r"(__byte_perm(raised, 0x64646464u, 0x4140)), "r"(0x64806480u));
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pairs[1]) : "r"(__byte_perm(raised, 0x64646464u, 0x4342)), "r"(0x64806480u));
}

// d += a * b over one warp, halves in, floats out. Fragments, with g = lane / 4 and t = lane % 4:
//   a[0] (row g, columns 2t, 2t+1), a[1] (row g+8, same), a[2] (row g, columns 2t+8, 2t+9), a[3] (row g+8, same)
//   b[0] (rows 2t, 2t+1, column g), b[1] (rows 2t+8, 2t+9, column g)
//   d[0] (row g, column 2t), d[1] (g, 2t+1), d[2] (g+8, 2t), d[3] (g+8, 2t+1)
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ u32 shared_address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// Lane i names the row i % 8 (16 bytes, aligned to 16) of the 8x8 matrix i / 8; r[m] gets of matrix m the elements
// (row g, columns 2t, 2t+1).
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}

// Copies from global to shared memory that land at some time before the wait for their group returns. Both addresses
// are multiples of the size. Copies of 16 bytes go past the L1 cache, as tiles are read once.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global))
               : "memory");
}

__device__ __forceinline__ void cp_async_4(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global))
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` of the groups that this thread committed last are unfinished. Other threads see the
// bytes only after a barrier.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
