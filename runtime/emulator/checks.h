// The checks of one memory access: is it inside what the launch bound, was it written before, does it race?
#pragma once
#include "block.h"
#include "memory.h"
#include "module.h"

// Where the kernel called from. Only in functions that kernels call, which must not be inlined.
#define KVF_PC reinterpret_cast<u64>(__builtin_return_address(0))

namespace kvf {

enum class Access : u32 { read, write, atomic };

struct Launch {
  bool checked = false;
  Module* module = nullptr;
  u64 dynamic_bytes = 0;
  std::vector<u8> shared_known;
  std::vector<ThreadCell> shared_cells;
  // Ordering between blocks. A block publishes what it did before a __threadfence() by an atomic after it; another
  // block sees what was published once it has done an atomic itself. Which address it used is not asked: two
  // counters may be confused, and a race missed, but none is made up.
  u32 first_block = 1;
  u32 blocks = 0;
  u32 fences = 0;
  bool acquired = false;
  std::vector<u32> published;
};

static Launch launch;

inline Site here(u64 pc, bool write) {
  Site site;
  site.known = true;
  site.thread = block.current->index;
  site.block = block.linear;
  site.pc = pc;
  site.write = write;
  return site;
}

inline Place locate(u64 address) {
  Place place;
  const Module& module = *launch.module;
  const u64 shared = reinterpret_cast<u64>(module.shared);
  if (address - shared < module.shared_bytes) {
    const u64 dynamic = address - shared - module.dynamic_begin;
    place.space = dynamic < dynamic_capacity ? "dynamic" : "static";
    place.offset = static_cast<long long>(dynamic < dynamic_capacity ? dynamic : address - shared);
    return place;
  }
  if (address - memory.base < memory.size) {
    // The nearest binding, by the distance from its nearer end.
    u64 best = ~0ull;
    for (u32 i = 1; i <= memory.bound; ++i) {
      const Binding& binding = memory.bindings[i];
      const u64 distance = address < binding.begin ? binding.begin - address
                           : address >= binding.end ? address - binding.end
                                                    : 0;
      if (distance > page || distance >= best) continue;
      best = distance;
      place.space = "binding";
      place.binding = i - 1;
      place.offset = static_cast<long long>(address - binding.begin);
    }
    if (best != ~0ull) return place;
    for (const auto& [start, span] : memory.released) {
      if (address - start < span) place.space = "released";
    }
    for (const auto& [id, buffer] : memory.buffers) {
      if (address - reinterpret_cast<u64>(buffer.data) < buffer.span) place.space = "unbound";
    }
    return place;
  }
  for (u32 i = 0; i < block.threads; ++i) {
    if (address - reinterpret_cast<u64>(block.thread[i].stack) >= stack_bytes) continue;
    place.space = "stack";
    place.binding = i;
  }
  if (address - module.begin < module.end - module.begin) place.space = "module";
  if (address < page) place.space = "null";
  return place;
}

[[noreturn]] __attribute__((noinline, cold)) inline void raise_access(const char* kind, u64 address, u32 bytes, u64 pc,
                                                                      bool write, const Site& other = Site()) {
  Fault fault;
  fault.kind = kind;
  fault.at = here(pc, write);
  fault.other = other;
  fault.place = locate(address);
  fault.bytes = bytes;
  fault.address = address;
  raise_fault(fault);
}

// One of the (at most four) bytes of a word, as bits.
inline u32 word_mask(u64 offset, u32 bytes) { return ((1u << (bytes > 4 ? 4 : bytes)) - 1u) << (offset & 3) & 15u; }

inline u32 relative(u64 pc) { return static_cast<u32>(pc - launch.module->begin); }

inline bool check_known(u8* known, u64 offset, u32 bytes, Access access) {
  u32 word;
  u8* at = known + (offset >> 3);
  memcpy(&word, at, 4);
  const u32 mask = ((1u << bytes) - 1u) << (offset & 7);
  if ((word & mask) == mask) return true;
  if (access != Access::write) return false;
  word |= mask;
  memcpy(at, &word, 4);
  return true;
}

inline bool unordered_blocks(const GlobalAccess& access, u32 self, u32 mask, Access now) {
  if (access.block < launch.first_block || access.block == self || (access.mask & mask) == 0) return false;
  if (access.atomic && now == Access::atomic) return false;
  return !(launch.acquired && launch.published[access.block - launch.first_block] > access.fence);
}

inline void check_blocks(GlobalCell& cell, u64 address, u32 mask, u32 bytes, u64 pc, Access access) {
  const u32 self = launch.first_block + static_cast<u32>(block.linear);
  const GlobalAccess* conflict = nullptr;
  if (unordered_blocks(cell.write, self, mask, access)) conflict = &cell.write;
  if (access != Access::read && unordered_blocks(cell.read, self, mask, access)) conflict = &cell.read;
  if (conflict != nullptr) {
    Site other;
    other.known = true;
    other.block = conflict->block - launch.first_block;
    other.pc = launch.module->begin + conflict->pc;
    other.write = conflict == &cell.write;
    raise_access("block-race", address, bytes, pc, access != Access::read, other);
  }
  const GlobalAccess mine = {self, relative(pc), launch.fences, access == Access::atomic, mask};
  if (access != Access::read) {
    cell.write = mine;
    return;
  }
  // An earlier block's read is kept, as a later write of this block must be held against it.
  const u32 reader = cell.read.block;
  if (reader < launch.first_block || reader == self) cell.read = mine;
}

inline bool unordered_threads(const ThreadAccess& access, u32 mask, Access now) {
  const Thread& self = *block.current;
  if (access.epoch != block.epoch || access.thread == self.index || (access.mask & mask) == 0) return false;
  if (access.atomic && now == Access::atomic) return false;
  const Warp& warp = block.warp[self.index / 32];
  if (access.arrivals < warp.seen[access.thread / 32]) return false;
  return access.thread / 32 != self.index / 32 || access.warp_epoch == warp.epoch;
}

// A read of the same bytes by the same thread, once it has arrived at a named barrier: who is ordered after this one is
// ordered after the earlier one too.
inline bool replaces(const ThreadAccess& earlier, const ThreadAccess& mine) {
  return earlier.thread == mine.thread && earlier.arrivals != mine.arrivals && (earlier.mask & ~mine.mask) == 0;
}

inline void keep_reader(ThreadCell& cell, ThreadAccess mine) {
  ThreadAccess& first = cell.read[0];
  ThreadAccess& second = cell.read[1];
  const bool same_warp = first.thread / 32 == mine.thread / 32;
  const u32* seen = block.warp[mine.thread / 32].seen;
  if (first.epoch != mine.epoch || (same_warp && first.warp_epoch != mine.warp_epoch) ||
      first.arrivals < seen[first.thread / 32] || replaces(first, mine)) {
    first = mine;
  } else if (first.thread == mine.thread) {
    first.mask |= mine.mask;
  } else if (second.epoch != mine.epoch || second.thread / 32 == first.thread / 32 ||
             second.arrivals < seen[second.thread / 32] || replaces(second, mine)) {
    second = mine;
  }
}

inline void check_threads(ThreadCell& cell, u64 address, u32 mask, u32 bytes, u64 pc, Access access) {
  const ThreadAccess* conflict = nullptr;
  if (unordered_threads(cell.write, mask, access)) conflict = &cell.write;
  if (access != Access::read) {
    if (unordered_threads(cell.read[0], mask, access)) conflict = &cell.read[0];
    if (unordered_threads(cell.read[1], mask, access)) conflict = &cell.read[1];
  }
  const u32 self = block.current->index;
  if (conflict != nullptr) {
    Site other = here(launch.module->begin + conflict->pc, conflict == &cell.write);
    other.thread = conflict->thread;
    raise_access("thread-race", address, bytes, pc, access != Access::read, other);
  }
  const Warp& warp = block.warp[self / 32];
  ThreadAccess mine = {block.epoch,  warp.epoch, block.current->arrivals, block.current->published,
                       relative(pc), self,       access == Access::atomic, mask};
  if (access == Access::read) {
    keep_reader(cell, mine);
    return;
  }
  // Two stores of one thread to parts of a word count as one, but for what lies before a named barrier that it passed.
  const bool again = cell.write.epoch == mine.epoch && cell.write.arrivals == mine.arrivals;
  if (again && cell.write.thread == self) mine.mask |= cell.write.mask;
  cell.write = mine;
}

inline void check_global(u64 address, u32 bytes, u64 pc, Access access) {
  const Binding& binding = memory.bindings[memory.slots[(address - memory.base) >> slot_shift]];
  const bool write = access != Access::read;
  if (address < binding.begin || address + bytes > binding.end) raise_access("outside", address, bytes, pc, write);
  if (write && !binding.writable) raise_access("read-only", address, bytes, pc, true);
  const u64 offset = address - binding.data;
  if (!check_known(binding.known, offset, bytes, access)) raise_access("unwritten", address, bytes, pc, false);
  if (!binding.writable) return;
  u32 left = bytes;
  for (u64 at = offset; left > 0;) {
    const u32 part = left < 4 - (at & 3) ? left : 4 - static_cast<u32>(at & 3);
    GlobalCell& cell = binding.cells[at >> 2];
    check_blocks(cell, address, word_mask(at, part), bytes, pc, access);
    check_threads(cell.threads, address, word_mask(at, part), bytes, pc, access);
    at += part;
    left -= part;
  }
}

inline void check_shared(u64 offset, u32 bytes, u64 pc, Access access) {
  const Module& module = *launch.module;
  const u64 address = reinterpret_cast<u64>(module.shared) + offset;
  const bool write = access != Access::read;
  const u64 dynamic = offset - module.dynamic_begin;
  if (dynamic < dynamic_capacity ? dynamic + bytes > launch.dynamic_bytes : offset + bytes > module.shared_bytes) {
    raise_access("outside", address, bytes, pc, write);
  }
  if (!check_known(launch.shared_known.data(), offset, bytes, access)) {
    raise_access("unwritten", address, bytes, pc, false);
  }
  u32 left = bytes;
  for (u64 at = offset; left > 0;) {
    const u32 part = left < 4 - (at & 3) ? left : 4 - static_cast<u32>(at & 3);
    check_threads(launch.shared_cells[at >> 2], address, word_mask(at, part), bytes, pc, access);
    at += part;
    left -= part;
  }
}

inline void check_access(u64 address, u32 bytes, u64 pc, Access access) {
  if (address - memory.base < memory.size) return check_global(address, bytes, pc, access);
  const u64 shared = address - reinterpret_cast<u64>(launch.module->shared);
  if (shared < launch.module->shared_bytes) return check_shared(shared, bytes, pc, access);
  if (address - reinterpret_cast<u64>(block.current->stack) < stack_bytes) return;
  const bool own_data = address - launch.module->begin < launch.module->end - launch.module->begin;
  if (access != Access::read || !own_data) raise_access("outside", address, bytes, pc, access != Access::read);
}

}  // namespace kvf
