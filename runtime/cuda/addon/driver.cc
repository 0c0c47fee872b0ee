#include "driver.h"

#include <mutex>

namespace {
Driver opened;
bool isOpen = false;
std::mutex opening;
}  // namespace

const Driver& Driver::get() { return opened; }

std::optional<Failure> Driver::check(const char* call, CUresult result) const {
  if (result == CUDA_SUCCESS) return std::nullopt;
  const char* name = nullptr;
  const char* text = nullptr;
  if (getErrorName != nullptr) getErrorName(result, &name);
  if (getErrorString != nullptr) getErrorString(result, &text);
  return Failure{call, result, name == nullptr ? "" : name, text == nullptr ? "" : text};
}

std::optional<Failure> Driver::open(const std::vector<std::string>& paths) {
  const std::lock_guard<std::mutex> lock(opening);
  if (isOpen) return std::nullopt;
  std::string problems;
  const Library* library = Library::openFirst(paths, problems);
  if (library == nullptr) return Failure{"library", 0, "", problems};
  Driver driver;
  driver.path = library->path();
#define FIND(name, exported, parameters)                                            \
  driver.name = reinterpret_cast<decltype(driver.name)>(library->symbol(exported)); \
  if (driver.name == nullptr) return Failure{"symbol", 0, "", driver.path + " has no function " + exported};
  CUDA_ENTRY_POINTS(FIND)
#undef FIND
  if (auto failed = driver.check("init", driver.init(0))) {
    failed->text += failed->text.empty() ? driver.path : " (" + driver.path + ")";
    return failed;
  }
  TRY_CUDA(driver, driverGetVersion, &driver.version);
  opened = driver;
  isOpen = true;
  return std::nullopt;
}
