// A device in use: its context, its stream and what was loaded. All but `allocate` runs on the device's worker.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver.h"

struct Kernel {
  CUmodule module;
  CUfunction function;
  unsigned threads;
  unsigned dynamicBytes;
};

// Events around launches.
struct Span {
  CUevent start = nullptr;
  CUevent end = nullptr;
};

using Clock = std::chrono::steady_clock;

// A number of milliseconds from now on.
struct Deadline {
  explicit Deadline(int ms) : ms(ms), at(Clock::now() + std::chrono::milliseconds(ms)) {}
  int ms;
  Clock::time_point at;
};

// Launches as TypeScript packs them, one after another: kernel, blocks in x, y, z, number of pointers, the pointers.
// Doubles hold all of these exactly: an address has 57 bits at most, and those of bindings are multiples of 256.
using LaunchList = std::vector<double>;

struct Session {
  const Driver& cu = Driver::get();
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  // The context is beyond use: the driver is not called again, as it could wait for ever.
  std::atomic<bool> lost{false};
  // Nobody waits for results any more.
  std::atomic<bool> abandoned{false};
  std::vector<Kernel> kernels;
  std::map<int, CUgraphExec> graphs;
  int nextGraph = 1;
  // Page-locked memory that transfers pass through; allocated with the first large one.
  void* staging[2] = {nullptr, nullptr};

  std::optional<Failure> check(const char* call, CUresult result);

  std::optional<Failure> open(int ordinal);
  void close();

  // Waits for the stream or an event. Past the deadline the context counts as lost.
  std::optional<Failure> wait(const Deadline& deadline, CUevent event = nullptr);

  // module.cc
  std::optional<Failure> load(const std::string& image, const std::string& entry, unsigned threads,
                              unsigned dynamicBytes, size_t& kernel, std::string& log);
  // launch.cc
  std::optional<Failure> submit(const LaunchList& launches);
  // Submits from a position in the list, which moves on: at most so many.
  std::optional<Failure> submit(const LaunchList& launches, size_t& at, int& index, int most);
  std::optional<Failure> run(const LaunchList& launches, int limitMs);
  // graph.cc
  std::optional<Failure> capture(const LaunchList& launches, unsigned rounds, CUgraphExec& graph, const Span* timed);
  std::optional<Failure> record(const LaunchList& launches, int& id);
  std::optional<Failure> replay(int id, int limitMs);
  std::optional<Failure> dropGraph(int id);
  std::optional<Failure> time(const LaunchList& launches, unsigned rounds, unsigned samples, int limitMs,
                              std::vector<double>& milliseconds);
  // transfer.cc
  std::optional<Failure> toDevice(CUdeviceptr target, const char* source, size_t bytes);
  std::optional<Failure> toHost(char* target, CUdeviceptr source, size_t bytes);
};

// The same for a call of the session's driver, which also notes a lost context.
#define TRY_SESSION(name, ...) \
  if (auto failed_ = check(#name, cu.name(__VA_ARGS__))) return failed_
