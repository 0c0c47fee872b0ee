#include "session.h"

#include <thread>

#include "exit_guard.h"

namespace {

// Results after which every later call on the context fails too (CUDA Driver API, "Data types used by CUDA driver").
bool isSticky(CUresult result) {
  switch (result) {
    case 4:    // deinitialized
    case 46:   // device unavailable
    case 201:  // invalid context
    case 214:  // uncorrectable ECC error
    case 220:  // uncorrectable NVLink error
    case 226:  // contained exception
    case 700:  // illegal address
    case 702:  // launch timeout
    case 709:  // context is destroyed
    case 710:  // assert
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // launch failed
    case 721:  // tensor memory leak
    case 999:  // unknown
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<Failure> Session::check(const char* call, CUresult result) {
  if (isSticky(result)) lost = true;
  return cu.check(call, result);
}

std::optional<Failure> Session::open(int ordinal) {
  TRY_SESSION(deviceGet, &device, ordinal);
  TRY_SESSION(devicePrimaryCtxRetain, &context, device);
  guardExit();
  auto failed = check("ctxSetCurrent", cu.ctxSetCurrent(context));
  if (!failed) failed = check("streamCreate", cu.streamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if (failed) {
    if (!lost) cu.devicePrimaryCtxRelease(device);
    context = nullptr;
  }
  return failed;
}

void Session::close() {
  if (lost || context == nullptr) return;
  for (auto& [id, graph] : graphs) cu.graphExecDestroy(graph);
  for (Kernel& kernel : kernels) cu.moduleUnload(kernel.module);
  for (void*& memory : staging) {
    if (memory != nullptr) cu.memFreeHost(memory);
    memory = nullptr;
  }
  graphs.clear();
  kernels.clear();
  // Nobody could do anything about a failure of these.
  cu.streamDestroy(stream);
  cu.devicePrimaryCtxRelease(device);
  context = nullptr;
}

std::optional<Failure> Session::wait(const Deadline& deadline, CUevent event) {
  const Clock::time_point started = Clock::now();
  for (;;) {
    const CUresult result = event == nullptr ? cu.streamQuery(stream) : cu.eventQuery(event);
    if (result != CUDA_ERROR_NOT_READY) return check(event == nullptr ? "streamQuery" : "eventQuery", result);
    const Clock::time_point now = Clock::now();
    if (now >= deadline.at || abandoned) {
      lost = true;
      // Never destroyed: the device stays busy, whoever waits for it.
      new Busy();
      return Failure{"timeout", deadline.ms, "", "the launch did not end in time"};
    }
    // A short run is over before a sleeping thread would be woken.
    if (now - started > std::chrono::milliseconds(2)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    } else {
      std::this_thread::yield();
    }
  }
}
