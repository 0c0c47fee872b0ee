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

// The same pointer, of which the compiler does not know that it is: what is read through it is read again, and not kept in
// registers since it was read before.
template <typename T>
__device__ __forceinline__ const T* again(const T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
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

// Two halves by two halves, rounded once; subnormals count.
__device__ __forceinline__ u32 multiply_half2(u32 first, u32 second) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(first), "r"(second));
  return product;
}

// first * second + third, rounded once.
__device__ __forceinline__ u32 fma_half2(u32 first, u32 second, u32 third) {
  u32 sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(first), "r"(second), "r"(third));
  return sum;
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

// d = c + a * b over one warp, bytes in, exact sums out: a unsigned, b signed or unsigned. A register has four neighbours along
// k: with the rows and columns of mma_m16n8k16, a[0] and b[0] have k = 4t to 4t+3, a[2] and b[1] those and 16.
#define KVF_MULTIPLY_CODES(name, type)                                                                                    \
  __device__ __forceinline__ void name(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const i32 (&c)[4]) {            \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8." type                                                         \
                 ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"                                         \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]),     \
                   "r"(c[3]));                                                                                            \
  }
KVF_MULTIPLY_CODES(multiply_codes, "u8")
KVF_MULTIPLY_CODES(multiply_codes_signed, "s8")

__device__ __forceinline__ u32 shared_address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// Lane i names the row i % 8 (16 bytes, aligned to 16) of the 8x8 matrix i / 8; r[m] gets of matrix m the elements
// (row g, columns 2t, 2t+1).
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}

// As ldmatrix_x4, of transposed matrices: r[m] gets the elements (rows 2t, 2t+1, column g).
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
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

// As cp_async_16, where the rest of the 128-byte line is asked for too: the L2 fetches it whole.
__device__ __forceinline__ void cp_async_16_of_line(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global))
               : "memory");
}

__device__ __forceinline__ void cp_async_8(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(shared)),
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

// Two numbers that other blocks may have written during this launch: a line of this SM's L1 may be older.
__device__ __forceinline__ float2 load_fresh(const float* global) {
  float2 two;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
               : "=f"(two.x), "=f"(two.y)
               : "l"(__cvta_generic_to_global(global))
               : "memory");
  return two;
}

__device__ __forceinline__ float load_fresh_one(const float* global) {
  float one;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(one) : "l"(__cvta_generic_to_global(global)) : "memory");
  return one;
}

// Asks the L2 for the line of an address that is read later.
__device__ __forceinline__ void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(global)));
}

// A tile matrix of a product: 8 columns by 8 halves or 16 bytes of k lie together in 128 bytes, a column in 16. `k_stride` and
// `column_stride` are the bytes from one such core to the next along k and along the columns.
struct MatrixTiles {
  unsigned long long descriptor;
};
__device__ __forceinline__ MatrixTiles matrix_tiles(const void* shared, u32 k_stride, u32 column_stride) {
  return MatrixTiles{(unsigned long long)(shared_address(shared) >> 4 & 0x3fffu) |
                     (unsigned long long)(k_stride >> 4) << 16 | (unsigned long long)(column_stride >> 4) << 32};
}
__device__ __forceinline__ MatrixTiles advance(MatrixTiles tiles, u32 bytes) {
  return MatrixTiles{tiles.descriptor + (bytes >> 4)};
}

// The element (row g, columns 2t, 2t+1) of a transposed 8x8 matrix whose rows the lanes hold in the same order.
__device__ __forceinline__ u32 transpose_8x8(u32 pair) {
  u32 turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}

// A barrier of some of the block's warps, `threads` in all; number 0 is that of __syncthreads().
__device__ __forceinline__ void named_barrier(u32 number, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Counts at such a barrier without waiting: what came before is seen by those who wait there.
__device__ __forceinline__ void named_arrive(u32 number, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// 2^value, one instruction; its error is below 2^-22 of the result.
__device__ __forceinline__ float exp2_approximate(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}

// (bits & mask) ^ flips in one instruction, where the compiler makes two.
__device__ __forceinline__ u32 mask_and_flip(u32 bits, u32 mask, u32 flips) {
  u32 result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(bits), "r"(mask), "r"(flips));
  return result;
}

// Numbers that are computed by here: what products take would else be computed between them, and then they wait for each
// other.
template <u32 rows, u32 columns>
__device__ __forceinline__ void settle(u32 (&numbers)[rows][columns]) {
#pragma unroll
  for (u32 i = 0; i < rows * columns; ++i) asm volatile("" : "+r"(numbers[i / columns][i % columns]));
}

// d += a * b of a warpgroup: 64 rows, 16 to each of four neighbouring warps. Of halves, 16 along k, with the fragments a of
// mma_m16n8k16; of signed bytes, 32 along k, where a register of a has four of them instead of two halves, and the sums
// are exact. Two columns of d for every register: d[4j .. 4j+3] are columns 8j to 8j+7 as mma_m16n8k16 has them. Between
// begin_products() and wait_products() nobody touches a or d. What ordinary stores put into b is seen once
// publish_shared() and then a barrier follow it.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Sets the registers that every thread of the calling warpgroup may use: first some give theirs, then others take them.
template <u32 registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <u32 registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 registers>
__device__ __forceinline__ void wait_products(float (&d)[registers]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (u32 i = 0; i < registers; ++i) asm volatile("" : "+f"(d[i])::"memory");  // no use moves above the wait
}
template <u32 registers>
__device__ __forceinline__ void wait_products(i32 (&d)[registers]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (u32 i = 0; i < registers; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
// wgmma for every number of columns: an operand is named by its place, so each number of sums has names of its own.
#define KVF_FOUR_SUMS(kind, i) kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3])
#define KVF_EIGHT_SUMS(kind, i) KVF_FOUR_SUMS(kind, i), KVF_FOUR_SUMS(kind, i + 4)
#define KVF_SUMS_8(kind) KVF_EIGHT_SUMS(kind, 0)
#define KVF_SUMS_16(kind) KVF_SUMS_8(kind), KVF_EIGHT_SUMS(kind, 8)
#define KVF_SUMS_24(kind) KVF_SUMS_16(kind), KVF_EIGHT_SUMS(kind, 16)
#define KVF_SUMS_32(kind) KVF_SUMS_24(kind), KVF_EIGHT_SUMS(kind, 24)
#define KVF_SUMS_40(kind) KVF_SUMS_32(kind), KVF_EIGHT_SUMS(kind, 32)
#define KVF_SUMS_48(kind) KVF_SUMS_40(kind), KVF_EIGHT_SUMS(kind, 40)
#define KVF_SUMS_56(kind) KVF_SUMS_48(kind), KVF_EIGHT_SUMS(kind, 48)
#define KVF_SUMS_64(kind) KVF_SUMS_56(kind), KVF_EIGHT_SUMS(kind, 56)
#define KVF_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define KVF_NAMES_16 KVF_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define KVF_NAMES_24 KVF_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define KVF_NAMES_32 KVF_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define KVF_NAMES_40 KVF_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define KVF_NAMES_48 KVF_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define KVF_NAMES_56 KVF_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define KVF_NAMES_64 KVF_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define KVF_ISSUE_PRODUCTS(type, kind, shape, rest, sums, columns, a0, a1, a2, a3, tiles, adds)                         \
  __device__ __forceinline__ void issue_products(type (&d)[sums], const u32 (&a)[4], MatrixTiles b, bool accumulate) {  \
    asm volatile(                                                                                                       \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %" #adds ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns shape             \
        " {" KVF_NAMES_##sums "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #tiles ", p" rest ";\n}\n"               \
        : KVF_SUMS_##sums(kind)                                                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"((u32)accumulate));                         \
  }
#define KVF_HALF_PRODUCTS(...) KVF_ISSUE_PRODUCTS(float, "+f", "k16.f32.f16.f16", ", 1, 1, 0", __VA_ARGS__)
#define KVF_BYTE_PRODUCTS(...) KVF_ISSUE_PRODUCTS(i32, "+r", "k32.s32.s8.s8", "", __VA_ARGS__)
KVF_HALF_PRODUCTS(8, 16, 8, 9, 10, 11, 12, 13)
KVF_HALF_PRODUCTS(16, 32, 16, 17, 18, 19, 20, 21)
KVF_HALF_PRODUCTS(24, 48, 24, 25, 26, 27, 28, 29)
KVF_HALF_PRODUCTS(32, 64, 32, 33, 34, 35, 36, 37)
KVF_HALF_PRODUCTS(40, 80, 40, 41, 42, 43, 44, 45)
KVF_HALF_PRODUCTS(48, 96, 48, 49, 50, 51, 52, 53)
KVF_HALF_PRODUCTS(56, 112, 56, 57, 58, 59, 60, 61)
KVF_HALF_PRODUCTS(64, 128, 64, 65, 66, 67, 68, 69)
KVF_BYTE_PRODUCTS(16, 32, 16, 17, 18, 19, 20, 21)
KVF_BYTE_PRODUCTS(32, 64, 32, 33, 34, 35, 36, 37)
KVF_BYTE_PRODUCTS(48, 96, 48, 49, 50, 51, 52, 53)

#else

template <u32 registers>
__device__ __forceinline__ void give_registers() {}
template <u32 registers>
__device__ __forceinline__ void take_registers() {}
__device__ __forceinline__ void publish_shared() {}
__device__ __forceinline__ void begin_products() {}
__device__ __forceinline__ void commit_products() {}
template <typename Sum, u32 registers>
__device__ __forceinline__ void wait_products(Sum (&)[registers]) {}

__device__ __forceinline__ void multiply_tile(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_m16n8k16(d, a, b); }
__device__ __forceinline__ void multiply_tile(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same by mma.sync: every warp reads all of b.
template <typename Sum, u32 registers>
__device__ __forceinline__ void issue_products(Sum (&d)[registers], const u32 (&a)[4], MatrixTiles b, bool accumulate) {
  const u32 row = ((u32)b.descriptor & 0x3fffu) << 4;
  const u32 k_stride = ((u32)(b.descriptor >> 16) & 0x3fffu) << 4;
  const u32 column_stride = ((u32)(b.descriptor >> 32) & 0x3fffu) << 4;
  const u32 lane_row = row + lane_id() % 8 * 16 + lane_id() / 8 % 2 * k_stride;
#pragma unroll
  for (u32 j = 0; j < registers / 8; ++j) {
    // Sixteen columns.
    u32 tiles[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(lane_row + (j * 2 + lane_id() / 16) * column_stride)
                 : "memory");
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      Sum sum[4];
#pragma unroll
      for (u32 i = 0; i < 4; ++i) sum[i] = accumulate ? d[j * 8 + half * 4 + i] : Sum(0);
      const u32 column[2] = {tiles[half * 2], tiles[half * 2 + 1]};
      multiply_tile(sum, a, column);
#pragma unroll
      for (u32 i = 0; i < 4; ++i) d[j * 8 + half * 4 + i] = sum[i];
    }
  }
}

#endif
