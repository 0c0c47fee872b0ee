// One block of threads: who may run, who waits, and the barrier of the block.
#pragma once
#include <algorithm>
#include <vector>

#include "fault.h"
#include "fibers.h"
#include "kernel_api.h"

// Read by kernels as constants of these names; set here at every switch.
extern "C" {
uint3 threadIdx;
uint3 blockIdx;
uint3 blockDim;
uint3 gridDim;
}

namespace kvf {

const u32 max_threads = 1024;
const u32 max_groups = 32;  // a group has at least one waiting lane

enum class Order : u32 { ascending, descending, shuffled, starved };
// Where the order 'starved' stops a block until all others have ended.
enum class Hold : u32 { nowhere, at_barrier, before_atomic, after_atomic };
enum class State : u8 { ready, barrier, named, warp, exited };

struct PendingCopy {
  u8* shared;
  const u8* global;
  u32 bytes;
  u32 group;
};

// 128 columns at most, two to a register: floats, or the bits of integers.
const u32 max_products = 4;
struct Products {
  const void* target = nullptr;
  u32 sums[64];
};

// A tile matrix that products which were issued may still be reading.
struct TilesInUse {
  u64 descriptor;
  u32 columns;
};

struct Thread {
  Context context;
  u8* stack = nullptr;
  u32 index = 0;
  State state = State::exited;
  u32 line = 0;
  u64 pc = 0;
  // Operands of the collective that the thread waits in, and what comes back.
  u32 operand[10];
  u32 result[4];
  // Accumulators of products that were issued, and what they are for: they land when the thread waits for them.
  Products products[max_products];
  // What they read, in the first lane of a warp.
  std::vector<TilesInUse> tiles;
  // Calls of publish_shared(), arrivals at named barriers, and the barrier that the thread waits at.
  u32 published = 0;
  u32 arrivals = 0;
  u32 barrier = 0;
  const u8* row = nullptr;
  // cp.async: copies not yet written, and the number of groups committed so far.
  std::vector<PendingCopy> copies;
  u32 copy_group = 0;
};

// Lanes of one mask that meet in one collective.
struct Group {
  u32 mask = 0;
  u32 arrived = 0;
  u32 operation = 0;
  u32 line = 0;
};

struct Warp {
  u32 ready = 0;
  u32 existing = 0;
  u32 exited = 0;
  // Counts __syncwarp(): two accesses of one warp with a count between them are ordered.
  u32 epoch = 0;
  // Of every warp, how many of its arrivals at named barriers come before what this warp does now.
  u32 seen[32] = {};
  u32 groups = 0;
  Group group[max_groups];
};

// A barrier of some warps, with what those that arrived have seen.
struct NamedBarrier {
  u32 arrived = 0;
  u32 threads = 0;
  u32 seen[32] = {};
};

struct Block {
  Thread thread[max_threads];
  Warp warp[32];
  NamedBarrier named[16];
  u32 threads = 0;
  u32 ready_warps = 0;
  u32 current_warp = 0;
  u32 waiting = 0;
  u32 exited = 0;
  u32 barrier_line = 0;
  u32 first_waiting = 0;
  u32 last_exited = 0;
  // Of the threads since the last barrier. Never repeats within the life of the process: a stale record of an access
  // has an older number.
  u32 epoch = 0;
  // The first one of the block that runs.
  u32 first_epoch = 0;
  u64 linear = 0;
  Thread* current = nullptr;
  Context main;
  u64 random = 1;
  bool failed = false;
  bool held = false;
  Fault fault;
};

static Block block;

// Order of the threads of a block in the running launch, and the thread that 'starved' runs when no other can.
struct Schedule {
  Order order = Order::ascending;
  u32 starved = 0;
  // Of the block that runs; 'nowhere' once it has been held.
  Hold hold = Hold::nowhere;
  u32 last_epoch = 0;
};

static Schedule schedule;

inline u64 next_random() {
  block.random ^= block.random << 13;
  block.random ^= block.random >> 7;
  block.random ^= block.random << 17;
  return block.random;
}

inline u32 pick_bit(u32 bits, u32 starved) {
  if (schedule.order == Order::starved && bits != 1u << starved) bits &= ~(1u << starved);
  if (schedule.order == Order::descending) return 31u - static_cast<u32>(__builtin_clz(bits));
  if (schedule.order != Order::shuffled) return static_cast<u32>(__builtin_ctz(bits));
  u32 skip = static_cast<u32>(next_random() % static_cast<u32>(__builtin_popcount(bits)));
  while (skip-- > 0) bits &= bits - 1;
  return static_cast<u32>(__builtin_ctz(bits));
}

inline u32 pick_warp() { return pick_bit(block.ready_warps, schedule.starved / 32); }

inline Site site_of(const Thread& thread) {
  Site site;
  site.known = true;
  site.thread = thread.index;
  site.block = block.linear;
  site.pc = thread.pc;
  site.line = thread.line;
  return site;
}

// Ends the launch: the fibers are abandoned where they are, which is safe as kernels own nothing.
[[noreturn]] inline void raise_fault(const Fault& fault) {
  block.fault = fault;
  block.failed = true;
  switch_context(block.current->context, block.main);
  __builtin_unreachable();
}

inline void set_ready(Thread& thread) {
  thread.state = State::ready;
  const u32 warp = thread.index / 32;
  block.warp[warp].ready |= 1u << thread.index % 32;
  block.ready_warps |= 1u << warp;
}

inline void take_ready(Thread& thread) {
  const u32 warp = thread.index / 32;
  block.warp[warp].ready &= ~(1u << thread.index % 32);
  if (block.warp[warp].ready == 0) block.ready_warps &= ~(1u << warp);
}

// A warp runs until all its lanes wait, which keeps its stacks in cache; 'shuffled' gives that up to vary the order.
inline Thread* pick_thread() {
  if (block.ready_warps == 0) return nullptr;
  if (schedule.order == Order::shuffled || block.warp[block.current_warp].ready == 0) {
    block.current_warp = pick_warp();
  }
  const u32 lane = pick_bit(block.warp[block.current_warp].ready, schedule.starved % 32);
  Thread& next = block.thread[block.current_warp * 32 + lane];
  take_ready(next);
  return &next;
}

// Nobody can run and somebody waits: names a waiting thread and one that it waits for.
[[noreturn]] inline void raise_deadlock() {
  Fault fault;
  for (u32 w = 0; w < 32; ++w) {
    const Warp& warp = block.warp[w];
    if (warp.groups == 0) continue;
    const Group& group = warp.group[0];
    const u32 missing = group.mask & ~group.arrived;
    fault.kind = "lanes-missing";
    fault.detail = missing;
    fault.at = site_of(block.thread[w * 32 + static_cast<u32>(__builtin_ctz(group.arrived))]);
    fault.other = site_of(block.thread[w * 32 + static_cast<u32>(__builtin_ctz(missing))]);
    raise_fault(fault);
  }
  fault.kind = "deadlock";
  fault.at = site_of(*block.current);
  raise_fault(fault);
}

// Gives the processor to the next thread that may run; returns when this one may run again.
inline void suspend() {
  Thread* self = block.current;
  Thread* next = pick_thread();
  if (next == self) return;
  if (next == nullptr) {
    if (block.exited != block.threads) raise_deadlock();
    switch_context(self->context, block.main);
    return;
  }
  block.current = next;
  threadIdx.x = next->index;
  switch_context(self->context, next->context);
}

// Stops the block here if this is where it is to be held; returns when it goes on.
inline void hold_block(Hold point) {
  if (schedule.hold != point) return;
  schedule.hold = Hold::nowhere;
  block.held = true;
  switch_context(block.current->context, block.main);
}

inline void arrive_at_barrier(u32 line, u64 pc) {
  Thread& self = *block.current;
  self.line = line;
  self.pc = pc;
  Fault fault;
  fault.at = site_of(self);
  if (block.exited > 0) {
    fault.kind = "barrier-exited";
    fault.other = site_of(block.thread[block.last_exited]);
    raise_fault(fault);
  }
  if (block.waiting > 0 && block.barrier_line != line) {
    fault.kind = "barrier-mismatch";
    fault.other = site_of(block.thread[block.first_waiting]);
    raise_fault(fault);
  }
  if (block.waiting == 0) {
    block.barrier_line = line;
    block.first_waiting = self.index;
  }
  self.state = State::barrier;
  if (++block.waiting == block.threads) {
    block.waiting = 0;
    block.epoch = ++schedule.last_epoch;
    for (u32 i = 0; i < block.threads; ++i) set_ready(block.thread[i]);
    // Start over in order, not with the warp that happened to arrive last.
    block.current_warp = pick_warp();
    hold_block(Hold::at_barrier);
  }
  suspend();
}

// A thread that only arrives goes on; what it did before then comes before what the waiting ones do next.
inline void arrive_at_named(u32 line, u32 number, u32 threads, bool waits, u64 pc) {
  Thread& self = *block.current;
  self.line = line;
  self.pc = pc;
  NamedBarrier& barrier = block.named[number % 16];
  if (number == 0 || number > 15 || threads % 32 != 0 || (barrier.arrived > 0 && barrier.threads != threads)) {
    Fault fault;
    fault.kind = "named-barrier";
    fault.at = site_of(self);
    fault.detail = number;
    raise_fault(fault);
  }
  barrier.threads = threads;
  const u32 own = self.index / 32;
  for (u32 w = 0; w < 32; ++w) barrier.seen[w] = std::max(barrier.seen[w], block.warp[own].seen[w]);
  barrier.seen[own] = std::max(barrier.seen[own], ++self.arrivals);
  if (waits) {
    self.state = State::named;
    self.barrier = number;
  }
  if (++barrier.arrived == threads) {
    for (u32 i = 0; i < block.threads; ++i) {
      if (block.thread[i].state != State::named || block.thread[i].barrier != number) continue;
      u32* seen = block.warp[i / 32].seen;
      for (u32 w = 0; w < 32; ++w) seen[w] = std::max(seen[w], barrier.seen[w]);
      set_ready(block.thread[i]);
    }
    barrier = NamedBarrier();
  }
  if (waits) suspend();
}

inline void exit_thread() {
  Thread& self = *block.current;
  const u32 bit = 1u << self.index % 32;
  Warp& warp = block.warp[self.index / 32];
  Fault fault;
  self.line = 0;
  if (block.waiting > 0) {
    fault.kind = "barrier-exited";
    fault.at = site_of(block.thread[block.first_waiting]);
    fault.other = site_of(self);
    raise_fault(fault);
  }
  for (u32 i = 0; i < warp.groups; ++i) {
    if ((warp.group[i].mask & bit) == 0) continue;
    fault.kind = "lanes-exited";
    fault.detail = bit;
    fault.at = site_of(block.thread[self.index / 32 * 32 + static_cast<u32>(__builtin_ctz(warp.group[i].arrived))]);
    fault.other = site_of(self);
    raise_fault(fault);
  }
  self.state = State::exited;
  warp.exited |= bit;
  ++block.exited;
  block.last_exited = self.index;
  suspend();
  __builtin_unreachable();
}

}  // namespace kvf

extern "C" __attribute__((noinline)) void kvf_barrier(u32 line) {
  kvf::arrive_at_barrier(line, reinterpret_cast<u64>(__builtin_return_address(0)));
}

extern "C" __attribute__((noinline)) void kvf_named_barrier(u32 line, u32 number, u32 threads, u32 waits) {
  kvf::arrive_at_named(line, number, threads, waits != 0, reinterpret_cast<u64>(__builtin_return_address(0)));
}
