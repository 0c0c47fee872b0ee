// Launching of kernels.
#include <limits>

#include "session.h"

namespace {
// The driver takes about a thousand launches ahead of the device; the next one waits within cuLaunchKernel, where no
// deadline would reach it. Two pieces of this size keep the device busy.
constexpr int pieceLaunches = 256;
}  // namespace

std::optional<Failure> Session::submit(const LaunchList& launches) {
  size_t at = 0;
  int index = 0;
  return submit(launches, at, index, std::numeric_limits<int>::max());
}

std::optional<Failure> Session::submit(const LaunchList& launches, size_t& at, int& index, int most) {
  for (int submitted = 0; submitted < most && at + 5 <= launches.size(); submitted++, index++) {
    const Kernel& kernel = kernels[static_cast<size_t>(launches[at])];
    const auto blocks = [&](size_t axis) { return static_cast<unsigned>(launches[at + 1 + axis]); };
    const size_t count = static_cast<size_t>(launches[at + 4]);
    std::vector<CUdeviceptr> pointers(count);
    std::vector<void*> parameters(count);
    for (size_t i = 0; i < count; i++) {
      pointers[i] = static_cast<CUdeviceptr>(launches[at + 5 + i]);
      parameters[i] = &pointers[i];
    }
    auto failed =
        check("launchKernel", cu.launchKernel(kernel.function, blocks(0), blocks(1), blocks(2), kernel.threads, 1, 1,
                                              kernel.dynamicBytes, stream, parameters.data(), nullptr));
    if (failed) {
      failed->launch = index;
      return failed;
    }
    at += 5 + count;
  }
  return std::nullopt;
}

std::optional<Failure> Session::run(const LaunchList& launches, int limitMs) {
  const Deadline deadline(limitMs);
  CUevent ended[2] = {nullptr, nullptr};
  std::optional<Failure> failed;
  size_t at = 0;
  int index = 0;
  for (size_t piece = 0; at < launches.size() && !failed; piece++) {
    CUevent& event = ended[piece % 2];
    // The piece before the last one has to be over.
    if (piece >= 2) failed = wait(deadline, event);
    if (!failed) failed = submit(launches, at, index, pieceLaunches);
    const bool goesOn = !failed && at < launches.size();
    if (goesOn && event == nullptr) failed = check("eventCreate", cu.eventCreate(&event, CU_EVENT_DEFAULT));
    if (goesOn && !failed) failed = check("eventRecord", cu.eventRecord(event, stream));
  }
  // What was submitted before a failure still runs: nothing may follow while it does.
  if (lost) return failed;
  auto unfinished = wait(deadline);
  if (lost) return unfinished;
  for (CUevent event : ended) {
    if (event != nullptr) cu.eventDestroy(event);
  }
  return unfinished ? unfinished : failed;
}
