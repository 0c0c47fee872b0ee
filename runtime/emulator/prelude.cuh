// The CUDA that emitted kernels use, as C++ for the emulator. g++ finds this file instead of templates/cuda/prelude.cuh;
// both offer the same names. No system header is included: it would cost more than compiling the kernel.
#pragma once
#include "half.h"
#include "kernel_api.h"
#include "types.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Only thread_local fits both `__shared__ T x[N]` inside a function (where it implies static) and
// `extern __shared__ T x[]`. The host runs every fiber on one thread, so all of them see one copy; and the
// variables of a module lie in one TLS block, whose range the host asks the dynamic linker for.
#define __shared__ thread_local

// Dynamic shared memory, at the largest size any target offers; a launch may use the part that it asked for.
thread_local __align__(1024) unsigned char shared_memory[233472];
// Touches the TLS block, so that it exists, and says where the dynamic part lies.
extern "C" unsigned char* kvf_dynamic_shared() { return shared_memory; }

// The host sets threadIdx at every switch of fibers. Constants are not instrumented, and may stay in registers.
extern "C" {
extern const uint3 threadIdx;
extern const uint3 blockIdx;
extern const uint3 blockDim;
extern const uint3 gridDim;
}
static const int warpSize = 32;

#define KVF_INLINE static inline __attribute__((always_inline))

template <typename T>
KVF_INLINE const T* again(const T* pointer) {
  return pointer;
}

// Collectives take the line of the call: a macro tells it without debug information, and the same in both modes.
#define __syncthreads() kvf_barrier(__LINE__)
#define __syncwarp(...) kvf_sync_warp_at(__LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(...) kvf_shuffle_at<kvf_shuffle_index>(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) kvf_shuffle_at<kvf_shuffle_xor>(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) kvf_shuffle_at<kvf_shuffle_down>(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) kvf_shuffle_at<kvf_shuffle_up>(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, predicate) kvf_ballot(__LINE__, mask, (predicate) ? 1u : 0u)
#define __any_sync(mask, predicate) (kvf_ballot(__LINE__, mask, (predicate) ? 1u : 0u) != 0u)
#define __all_sync(mask, predicate) (kvf_ballot(__LINE__, mask, (predicate) ? 0u : 1u) == 0u)
#define mma_m16n8k16(...) kvf_mma_f16_at(__LINE__, __VA_ARGS__)
#define multiply_codes(...) kvf_mma_bytes_at(__LINE__, 0u, __VA_ARGS__)
#define multiply_codes_signed(...) kvf_mma_bytes_at(__LINE__, 1u, __VA_ARGS__)
#define ldmatrix_x4(...) kvf_load_matrix_at(__LINE__, false, __VA_ARGS__)
#define ldmatrix_x4_trans(...) kvf_load_matrix_at(__LINE__, true, __VA_ARGS__)
#define transpose_8x8(pair) kvf_transpose(__LINE__, pair)
#define named_barrier(number, threads) kvf_named_barrier(__LINE__, number, threads, 1u)
#define named_arrive(number, threads) kvf_named_barrier(__LINE__, number, threads, 0u)
#define issue_products(...) kvf_issue_products_at(__LINE__, __VA_ARGS__)

KVF_INLINE void kvf_sync_warp_at(u32 line, u32 mask = 0xffffffffu) { kvf_sync_warp(line, mask); }

template <KvfShuffle mode, typename T>
KVF_INLINE T kvf_shuffle_at(u32 line, u32 mask, T value, u32 argument, u32 width = 32) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  u64 bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = kvf_shuffle(line, mask, bits, argument, width, mode);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}

KVF_INLINE void kvf_mma_f16_at(u32 line, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  const KvfFloatQuad sum = kvf_mma_f16(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b[0], b[1], line);
  d[0] = sum.value[0];
  d[1] = sum.value[1];
  d[2] = sum.value[2];
  d[3] = sum.value[3];
}

KVF_INLINE void kvf_mma_bytes_at(
    u32 line, u32 b_signed, i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const i32 (&c)[4]) {
  const KvfQuad sum = kvf_mma_bytes(c, a, b, b_signed, line);
  __builtin_memcpy(d, &sum, 16);
}

KVF_INLINE void kvf_load_matrix_at(u32 line, bool transposed, u32 (&r)[4], const void* row) {
  const KvfQuad loaded = kvf_load_matrix(line, transposed, row);
  r[0] = loaded.word[0];
  r[1] = loaded.word[1];
  r[2] = loaded.word[2];
  r[3] = loaded.word[3];
}

KVF_INLINE float2 load_fresh(const float* global) { return *reinterpret_cast<const float2*>(global); }
KVF_INLINE float load_fresh_one(const float* global) { return *global; }
KVF_INLINE void prefetch_line(const void*) {}

// The matrix unit of a warpgroup. An emulated address of shared memory counts from its start.
struct MatrixTiles {
  u64 descriptor;
};
KVF_INLINE MatrixTiles matrix_tiles(const void* shared, u32 k_stride, u32 column_stride) {
  const u64 offset = static_cast<u64>(static_cast<const unsigned char*>(shared) - shared_memory);
  return MatrixTiles{offset >> 4 | static_cast<u64>(k_stride >> 4) << 16 | static_cast<u64>(column_stride >> 4) << 32};
}
KVF_INLINE MatrixTiles advance(MatrixTiles tiles, u32 bytes) { return MatrixTiles{tiles.descriptor + (bytes >> 4)}; }
template <u32 registers>
KVF_INLINE void give_registers() {}
template <u32 registers>
KVF_INLINE void take_registers() {}
KVF_INLINE void publish_shared() { kvf_publish_shared(); }
KVF_INLINE u32 mask_and_flip(u32 bits, u32 mask, u32 flips) { return (bits & mask) ^ flips; }
template <typename Numbers>
KVF_INLINE void settle(Numbers&) {}
KVF_INLINE void begin_products() {}
KVF_INLINE void commit_products() {}
// Accumulators hold NaN, or the least integer, until the wait: who looks earlier sees it in the result.
template <typename Sum, u32 registers>
KVF_INLINE void kvf_issue_products_at(u32 line, Sum (&d)[registers], const u32 (&a)[4], MatrixTiles b, bool accumulate) {
  static_assert(registers % 8 == 0 && registers <= 64, "16 to 128 columns, as templates/cuda has them");
  constexpr bool integers = static_cast<Sum>(0.5f) == Sum(0);
  kvf_issue_products(line, d, a[0], a[1], a[2], a[3], b.descriptor, registers * 2, accumulate ? 1u : 0u, integers ? 1u : 0u);
  const u32 unknown = integers ? 0x80000000u : 0xffffffffu;
  for (u32 i = 0; i < registers; ++i) __builtin_memcpy(&d[i], &unknown, 4);
}
template <typename Sum, u32 registers>
KVF_INLINE void wait_products(Sum (&d)[registers]) {
  for (u32 i = 0; i < registers; i += 4) {
    const KvfQuad four = kvf_take_products(d, i);
    __builtin_memcpy(&d[i], &four, 16);
  }
}

KVF_INLINE u32 lane_id() { return threadIdx.x & 31u; }

KVF_INLINE void cp_async_16(void* shared, const void* global) { kvf_copy_issue(shared, global, 16); }
KVF_INLINE void cp_async_16_of_line(void* shared, const void* global) { kvf_copy_issue(shared, global, 16); }
KVF_INLINE void cp_async_8(void* shared, const void* global) { kvf_copy_issue(shared, global, 8); }
KVF_INLINE void cp_async_4(void* shared, const void* global) { kvf_copy_issue(shared, global, 4); }
KVF_INLINE void cp_async_commit() { kvf_copy_commit(); }
template <int pending>
KVF_INLINE void cp_async_wait() {
  kvf_copy_wait(pending);
}

KVF_INLINE void __threadfence() { kvf_fence(); }
KVF_INLINE void __threadfence_block() {}

template <typename T>
KVF_INLINE T __ldg(const T* address) {
  return *address;
}

#include "prelude_atomics.h"
#include "prelude_math.h"

KVF_INLINE float exp2_approximate(float value) { return exp2f(value); }
