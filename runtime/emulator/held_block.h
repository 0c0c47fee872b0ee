// A block put aside where the order 'starved' holds it, while other blocks run in its place.
#pragma once
#include "checks.h"

namespace kvf {

struct HeldBlock {
  Block state;
  std::vector<u8> shared, shared_known;
  std::vector<ThreadCell> shared_cells;
  u32 fences = 0;
};

static HeldBlock held_block;

// Threads keep their places in the array, to which the suspended fibers refer.
inline void put_aside() {
  const Module& module = *launch.module;
  std::swap(block, held_block.state);
  held_block.shared.assign(module.shared, module.shared + module.shared_bytes);
  std::swap(launch.shared_known, held_block.shared_known);
  std::swap(launch.shared_cells, held_block.shared_cells);
  launch.shared_known.resize(held_block.shared_known.size());
  launch.shared_cells.resize(held_block.shared_cells.size());
  held_block.fences = launch.fences;
}

inline void resume_block() {
  std::swap(block, held_block.state);
  memcpy(launch.module->shared, held_block.shared.data(), held_block.shared.size());
  std::swap(launch.shared_known, held_block.shared_known);
  std::swap(launch.shared_cells, held_block.shared_cells);
  launch.fences = held_block.fences;
  // It was the first to run: at its own atomic nobody else had published anything yet.
  launch.acquired = false;
  block.held = false;
  threadIdx = uint3{block.current->index, 0, 0};
  switch_context(block.main, block.current->context);
}

}  // namespace kvf
