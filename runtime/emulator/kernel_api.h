// What an emulated kernel calls in the host program. Operands travel in registers, so that the arrays of a kernel
// whose address would otherwise escape stay out of memory, and out of the checks.
#pragma once
#include "types.h"

enum KvfShuffle : u32 { kvf_shuffle_index, kvf_shuffle_xor, kvf_shuffle_down, kvf_shuffle_up };
enum KvfAtomic : u32 {
  kvf_atomic_add,
  kvf_atomic_add_float,
  kvf_atomic_max,
  kvf_atomic_max_signed,
  kvf_atomic_min,
  kvf_atomic_min_signed,
  kvf_atomic_and,
  kvf_atomic_or,
  kvf_atomic_xor,
  kvf_atomic_exchange,
  kvf_atomic_compare_exchange
};

struct KvfQuad {
  u32 word[4];
};
struct KvfFloatQuad {
  float value[4];
};

// `line` is where the kernel text calls: the caller's own line, told by a macro, needs no debug information.
extern "C" {
void kvf_barrier(u32 line);
void kvf_sync_warp(u32 line, u32 mask);
u64 kvf_shuffle(u32 line, u32 mask, u64 value, u32 argument, u32 width, u32 mode);
u32 kvf_ballot(u32 line, u32 mask, u32 predicate);
KvfFloatQuad kvf_mma_f16(float d0, float d1, float d2, float d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1,
                         u32 line);
KvfQuad kvf_mma_bytes(const i32* d, const u32* a, const u32* b, u32 b_signed, u32 line);
KvfQuad kvf_load_matrix(u32 line, bool transposed, const void* row);
u32 kvf_transpose(u32 line, u32 pair);
void kvf_named_barrier(u32 line, u32 number, u32 threads, u32 waits);
void kvf_publish_shared();
void kvf_issue_products(u32 line, const void* target, u32 a0, u32 a1, u32 a2, u32 a3, u64 descriptor, u32 columns,
                        u32 accumulate, u32 integers);
KvfQuad kvf_take_products(const void* target, u32 first);
u32 kvf_atomic(void* address, u32 operation, u32 value, u32 compare);
void kvf_fence();
void kvf_copy_issue(void* shared, const void* global, u32 bytes);
void kvf_copy_commit();
void kvf_copy_wait(u32 pending);
}
