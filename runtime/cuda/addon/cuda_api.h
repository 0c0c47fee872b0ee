// The part of the CUDA driver API that the addon calls, declared from its public documentation: no header of the CUDA
// toolkit is needed to build, and no library is linked.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define CUDA_CALL __stdcall
#else
#define CUDA_CALL
#endif

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
struct CUuuid {
  unsigned char bytes[16];
};

// Results (CUresult) that decide what the addon does next; all others are told by name.
constexpr CUresult CUDA_SUCCESS = 0;
constexpr CUresult CUDA_ERROR_OUT_OF_MEMORY = 2;
constexpr CUresult CUDA_ERROR_NOT_READY = 600;

// Device attributes (CUdevice_attribute).
enum CUdeviceAttribute : int {
  MAX_THREADS_PER_BLOCK = 1,
  MAX_GRID_DIM_X = 5,
  MULTIPROCESSOR_COUNT = 16,
  L2_CACHE_SIZE = 38,
  COMPUTE_CAPABILITY_MAJOR = 75,
  COMPUTE_CAPABILITY_MINOR = 76,
  MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};

// Function attributes (CUfunction_attribute).
enum CUfunctionAttribute : int {
  FUNC_MAX_THREADS_PER_BLOCK = 0,
  FUNC_NUM_REGS = 4,
  FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};

// Options of cuModuleLoadDataEx (CUjit_option).
enum CUjitOption : int { JIT_ERROR_LOG_BUFFER = 5, JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6 };

constexpr unsigned CU_STREAM_NON_BLOCKING = 1;
constexpr unsigned CU_EVENT_DEFAULT = 0;
// In a capture: a node of the graph, instead of a dependency within it.
constexpr unsigned CU_EVENT_RECORD_EXTERNAL = 1;
constexpr int CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;

// Every entry point: its name for the program, the exported symbol, its parameters. The exported symbol carries the
// version that the documentation of CUDA 11.4 on describes, as cuda.h would choose by macro.
#define CUDA_ENTRY_POINTS(X)                                                                                      \
  X(init, "cuInit", (unsigned))                                                                                   \
  X(driverGetVersion, "cuDriverGetVersion", (int*))                                                               \
  X(getErrorName, "cuGetErrorName", (CUresult, const char**))                                                     \
  X(getErrorString, "cuGetErrorString", (CUresult, const char**))                                                 \
  X(deviceGetCount, "cuDeviceGetCount", (int*))                                                                   \
  X(deviceGet, "cuDeviceGet", (CUdevice*, int))                                                                   \
  X(deviceGetName, "cuDeviceGetName", (char*, int, CUdevice))                                                     \
  X(deviceGetUuid, "cuDeviceGetUuid", (CUuuid*, CUdevice))                                                        \
  X(deviceTotalMem, "cuDeviceTotalMem_v2", (size_t*, CUdevice))                                                   \
  X(deviceGetAttribute, "cuDeviceGetAttribute", (int*, int, CUdevice))                                            \
  X(devicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext*, CUdevice))                                   \
  X(devicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                                          \
  X(ctxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                                \
  X(memGetInfo, "cuMemGetInfo_v2", (size_t*, size_t*))                                                            \
  X(memAlloc, "cuMemAlloc_v2", (CUdeviceptr*, size_t))                                                            \
  X(memFree, "cuMemFree_v2", (CUdeviceptr))                                                                       \
  X(memHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                                   \
  X(memFreeHost, "cuMemFreeHost", (void*))                                                                        \
  X(memcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void*, size_t, CUstream))                        \
  X(memcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void*, CUdeviceptr, size_t, CUstream))                              \
  X(memsetD8Async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))                             \
  X(moduleLoadDataEx, "cuModuleLoadDataEx", (CUmodule*, const void*, unsigned, int*, void**))                     \
  X(moduleUnload, "cuModuleUnload", (CUmodule))                                                                   \
  X(moduleGetFunction, "cuModuleGetFunction", (CUfunction*, CUmodule, const char*))                               \
  X(funcGetAttribute, "cuFuncGetAttribute", (int*, int, CUfunction))                                              \
  X(funcSetAttribute, "cuFuncSetAttribute", (CUfunction, int, int))                                               \
  X(launchKernel, "cuLaunchKernel",                                                                               \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**)) \
  X(streamCreate, "cuStreamCreate", (CUstream*, unsigned))                                                        \
  X(streamDestroy, "cuStreamDestroy_v2", (CUstream))                                                              \
  X(streamQuery, "cuStreamQuery", (CUstream))                                                                     \
  X(streamBeginCapture, "cuStreamBeginCapture_v2", (CUstream, int))                                               \
  X(streamEndCapture, "cuStreamEndCapture", (CUstream, CUgraph*))                                                 \
  X(eventCreate, "cuEventCreate", (CUevent*, unsigned))                                                           \
  X(eventDestroy, "cuEventDestroy_v2", (CUevent))                                                                 \
  X(eventRecord, "cuEventRecord", (CUevent, CUstream))                                                            \
  X(eventRecordWithFlags, "cuEventRecordWithFlags", (CUevent, CUstream, unsigned))                                \
  X(eventQuery, "cuEventQuery", (CUevent))                                                                        \
  X(eventElapsedTime, "cuEventElapsedTime", (float*, CUevent, CUevent))                                           \
  X(graphInstantiateWithFlags, "cuGraphInstantiateWithFlags", (CUgraphExec*, CUgraph, unsigned long long))        \
  X(graphUpload, "cuGraphUpload", (CUgraphExec, CUstream))                                                        \
  X(graphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                                                        \
  X(graphDestroy, "cuGraphDestroy", (CUgraph))                                                                    \
  X(graphExecDestroy, "cuGraphExecDestroy", (CUgraphExec))
