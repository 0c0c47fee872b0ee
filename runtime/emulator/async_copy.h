// cp.async and atomics: what a kernel does to memory by calls of the host rather than by loads and stores.
#pragma once
#include "checks.h"

namespace kvf {

// From issue to the wait that covers it the destination holds poison, and counts as unwritten: a real copy may land at
// any moment in between, and a kernel that looks too early must not find the right bytes. The source is read at the
// wait, as late as a real copy may read it.
inline void issue_copy(u8* shared, const u8* global, u32 bytes, u64 pc) {
  Thread& self = *block.current;
  const u64 target = reinterpret_cast<u64>(shared);
  const u64 source = reinterpret_cast<u64>(global);
  self.pc = pc;
  self.line = 0;
  const u64 offset = target - reinterpret_cast<u64>(launch.module->shared);
  if (target % bytes != 0 || source % bytes != 0 || offset >= launch.module->shared_bytes) {
    Fault fault;
    fault.kind = offset >= launch.module->shared_bytes ? "not-shared" : "misaligned";
    fault.at = site_of(self);
    fault.detail = bytes;
    raise_fault(fault);
  }
  if (launch.checked) {
    if (source - memory.base >= memory.size) raise_access("outside", source, bytes, pc, false);
    check_access(source, bytes, pc, Access::read);
    check_access(target, bytes, pc, Access::write);
    for (u32 i = 0; i < bytes; ++i) {
      launch.shared_known[(offset + i) >> 3] &= static_cast<u8>(~(1u << (offset + i) % 8));
    }
  }
  memset(shared, poison, bytes);
  self.copies.push_back(PendingCopy{shared, global, bytes, self.copy_group});
}

// `pending` groups, the youngest committed ones, may stay unfinished; copies that were never committed stay too.
inline void wait_copies(u32 pending, u64 pc) {
  Thread& self = *block.current;
  u32 kept = 0;
  for (const PendingCopy& copy : self.copies) {
    if (copy.group + pending >= self.copy_group) {
      self.copies[kept++] = copy;
      continue;
    }
    if (launch.checked) {
      check_access(reinterpret_cast<u64>(copy.global), copy.bytes, pc, Access::read);
      check_access(reinterpret_cast<u64>(copy.shared), copy.bytes, pc, Access::write);
    }
    memcpy(copy.shared, copy.global, copy.bytes);
  }
  self.copies.resize(kept);
}

inline u32 update_word(u32 old, u32 operation, u32 value, u32 compare) {
  const i32 signed_old = static_cast<i32>(old);
  const i32 signed_value = static_cast<i32>(value);
  switch (operation) {
    case kvf_atomic_add:
      return old + value;
    case kvf_atomic_add_float: {
      float sum, addend;
      memcpy(&sum, &old, 4);
      memcpy(&addend, &value, 4);
      sum += addend;
      memcpy(&old, &sum, 4);
      return old;
    }
    case kvf_atomic_max:
      return old > value ? old : value;
    case kvf_atomic_max_signed:
      return signed_old > signed_value ? old : value;
    case kvf_atomic_min:
      return old < value ? old : value;
    case kvf_atomic_min_signed:
      return signed_old < signed_value ? old : value;
    case kvf_atomic_and:
      return old & value;
    case kvf_atomic_or:
      return old | value;
    case kvf_atomic_xor:
      return old ^ value;
    case kvf_atomic_exchange:
      return value;
    default:
      return old == compare ? value : old;
  }
}

}  // namespace kvf

extern "C" {

__attribute__((noinline)) void kvf_copy_issue(void* shared, const void* global, u32 bytes) {
  kvf::issue_copy(static_cast<u8*>(shared), static_cast<const u8*>(global), bytes, KVF_PC);
}

void kvf_copy_commit() { ++kvf::block.current->copy_group; }

__attribute__((noinline)) void kvf_copy_wait(u32 pending) { kvf::wait_copies(pending, KVF_PC); }

__attribute__((noinline)) u32 kvf_atomic(void* address, u32 operation, u32 value, u32 compare) {
  const u64 at = reinterpret_cast<u64>(address);
  const bool global = at - kvf::memory.base < kvf::memory.size;
  if (global) kvf::hold_block(kvf::Hold::before_atomic);
  if (kvf::launch.checked) {
    if (at % 4 != 0) kvf::raise_access("misaligned-atomic", at, 4, KVF_PC, true);
    kvf::check_access(at, 4, KVF_PC, kvf::Access::atomic);
    if (global) {
      kvf::launch.acquired = true;
      kvf::launch.published[kvf::block.linear] = kvf::launch.fences;
    }
  }
  u32* word = static_cast<u32*>(address);
  const u32 old = *word;
  *word = kvf::update_word(old, operation, value, compare);
  if (global) kvf::hold_block(kvf::Hold::after_atomic);
  return old;
}

void kvf_fence() { ++kvf::launch.fences; }
}
