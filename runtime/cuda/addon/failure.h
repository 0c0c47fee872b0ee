// What went wrong in the driver or in NVRTC, as data; TypeScript makes the message.
#pragma once

#include <napi.h>

#include <string>

struct Failure {
  // The function of the driver that failed, or what the addon itself found: `timeout`, `lost`, `library`, ...
  std::string call;
  int code = 0;
  // As the driver names it: CUDA_ERROR_OUT_OF_MEMORY.
  std::string name;
  // What the driver, the compiler or the loader says.
  std::string text;
  // Which of the launches of a list failed; -1 where that is unknown.
  int launch = -1;
};

// An Error with the fields of the failure.
Napi::Error toError(Napi::Env env, const Failure& failure);
