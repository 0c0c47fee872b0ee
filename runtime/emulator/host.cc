// The host program of the emulator: obeys a binary protocol on stdin and stdout, and runs kernels in between.
// A message is {u32 operation, u32 unused, u64 length, payload}; a reply {u32 status, u32 unused, u64 length, payload}.
#include <signal.h>
#include <sys/prctl.h>

#include "async_copy.h"
#include "launch.h"
#include "tsan.h"
#include "warp_ops.h"

namespace kvf {

enum Message : u32 { m_allocate = 1, m_write, m_read, m_release, m_load, m_run, m_quit, m_hello };
enum Status : u32 { s_done = 0, s_error, s_fault, s_crash };

static std::unordered_map<u32, Module> modules;
static u32 launch_number;
static bool running;

static bool receive(void* data, u64 bytes) {
  u8* at = static_cast<u8*>(data);
  while (bytes > 0) {
    const ssize_t got = read(0, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<u64>(got);
  }
  return true;
}

static void send(const void* data, u64 bytes) {
  const u8* at = static_cast<const u8*>(data);
  while (bytes > 0) {
    const ssize_t put = write(1, at, bytes);
    if (put <= 0) _exit(1);
    at += put;
    bytes -= static_cast<u64>(put);
  }
}

static void reply(u32 status, const void* data = nullptr, u64 bytes = 0) {
  const struct {
    u32 status, unused;
    u64 length;
  } header = {status, 0, bytes};
  send(&header, sizeof header);
  send(data, bytes);
}

static void reply_text(u32 status, const std::string& text) { reply(status, text.data(), text.size()); }

// Takes fixed-size fields off a payload.
struct Reader {
  const u8* at;
  template <typename T>
  T take() {
    T value;
    memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  }
};

// The process cannot go on, but can say which thread of which kernel it was in. Runs on a stack of its own.
static void on_crash(int signal, siginfo_t* info, void* context) {
  if (running) {
    u64 pc = 0;
#if defined(__x86_64__)
    pc = static_cast<u64>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    pc = static_cast<ucontext_t*>(context)->uc_mcontext.pc;
#endif
    Fault fault;
    fault.kind = "crash";
    fault.detail = static_cast<u64>(signal);
    fault.address = reinterpret_cast<u64>(info->si_addr);
    // A faulting instruction is at pc itself; a return address is one past a call.
    fault.at = here(pc + 1, false);
    const u64 low = reinterpret_cast<u64>(block.current->stack);
    fault.text = low - fault.address <= guard_bytes ? "stack" : "";
    reply_text(s_crash, fault_json(fault, launch_number, launch.module->begin));
  }
  ::signal(signal, SIG_DFL);
  raise(signal);
}

static void catch_crashes() {
  static u8 stack[128 * 1024];
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, nullptr);
}

// Payload: u32 launches, then for each: u32 module, orders, checked, threads, dynamic, grid[3], bindings; u64 seed;
// then for each binding u32 buffer, writable; u64 offset, bytes. Orders are a byte each: of blocks, of threads, and
// whether the text has atomics.
static void run(Reader reader) {
  const u32 launches = reader.take<u32>();
  for (launch_number = 0; launch_number < launches; ++launch_number) {
    Request request;
    request.module = &modules[reader.take<u32>()];
    const u32 orders = reader.take<u32>();
    request.block_order = static_cast<Order>(orders & 0xffu);
    request.thread_order = static_cast<Order>(orders >> 8 & 0xffu);
    request.atomics = orders >> 16 != 0;
    request.checked = reader.take<u32>() != 0;
    request.threads = reader.take<u32>();
    request.dynamic_bytes = reader.take<u32>();
    for (u32& blocks : request.grid) blocks = reader.take<u32>();
    const u32 bindings = reader.take<u32>();
    request.seed = reader.take<u64>();
    open_launch(request);
    for (u32 i = 0; i < bindings; ++i) {
      const auto found = memory.buffers.find(reader.take<u32>());
      if (found == memory.buffers.end()) {
        unbind_all(request.checked);
        return reply_text(s_error, "a launch binds a buffer that could not be allocated");
      }
      const bool writable = reader.take<u32>() != 0;
      const u64 offset = reader.take<u64>();
      bind_range(found->second, offset, reader.take<u64>(), writable, request.checked);
    }
    running = true;
    const bool good = run_grid(request);
    running = false;
    if (!good) {
      reply_text(s_fault, fault_json(block.fault, launch_number, request.module->begin));
      unbind_all(request.checked);
      return;
    }
    // Without checks nobody notes which bytes a kernel writes: all that it could write count as written.
    for (u32 i = 1; !request.checked && i <= memory.bound; ++i) {
      const Binding& binding = memory.bindings[i];
      if (binding.writable) mark_known(binding.known, binding.begin - binding.data, binding.end - binding.begin);
    }
    unbind_all(request.checked);
  }
  reply(s_done);
}

static void obey(u32 message, Reader reader, u64 length) {
  if (message == m_run) return run(reader);
  if (message == m_hello) return reply(s_done);
  const u32 id = reader.take<u32>();
  const u32 second = reader.take<u32>();
  if (message == m_load) {
    // `second` is the length of the entry's name; the path follows it.
    const std::string entry(reinterpret_cast<const char*>(reader.at), second);
    const std::string path(reinterpret_cast<const char*>(reader.at) + second, length - 8 - second);
    const std::string error = load_module(path.c_str(), entry.c_str(), modules[id]);
    return reply_text(error.empty() ? s_done : s_error, error);
  }
  if (message == m_release) {
    release_buffer(id);
    return reply(s_done);
  }
  const u64 offset = reader.take<u64>();
  if (message == m_allocate) {
    const char* error = allocate_buffer(id, offset);
    return error == nullptr ? reply(s_done) : reply_text(s_error, error);
  }
  const auto found = memory.buffers.find(id);
  if (found == memory.buffers.end()) return reply_text(s_error, "no such buffer");
  if (message == m_read) return reply(s_done, found->second.data + offset, reader.take<u64>());
  if (message == m_write) {
    memcpy(found->second.data + offset, reader.at, length - 16);
    mark_known(found->second.known, offset, length - 16);
    return reply(s_done);
  }
  reply_text(s_error, "unknown message");
}

}  // namespace kvf

int main() {
  // Where the parent is killed, stdin closes only once the running kernel is done: do not wait for that.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  kvf::catch_crashes();
  // A second block may stand still while one runs.
  kvf::stacks = kvf::map_stacks(2 * kvf::max_threads);
  if (kvf::stacks == nullptr || !kvf::open_memory()) return 3;
  struct {
    u32 message, unused;
    u64 length;
  } header;
  std::vector<u8> payload;
  while (kvf::receive(&header, sizeof header) && header.message != kvf::m_quit) {
    payload.resize(header.length);
    if (!kvf::receive(payload.data(), header.length)) break;
    kvf::obey(header.message, kvf::Reader{payload.data()}, header.length);
  }
  return 0;
}
