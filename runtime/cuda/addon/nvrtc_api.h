// The part of NVRTC that the addon calls, declared from its public documentation.
#pragma once

#include <cstddef>

using nvrtcResult = int;
using nvrtcProgram = struct nvrtcProgram_st*;

constexpr nvrtcResult NVRTC_SUCCESS = 0;

#define NVRTC_ENTRY_POINTS(X)                                                               \
  X(version, "nvrtcVersion", (int*, int*))                                                  \
  X(getNumSupportedArchs, "nvrtcGetNumSupportedArchs", (int*))                              \
  X(getSupportedArchs, "nvrtcGetSupportedArchs", (int*))                                    \
  X(createProgram, "nvrtcCreateProgram",                                                    \
    (nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(destroyProgram, "nvrtcDestroyProgram", (nvrtcProgram*))                                 \
  X(compileProgram, "nvrtcCompileProgram", (nvrtcProgram, int, const char* const*))         \
  X(getProgramLogSize, "nvrtcGetProgramLogSize", (nvrtcProgram, size_t*))                   \
  X(getProgramLog, "nvrtcGetProgramLog", (nvrtcProgram, char*))                             \
  X(getCubinSize, "nvrtcGetCUBINSize", (nvrtcProgram, size_t*))                             \
  X(getCubin, "nvrtcGetCUBIN", (nvrtcProgram, char*))                                       \
  X(getPtxSize, "nvrtcGetPTXSize", (nvrtcProgram, size_t*))                                 \
  X(getPtx, "nvrtcGetPTX", (nvrtcProgram, char*))
