// The CUDA driver: opened once for the process, its functions by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda_api.h"
#include "failure.h"
#include "library.h"

struct Driver {
#define DECLARE(name, exported, parameters) CUresult(CUDA_CALL* name) parameters = nullptr;
  CUDA_ENTRY_POINTS(DECLARE)
#undef DECLARE

  std::string path;
  int version = 0;

  // Opens the first of `paths` that loads, and initialises it. A later call gives what the first one opened.
  static std::optional<Failure> open(const std::vector<std::string>& paths);
  // What `open` opened.
  static const Driver& get();

  // Nothing where the result is success, else the failure with the driver's words for it.
  std::optional<Failure> check(const char* call, CUresult result) const;
};

// Returns the failure of a call to the driver, if it has one, from a function that returns std::optional<Failure>.
#define TRY_CUDA(driver, name, ...) \
  if (auto failed_ = (driver).check(#name, (driver).name(__VA_ARGS__))) return failed_
// The same for a function that itself gives a std::optional<Failure>.
#define TRY(expression) \
  if (auto failed_ = (expression)) return failed_
