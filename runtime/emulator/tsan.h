// What g++ -fsanitize=thread and -fsanitize=bounds,... call. The libraries behind them are not linked: these functions
// take their place, so that every access of a kernel arrives here with its return address.
#pragma once
#include "checks.h"

using kvf::Access;

#define KVF_CHECK(NAME, BYTES, ACCESS)                                                      \
  __attribute__((noinline)) void NAME(void* address) {                                      \
    kvf::check_access(reinterpret_cast<u64>(address), BYTES, KVF_PC, ACCESS);               \
  }
#define KVF_CHECK_BOTH(BYTES)                                    \
  KVF_CHECK(__tsan_read##BYTES, BYTES, Access::read)             \
  KVF_CHECK(__tsan_write##BYTES, BYTES, Access::write)           \
  KVF_CHECK(__tsan_unaligned_read##BYTES, BYTES, Access::read)   \
  KVF_CHECK(__tsan_unaligned_write##BYTES, BYTES, Access::write)

static void kvf_check_range(void* address, u64 bytes, u64 pc, Access access) {
  u64 at = reinterpret_cast<u64>(address);
  for (; bytes > 0;) {
    const u32 part = bytes < 16 ? static_cast<u32>(bytes) : 16;
    kvf::check_access(at, part, pc, access);
    at += part;
    bytes -= part;
  }
}

// The start of every record that g++ hands to a __ubsan_handle_ function.
struct KvfSourceLocation {
  const char* file;
  u32 line;
  u32 column;
};
struct KvfTypeMismatch {
  KvfSourceLocation location;
  const void* type;
  u8 log_alignment;
  u8 kind;
};

[[noreturn]] static void kvf_undefined(const char* kind, const void* record, u64 detail, u64 pc) {
  kvf::Fault fault;
  fault.kind = kind;
  fault.at = kvf::here(pc, false);
  fault.at.line = static_cast<const KvfSourceLocation*>(record)->line;
  fault.text = static_cast<const KvfSourceLocation*>(record)->file;
  fault.detail = detail;
  kvf::raise_fault(fault);
}

extern "C" {
KVF_CHECK_BOTH(1)
KVF_CHECK_BOTH(2)
KVF_CHECK_BOTH(4)
KVF_CHECK_BOTH(8)
KVF_CHECK_BOTH(16)

void __tsan_read_range(void* address, u64 bytes) { kvf_check_range(address, bytes, KVF_PC, Access::read); }
void __tsan_write_range(void* address, u64 bytes) { kvf_check_range(address, bytes, KVF_PC, Access::write); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}

void __ubsan_handle_out_of_bounds(void* record, u64 index) { kvf_undefined("index", record, index, KVF_PC); }
void __ubsan_handle_shift_out_of_bounds(void* record, u64, u64 by) { kvf_undefined("shift", record, by, KVF_PC); }
void __ubsan_handle_divrem_overflow(void* record, u64, u64) { kvf_undefined("division", record, 0, KVF_PC); }
void __ubsan_handle_type_mismatch_v1(void* record, u64 address) {
  const u64 alignment = 1ull << static_cast<const KvfTypeMismatch*>(record)->log_alignment;
  // A null pointer is also out of bounds, and is reported as that by the access itself.
  if (address % alignment != 0) kvf_undefined("misaligned", record, alignment, KVF_PC);
}
}
