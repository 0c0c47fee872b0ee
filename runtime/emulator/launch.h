// Runs a grid: block after block, each as fibers, until all have exited or one faults.
#pragma once
#include "held_block.h"

namespace kvf {

struct Request {
  Module* module = nullptr;
  u32 grid[3] = {0, 0, 0};
  u32 threads = 0;
  u32 dynamic_bytes = 0;
  Order block_order = Order::ascending;
  Order thread_order = Order::ascending;
  // The text has atomics, at which the order 'starved' can hold a block.
  bool atomics = false;
  u64 seed = 0;
  bool checked = false;
};

static u8* stacks;

inline void fiber_main() {
  const Binding* b = memory.bindings + 1;
  const auto p = [b](u32 i) { return i < memory.bound ? reinterpret_cast<void*>(b[i].begin) : nullptr; };
  // A function may be called with more arguments than it takes, in the conventions of both processors.
  launch.module->entry(p(0), p(1), p(2), p(3), p(4), p(5), p(6), p(7), p(8), p(9), p(10), p(11), p(12), p(13), p(14),
                       p(15), p(16), p(17), p(18), p(19), p(20), p(21), p(22), p(23), p(24), p(25), p(26), p(27),
                       p(28), p(29), p(30), p(31));
  exit_thread();
}

inline void poison_shared() {
  const Module& module = *launch.module;
  const u64 dynamic_end = module.dynamic_begin + dynamic_capacity;
  memset(module.shared, poison, module.dynamic_begin);
  memset(module.shared + dynamic_end, poison, module.shared_bytes - dynamic_end);
  memset(module.shared + module.dynamic_begin, poison, launch.dynamic_bytes);
  if (!launch.checked) return;
  u8* known = launch.shared_known.data();
  memset(known, 0, module.dynamic_begin / 8);
  memset(known + dynamic_end / 8, 0, (module.shared_bytes - dynamic_end) / 8 + 1);
  memset(known + module.dynamic_begin / 8, 0, launch.dynamic_bytes / 8 + 1);
}

inline void set_block_index(const Request& request, u64 linear) {
  blockIdx.x = static_cast<u32>(linear % request.grid[0]);
  blockIdx.y = static_cast<u32>(linear / request.grid[0] % request.grid[1]);
  blockIdx.z = static_cast<u32>(linear / request.grid[0] / request.grid[1]);
}

// Runs a block to its end, to its fault, or to where it is held. A block that may be held has stacks of its own.
inline void run_block(const Request& request, u64 linear, u32 first_stack = 0) {
  set_block_index(request, linear);
  block.linear = linear;
  block.threads = request.threads;
  block.waiting = 0;
  block.exited = 0;
  block.ready_warps = 0;
  block.current_warp = 0;
  block.random = (request.seed * 0x9e3779b97f4a7c15ull ^ linear * 0xbf58476d1ce4e5b9ull) | 1;
  block.epoch = ++schedule.last_epoch;
  block.first_epoch = block.epoch;
  for (NamedBarrier& barrier : block.named) barrier = NamedBarrier();
  block.failed = false;
  block.held = false;
  launch.fences = 0;
  launch.acquired = false;
  poison_shared();
  for (u32 w = 0; w * 32 < request.threads; ++w) {
    const u32 lanes = request.threads - w * 32;
    Warp& warp = block.warp[w];
    warp.existing = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1u;
    warp.exited = 0;
    warp.groups = 0;
    warp.epoch = 0;
    std::fill(std::begin(warp.seen), std::end(warp.seen), 0u);
    warp.ready = 0;
  }
  for (u32 i = 0; i < request.threads; ++i) {
    Thread& thread = block.thread[i];
    thread.index = i;
    thread.stack = stack_low(stacks, first_stack + i);
    thread.copies.clear();
    thread.copy_group = 0;
    thread.published = 0;
    for (Products& products : thread.products) products.target = nullptr;
    thread.tiles.clear();
    thread.arrivals = 0;
    thread.line = 0;
    prepare_context(thread.context, thread.stack, i, fiber_main);
    set_ready(thread);
  }
  block.current_warp = pick_warp();
  block.current = pick_thread();
  threadIdx = uint3{block.current->index, 0, 0};
  switch_context(block.main, block.current->context);
}

inline void open_launch(const Request& request) {
  const u64 blocks = static_cast<u64>(request.grid[0]) * request.grid[1] * request.grid[2];
  launch.checked = request.checked;
  launch.module = request.module;
  launch.dynamic_bytes = request.dynamic_bytes;
  schedule.order = request.thread_order;
  schedule.starved = static_cast<u32>(request.seed % request.threads);
  schedule.hold = Hold::nowhere;
  blockDim = uint3{request.threads, 1, 1};
  gridDim = uint3{request.grid[0], request.grid[1], request.grid[2]};
  if (!request.checked) return;
  // Numbers of earlier launches must stay below first_block; when they would wrap, every record is forgotten.
  launch.first_block += launch.blocks;
  if (launch.first_block + blocks > 0xffffffffull) {
    launch.first_block = 1;
    for (auto& [id, buffer] : memory.buffers) {
      free(buffer.cells);
      buffer.cells = nullptr;
    }
  }
  launch.blocks = static_cast<u32>(blocks);
  launch.published.assign(blocks, 0);
  if (launch.shared_known.size() < request.module->shared_bytes / 8 + 16) {
    launch.shared_known.resize(request.module->shared_bytes / 8 + 16);
    launch.shared_cells.resize(request.module->shared_bytes / 4 + 16);
  }
}

inline std::vector<u32> shuffled_blocks(u64 blocks, u64 seed) {
  std::vector<u32> shuffled(blocks);
  for (u32 i = 0; i < blocks; ++i) shuffled[i] = i;
  block.random = seed * 0x9e3779b97f4a7c15ull | 1;
  for (u64 i = blocks; i > 1; --i) std::swap(shuffled[i - 1], shuffled[next_random() % i]);
  return shuffled;
}

// One block starts first and stands still until all others have ended: at its first atomic on a binding, before it or
// after it, or where the text has none at its first barrier.
inline bool run_starved(const Request& request, u64 blocks) {
  const u64 starved = (request.seed >> 1) % blocks;
  const Hold at_atomic = request.seed % 2 == 1 ? Hold::before_atomic : Hold::after_atomic;
  schedule.hold = request.atomics ? at_atomic : Hold::at_barrier;
  run_block(request, starved, max_threads);
  schedule.hold = Hold::nowhere;
  if (block.failed) return false;
  const bool held = block.held;
  if (held) put_aside();
  for (u64 i = 0; i < blocks; ++i) {
    if (i == starved) continue;
    run_block(request, i);
    if (block.failed) return false;
  }
  if (!held) return true;
  set_block_index(request, starved);
  resume_block();
  return !block.failed;
}

// False on a fault, which is then in block.fault.
inline bool run_grid(const Request& request) {
  const u64 blocks = static_cast<u64>(request.grid[0]) * request.grid[1] * request.grid[2];
  const Order order = request.block_order;
  if (order == Order::starved && blocks > 1) return run_starved(request, blocks);
  std::vector<u32> shuffled;
  if (order == Order::shuffled) shuffled = shuffled_blocks(blocks, request.seed);
  for (u64 i = 0; i < blocks; ++i) {
    run_block(request, order == Order::shuffled ? shuffled[i] : order == Order::descending ? blocks - 1 - i : i);
    if (block.failed) return false;
  }
  return true;
}

}  // namespace kvf
