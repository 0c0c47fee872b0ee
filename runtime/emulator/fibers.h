// A fiber: a stack, and a switch that saves what the calling convention says a callee keeps. Written out because
// swapcontext() enters the kernel twice per switch to save the signal mask, which would be most of an emulated barrier.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "types.h"

#if defined(__x86_64__)
asm(R"(
.text
.globl kvf_switch
.type kvf_switch,@function
kvf_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kvf_switch, .-kvf_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl kvf_switch
.type kvf_switch,%function
kvf_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size kvf_switch, .-kvf_switch
)");
#else
#include <ucontext.h>
#endif

namespace kvf {

const u64 stack_bytes = 128 * 1024;
const u64 guard_bytes = 64 * 1024;  // the largest page size of Linux on arm64
// Stacks start a little apart within their range: at one stride, their tops would share a few sets of the caches.
const u64 stack_colours = 128;
const u64 colour_bytes = 128;

#if defined(__x86_64__) || defined(__aarch64__)

extern "C" void kvf_switch(void** save, void* load);

struct Context {
  void* stack_pointer;
};

inline void switch_context(Context& from, const Context& to) { kvf_switch(&from.stack_pointer, to.stack_pointer); }

// Lays out a stack as if `entry` had been suspended before its first instruction.
inline void prepare_context(Context& context, u8* low, u32 index, void (*entry)()) {
  void** top = reinterpret_cast<void**>(low + stack_bytes - index % stack_colours * colour_bytes);
#if defined(__x86_64__)
  // `ret` pops `entry`; the pointer after it must be 8 past a multiple of 16, as after a call.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[11] = reinterpret_cast<void*>(entry);  // x30
#endif
  context.stack_pointer = top;
}

#else

struct Context {
  ucontext_t state;
};

inline void switch_context(Context& from, const Context& to) { swapcontext(&from.state, &to.state); }

inline void prepare_context(Context& context, u8* low, u32, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = low;
  context.state.uc_stack.ss_size = stack_bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

#endif

// One stack per thread of the largest block, mapped once; below each lies a guard that no access may touch.
inline u8* map_stacks(u32 count) {
  const u64 stride = stack_bytes + guard_bytes;
  void* base = mmap(nullptr, stride * count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  for (u32 i = 0; i < count; ++i) {
    if (mprotect(static_cast<u8*>(base) + stride * i + guard_bytes, stack_bytes, PROT_READ | PROT_WRITE) != 0) {
      return nullptr;
    }
  }
  return static_cast<u8*>(base);
}

inline u8* stack_low(u8* stacks, u32 index) { return stacks + (stack_bytes + guard_bytes) * index + guard_bytes; }

}  // namespace kvf
