// Copies between host and device. Both directions pass through page-locked memory: what JavaScript allocates is not,
// and the driver's own way with such memory is slower.
#include <algorithm>
#include <cstring>

#include "session.h"

namespace {
constexpr size_t stagingBytes = 4u << 20;
// Smaller copies are over sooner by the driver's own way.
constexpr size_t directBytes = 64u << 10;
constexpr int limitMs = 60'000;

std::optional<Failure> prepare(Session& session) {
  for (void*& memory : session.staging) {
    if (memory != nullptr) continue;
    if (auto failed = session.check("memHostAlloc", session.cu.memHostAlloc(&memory, stagingBytes, 0))) return failed;
  }
  return std::nullopt;
}
}  // namespace

std::optional<Failure> Session::toDevice(CUdeviceptr target, const char* source, size_t bytes) {
  if (bytes <= directBytes) {
    TRY_SESSION(memcpyHtoDAsync, target, source, bytes, stream);
    return wait(Deadline(limitMs));
  }
  TRY(prepare(*this));
  CUevent copied[2] = {nullptr, nullptr};
  std::optional<Failure> failed;
  for (CUevent& event : copied) {
    if (!failed) failed = check("eventCreate", cu.eventCreate(&event, CU_EVENT_DEFAULT));
  }
  for (size_t at = 0, turn = 0; at < bytes && !failed; at += stagingBytes, turn++) {
    const size_t slot = turn % 2;
    const size_t size = std::min(stagingBytes, bytes - at);
    if (turn >= 2) failed = wait(Deadline(limitMs), copied[slot]);
    if (failed) break;
    std::memcpy(staging[slot], source + at, size);
    failed = check("memcpyHtoDAsync", cu.memcpyHtoDAsync(target + at, staging[slot], size, stream));
    if (!failed) failed = check("eventRecord", cu.eventRecord(copied[slot], stream));
  }
  if (lost) return failed;
  auto unfinished = wait(Deadline(limitMs));
  if (lost) return failed ? failed : unfinished;
  for (CUevent event : copied) {
    if (event != nullptr) cu.eventDestroy(event);
  }
  return failed ? failed : unfinished;
}

std::optional<Failure> Session::toHost(char* target, CUdeviceptr source, size_t bytes) {
  if (bytes == 0) return wait(Deadline(limitMs));
  if (bytes <= directBytes) {
    TRY_SESSION(memcpyDtoHAsync, target, source, bytes, stream);
    return wait(Deadline(limitMs));
  }
  TRY(prepare(*this));
  CUevent copied[2] = {nullptr, nullptr};
  std::optional<Failure> failed;
  for (CUevent& event : copied) {
    if (!failed) failed = check("eventCreate", cu.eventCreate(&event, CU_EVENT_DEFAULT));
  }
  const auto begin = [&](size_t at, size_t slot) {
    const size_t size = std::min(stagingBytes, bytes - at);
    failed = check("memcpyDtoHAsync", cu.memcpyDtoHAsync(staging[slot], source + at, size, stream));
    if (!failed) failed = check("eventRecord", cu.eventRecord(copied[slot], stream));
  };
  if (!failed) begin(0, 0);
  for (size_t at = 0, turn = 0; at < bytes && !failed; at += stagingBytes, turn++) {
    const size_t slot = turn % 2;
    if (at + stagingBytes < bytes) begin(at + stagingBytes, 1 - slot);
    if (!failed) failed = wait(Deadline(limitMs), copied[slot]);
    if (!failed) std::memcpy(target + at, staging[slot], std::min(stagingBytes, bytes - at));
  }
  if (lost) return failed;
  auto unfinished = wait(Deadline(limitMs));
  if (lost) return failed ? failed : unfinished;
  for (CUevent event : copied) {
    if (event != nullptr) cu.eventDestroy(event);
  }
  return failed ? failed : unfinished;
}
