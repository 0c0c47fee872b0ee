// Device memory: one reserved range of addresses, buffers in it page by page, and what is known of every byte.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "types.h"

namespace kvf {

const u64 page = 65536;         // the largest page size of Linux: a buffer starts on one, a page without access follows
const u32 slot_shift = 8;       // bindings start at multiples of 256 bytes
const u32 max_bindings = 32;
const u8 poison = 0xff;         // NaN as f32 and as f16, -1 as an integer

// Who touched a 4-byte word, by thread. `epoch` is that of the block, `warp_epoch` counts __syncwarp(), `arrivals` those of
// the thread at named barriers, `published` its calls of publish_shared().
struct ThreadAccess {
  u32 epoch;
  u32 warp_epoch;
  u32 arrivals;
  u32 published;
  u32 pc;  // return address, from the start of the module
  u32 thread : 12;
  u32 atomic : 1;
  u32 mask : 4;
};
// The last writer, the first reader, and another reader, of another warp where there was one.
struct ThreadCell {
  ThreadAccess write, read[2];
};

// Who touched a 4-byte word of a writable binding in this launch, by block.
struct GlobalAccess {
  u32 block;  // number of the block in the life of the process; older than the launch means never
  u32 pc;     // return address, from the start of the module
  u32 fence : 27;
  u32 atomic : 1;
  u32 mask : 4;
};
struct GlobalCell {
  GlobalAccess write, read;
  ThreadCell threads;
};

struct Buffer {
  u8* data = nullptr;
  u64 bytes = 0;
  u64 span = 0;
  // A bit per byte: has it been written?
  u8* known = nullptr;
  // Made when a checked launch first binds the buffer for writing.
  GlobalCell* cells = nullptr;
};

struct Binding {
  u64 begin = 0, end = 0;
  bool writable = false;
  u64 data = 0;
  u8* known = nullptr;
  GlobalCell* cells = nullptr;
};

struct Memory {
  u64 base = 0, size = 0, used = 0;
  // For every 256 bytes of the range, the binding of the running launch that covers them, plus one.
  u8* slots = nullptr;
  std::unordered_map<u32, Buffer> buffers;
  // Ranges of released buffers, oldest first: reused only when the range is used up, so that stale pointers fault.
  std::vector<std::pair<u64, u64>> released;
  Binding bindings[max_bindings + 1];
  u32 bound = 0;
};

static Memory memory;

inline void* reserve(u64 bytes, int protection) {
  void* base = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

// Takes as much address space as the system grants, from 256 GiB down: it costs nothing until it is touched.
inline bool open_memory() {
  for (u64 size = 1ull << 38; size >= 1ull << 32; size >>= 1) {
    void* base = reserve(size, PROT_NONE);
    if (base == nullptr) continue;
    void* slots = reserve(size >> slot_shift, PROT_READ | PROT_WRITE);
    if (slots == nullptr) {
      munmap(base, size);
      continue;
    }
    memory.base = reinterpret_cast<u64>(base);
    memory.size = size;
    memory.slots = static_cast<u8*>(slots);
    return true;
  }
  return false;
}

inline u64 find_range(u64 span) {
  if (memory.used + span <= memory.size) {
    memory.used += span;
    return memory.base + memory.used - span;
  }
  for (auto& [start, bytes] : memory.released) {
    if (bytes < span) continue;
    bytes -= span;
    return start + bytes;
  }
  return 0;
}

inline const char* allocate_buffer(u32 id, u64 bytes) {
  Buffer buffer;
  buffer.bytes = bytes;
  buffer.span = (bytes + page - 1) / page * page + page;
  const u64 start = find_range(buffer.span);
  if (start == 0) return "the address range of the emulator is used up";
  buffer.data = reinterpret_cast<u8*>(start);
  buffer.known = static_cast<u8*>(calloc(bytes / 8 + 8, 1));
  if (buffer.known == nullptr || mprotect(buffer.data, buffer.span - page, PROT_READ | PROT_WRITE) != 0) {
    free(buffer.known);
    memory.released.emplace_back(start, buffer.span);
    return "the system has no memory left";
  }
  memset(buffer.data, poison, bytes);
  memory.buffers[id] = buffer;
  return nullptr;
}

inline void release_buffer(u32 id) {
  const auto found = memory.buffers.find(id);
  if (found == memory.buffers.end()) return;
  Buffer& buffer = found->second;
  free(buffer.known);
  free(buffer.cells);
  madvise(buffer.data, buffer.span, MADV_DONTNEED);
  mprotect(buffer.data, buffer.span, PROT_NONE);
  memory.released.emplace_back(reinterpret_cast<u64>(buffer.data), buffer.span);
  memory.buffers.erase(found);
}

inline void mark_known(u8* known, u64 offset, u64 bytes) {
  const u64 end = offset + bytes;
  while (offset < end && offset % 8 != 0) known[offset >> 3] |= static_cast<u8>(1u << offset % 8), ++offset;
  memset(known + (offset >> 3), 0xff, (end - offset) >> 3);
  for (offset = offset + ((end - offset) & ~7ull); offset < end; ++offset) {
    known[offset >> 3] |= static_cast<u8>(1u << offset % 8);
  }
}

// Of two bindings that share 256 bytes, the one that reaches further answers for them.
inline void bind_range(Buffer& buffer, u64 offset, u64 bytes, bool writable, bool checked) {
  if (writable && checked && buffer.cells == nullptr) {
    buffer.cells = static_cast<GlobalCell*>(calloc(buffer.bytes / 4 + 8, sizeof(GlobalCell)));
  }
  Binding& binding = memory.bindings[++memory.bound];
  binding.data = reinterpret_cast<u64>(buffer.data);
  binding.begin = binding.data + offset;
  binding.end = binding.begin + bytes;
  binding.writable = writable;
  binding.known = buffer.known;
  binding.cells = buffer.cells;
  if (!checked) return;
  for (u64 slot = (binding.begin - memory.base) >> slot_shift; slot << slot_shift < binding.end - memory.base; ++slot) {
    u8& owner = memory.slots[slot];
    if (owner == 0 || memory.bindings[owner].end < binding.end) owner = static_cast<u8>(memory.bound);
  }
}

inline void unbind_all(bool checked) {
  for (u32 i = 1; checked && i <= memory.bound; ++i) {
    const Binding& binding = memory.bindings[i];
    const u64 first = (binding.begin - memory.base) >> slot_shift;
    memset(memory.slots + first, 0, ((binding.end - memory.base - 1) >> slot_shift) - first + 1);
  }
  memory.bound = 0;
}

}  // namespace kvf
