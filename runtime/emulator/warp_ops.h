// Collectives of a warp. Each lane leaves its operands; the last lane of the mask to arrive computes for all.
#pragma once
#include "checks.h"
#include "matrix.h"

namespace kvf {

enum Operation : u32 {
  op_sync,
  op_shuffle,
  op_ballot,
  op_mma_f16,
  op_mma_bytes,
  op_mma_bytes_signed,
  op_load_matrix,
  op_load_transposed,
  op_transpose,
  op_products
};

// Registers the calling thread at a collective. Gives the group when it is complete, otherwise nothing.
inline Group* arrive(Operation operation, u32 line, u32 mask, u64 pc) {
  Thread& self = *block.current;
  Warp& warp = block.warp[self.index / 32];
  const u32 bit = 1u << self.index % 32;
  self.line = line;
  self.pc = pc;
  Fault fault;
  fault.at = site_of(self);
  if ((mask & bit) == 0) {
    fault.kind = "not-in-mask";
    fault.detail = mask;
    raise_fault(fault);
  }
  // Lanes past the end of the block do not exist, and are not waited for.
  mask &= warp.existing;
  if ((mask & warp.exited) != 0) {
    fault.kind = "lanes-exited";
    fault.detail = mask & warp.exited;
    fault.other = site_of(block.thread[self.index / 32 * 32 + static_cast<u32>(__builtin_ctz(mask & warp.exited))]);
    raise_fault(fault);
  }
  // Groups whose masks overlap may wait side by side: some lanes may be further on than others. Lanes that never meet
  // show as a deadlock.
  Group* group = nullptr;
  for (u32 i = 0; i < warp.groups; ++i) {
    Group& candidate = warp.group[i];
    if (candidate.mask == mask && candidate.operation == operation && candidate.line == line) group = &candidate;
  }
  if (group == nullptr) {
    group = &warp.group[warp.groups++];
    *group = Group{mask, 0, operation, line};
  }
  group->arrived |= bit;
  self.state = State::warp;
  return group->arrived == mask ? group : nullptr;
}

inline void release(Group* group) {
  const u32 first = block.current->index / 32 * 32;
  Warp& warp = block.warp[first / 32];
  for (u32 lanes = group->mask; lanes != 0; lanes &= lanes - 1) {
    set_ready(block.thread[first + static_cast<u32>(__builtin_ctz(lanes))]);
  }
  *group = warp.group[--warp.groups];
}

inline Thread* lanes_of_warp() { return &block.thread[block.current->index / 32 * 32]; }

inline void compute_shuffle(const Group& group, u32 mode) {
  Thread* lanes = lanes_of_warp();
  for (u32 left = group.mask; left != 0; left &= left - 1) {
    const u32 lane = static_cast<u32>(__builtin_ctz(left));
    const u32 argument = lanes[lane].operand[2];
    const u32 width = lanes[lane].operand[3];
    const u32 start = lane & ~(width - 1);
    u32 source = lane;
    // Past the segment a lane keeps its own value, as the hardware does; xor may reach an earlier segment only.
    if (mode == kvf_shuffle_index) source = start + (argument & (width - 1));
    if (mode == kvf_shuffle_xor && (lane ^ argument) < start + width) source = lane ^ argument;
    if (mode == kvf_shuffle_down && lane + argument < start + width) source = lane + argument;
    if (mode == kvf_shuffle_up && lane >= start + argument) source = lane - argument;
    // The value of a lane outside the mask is undefined: the poison says so.
    const bool there = source < 32 && (group.mask >> source & 1u) != 0;
    lanes[lane].result[0] = there ? lanes[source].operand[0] : 0xffffffffu;
    lanes[lane].result[1] = there ? lanes[source].operand[1] : 0xffffffffu;
  }
}

inline void fail_partial(u32 line, u64 pc) {
  Fault fault;
  block.current->line = line;
  block.current->pc = pc;
  fault.kind = "partial-warp";
  fault.at = site_of(*block.current);
  raise_fault(fault);
}

// The rows are read on behalf of the lanes that name them, so each is checked as an access of that lane.
inline void check_rows() {
  Thread* lanes = lanes_of_warp();
  Thread* self = block.current;
  for (u32 lane = 0; lane < 32; ++lane) {
    const u64 row = reinterpret_cast<u64>(lanes[lane].row);
    block.current = &lanes[lane];
    if (row % 16 != 0 || row - reinterpret_cast<u64>(launch.module->shared) >= launch.module->shared_bytes) {
      block.current = self;
      Fault fault;
      fault.kind = row % 16 != 0 ? "misaligned" : "not-shared";
      fault.at = site_of(lanes[lane]);
      fault.detail = 16;
      raise_fault(fault);
    }
    if (launch.checked) check_access(row, 16, lanes[lane].pc, Access::read);
  }
  block.current = self;
}

// The cores of b are read by the warp as a whole: each is checked as an access of the first lane. The matrix unit sees
// what ordinary stores wrote only after the writer has published it.
inline void check_tiles(u64 descriptor, u32 columns) {
  const Module& module = *launch.module;
  const u64 first = (descriptor & 0x3fffu) << 4;
  const u64 strides[2] = {(descriptor >> 16 & 0x3fffu) << 4, (descriptor >> 32 & 0x3fffu) << 4};
  Thread* self = block.current;
  block.current = lanes_of_warp();
  for (u32 row = 0; row < columns * 2; ++row) {
    const u64 offset = module.dynamic_begin + first + row % 2 * strides[0] + row / 16 * strides[1] + row / 2 % 8 * 16;
    check_access(reinterpret_cast<u64>(module.shared) + offset, 16, block.current->pc, Access::read);
    const ThreadAccess& write = launch.shared_cells[offset >> 2].write;
    if (write.epoch < block.first_epoch || write.published != block.thread[write.thread].published) continue;
    Fault fault;
    fault.kind = "unpublished";
    fault.at = site_of(*block.current);
    fault.other = here(module.begin + write.pc, true);
    fault.other.thread = write.thread;
    raise_fault(fault);
  }
  block.current = self;
}

// The place of the accumulators that stand for an array of the kernel; the last one is taken again when all are.
inline u32 products_of(Thread& thread, const void* target) {
  for (u32 i = 0; i < max_products; ++i) {
    Products& products = thread.products[i];
    if (products.target != nullptr && products.target != target && i + 1 < max_products) continue;
    products.target = target;
    return i;
  }
  return max_products - 1;
}

inline KvfQuad warp_matrix(Operation operation, u32 line, u64 pc) {
  Thread& self = *block.current;
  if (block.warp[self.index / 32].existing != 0xffffffffu) fail_partial(line, pc);
  Group* group = arrive(operation, line, 0xffffffffu, pc);
  if (group != nullptr) {
    Thread* lanes = lanes_of_warp();
    if (operation == op_mma_f16) multiply_f16(lanes);
    if (operation == op_mma_bytes || operation == op_mma_bytes_signed) {
      multiply_bytes(lanes, operation == op_mma_bytes_signed);
    }
    if (operation == op_load_matrix || operation == op_load_transposed) {
      check_rows();
      load_matrices(lanes, operation == op_load_transposed);
    }
    if (operation == op_transpose) transpose_matrix(lanes);
    if (operation == op_products) {
      const u32* operand = self.operand;
      const u64 descriptor = static_cast<u64>(operand[5]) << 32 | operand[4];
      if (launch.checked) {
        check_tiles(descriptor, operand[6]);
        lanes->tiles.push_back(TilesInUse{descriptor, operand[6]});
      }
      const u8* shared = static_cast<const u8*>(launch.module->shared) + launch.module->dynamic_begin;
      const auto multiply = operand[9] != 0 ? multiply_tiles<i32> : multiply_tiles<float>;
      multiply(lanes, shared, descriptor, operand[6], operand[7] != 0);
    }
    release(group);
  }
  suspend();
  return KvfQuad{{self.result[0], self.result[1], self.result[2], self.result[3]}};
}

}  // namespace kvf


extern "C" {

__attribute__((noinline)) void kvf_sync_warp(u32 line, u32 mask) {
  kvf::Group* group = kvf::arrive(kvf::op_sync, line, mask, KVF_PC);
  if (group != nullptr) {
    // Counted for the whole warp even where the mask is smaller, which may hide a race but makes none up.
    ++kvf::block.warp[kvf::block.current->index / 32].epoch;
    kvf::release(group);
  }
  kvf::suspend();
}

__attribute__((noinline)) u64 kvf_shuffle(u32 line, u32 mask, u64 value, u32 argument, u32 width, u32 mode) {
  kvf::Thread& self = *kvf::block.current;
  self.operand[0] = static_cast<u32>(value);
  self.operand[1] = static_cast<u32>(value >> 32);
  self.operand[2] = argument;
  self.operand[3] = width;
  kvf::Group* group = kvf::arrive(kvf::op_shuffle, line, mask, KVF_PC);
  if (group != nullptr) {
    kvf::compute_shuffle(*group, mode);
    kvf::release(group);
  }
  kvf::suspend();
  return static_cast<u64>(self.result[1]) << 32 | self.result[0];
}

__attribute__((noinline)) u32 kvf_ballot(u32 line, u32 mask, u32 predicate) {
  kvf::Thread& self = *kvf::block.current;
  self.operand[0] = predicate;
  kvf::Group* group = kvf::arrive(kvf::op_ballot, line, mask, KVF_PC);
  if (group != nullptr) {
    kvf::Thread* lanes = kvf::lanes_of_warp();
    u32 votes = 0;
    for (u32 left = group->mask; left != 0; left &= left - 1) {
      const u32 lane = static_cast<u32>(__builtin_ctz(left));
      votes |= lanes[lane].operand[0] << lane;
    }
    for (u32 left = group->mask; left != 0; left &= left - 1) lanes[__builtin_ctz(left)].result[0] = votes;
    kvf::release(group);
  }
  kvf::suspend();
  return self.result[0];
}

__attribute__((noinline)) KvfFloatQuad kvf_mma_f16(float d0, float d1, float d2, float d3, u32 a0, u32 a1, u32 a2,
                                                   u32 a3, u32 b0, u32 b1, u32 line) {
  const float d[4] = {d0, d1, d2, d3};
  const u32 rest[6] = {a0, a1, a2, a3, b0, b1};
  u32* operand = kvf::block.current->operand;
  memcpy(operand, d, sizeof d);
  memcpy(operand + 4, rest, sizeof rest);
  const KvfQuad bits = kvf::warp_matrix(kvf::op_mma_f16, line, KVF_PC);
  KvfFloatQuad sum;
  memcpy(&sum, &bits, sizeof sum);
  return sum;
}

__attribute__((noinline)) KvfQuad kvf_mma_bytes(const i32* d, const u32* a, const u32* b, u32 b_signed, u32 line) {
  u32* operand = kvf::block.current->operand;
  memcpy(operand, d, 16);
  memcpy(operand + 4, a, 16);
  memcpy(operand + 8, b, 8);
  return kvf::warp_matrix(b_signed != 0 ? kvf::op_mma_bytes_signed : kvf::op_mma_bytes, line, KVF_PC);
}

__attribute__((noinline)) KvfQuad kvf_load_matrix(u32 line, bool transposed, const void* row) {
  kvf::block.current->row = static_cast<const u8*>(row);
  return kvf::warp_matrix(transposed ? kvf::op_load_transposed : kvf::op_load_matrix, line, KVF_PC);
}

__attribute__((noinline)) u32 kvf_transpose(u32 line, u32 pair) {
  kvf::block.current->operand[0] = pair;
  return kvf::warp_matrix(kvf::op_transpose, line, KVF_PC).word[0];
}

void kvf_publish_shared() { ++kvf::block.current->published; }

__attribute__((noinline)) void kvf_issue_products(u32 line, const void* target, u32 a0, u32 a1, u32 a2, u32 a3,
                                                  u64 descriptor, u32 columns, u32 accumulate, u32 integers) {
  kvf::Thread& self = *kvf::block.current;
  const u32 place = kvf::products_of(self, target);
  const u32 operands[10] = {a0, a1, a2, a3, static_cast<u32>(descriptor), static_cast<u32>(descriptor >> 32), columns,
                            accumulate, place, integers};
  memcpy(self.operand, operands, sizeof operands);
  kvf::warp_matrix(kvf::op_products, line, KVF_PC);
}

// The matrix unit may read b up to here: as the source of a copy it is checked once more.
__attribute__((noinline)) KvfQuad kvf_take_products(const void* target, u32 first) {
  kvf::Thread& self = *kvf::block.current;
  self.pc = KVF_PC;
  for (const kvf::TilesInUse& tiles : self.tiles) kvf::check_tiles(tiles.descriptor, tiles.columns);
  self.tiles.clear();
  KvfQuad four;
  memcpy(&four, self.products[kvf::products_of(self, target)].sums + first, sizeof four);
  return four;
}
}
