// A driver without a GPU: memory is the host's, launches are written to a log, and what fails is told by environment
// variables and by the names of kernels. Built by fake.ts; the addon opens it through KVFORGE_LIBCUDA.
//
//   FAKE_CUDA_DEVICES  number of devices (1)          FAKE_CUDA_CC       compute capability (90)
//   FAKE_CUDA_BYTES    memory of a device (1 GiB)     FAKE_CUDA_THREADS  threads that registers leave room for (1024)
//   FAKE_CUDA_FAIL     call:code, which always fails  FAKE_CUDA_LOADING  milliseconds that a module takes to load (0)
//   FAKE_CUDA_LOG      file that gets a line for every call that matters
//   FAKE_CUDA_CLOCK    milliseconds of one launch in a graph, in place of the time it takes
//
// Kernels, by name: those of kernels.h do what they are for; `slow` takes 50 ms; `hang` never ends, and neither does
// the clean-up of this library then; `fault` fails with 700, and every call after it does; others do nothing. As CUDA
// does, freeing memory waits for all launches, and so does a launch behind a thousand others; ending the process while
// a module is loaded, without care, aborts it.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels.h"

typedef int CUresult;
#define EXPORT __attribute__((visibility("default")))
enum { most = 4096 };

typedef struct {
  char name[64];
} Function;
typedef struct {
  Function* function;
  u32* pointers[8];
  u32 grid[3];
} Launch;
typedef struct {
  int count, eventCount;
  Launch launches[most];
  // Before and after the launches.
  double* events[2];
} Graph;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int broken, hung;
static double readyAt;
static Graph* capturing;
static struct {
  void* memory;
  size_t bytes;
} allocations[most];
static size_t used;

static long number(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text == NULL ? otherwise : atol(text);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void note(const char* line) {
  const char* path = getenv("FAKE_CUDA_LOG");
  if (path == NULL) return;
  FILE* file = fopen(path, "a");
  fprintf(file, "%s\n", line);
  fclose(file);
}

static CUresult result(const char* call) {
  const char* fail = getenv("FAKE_CUDA_FAIL");
  const size_t length = strlen(call);
  if (fail != NULL && strncmp(fail, call, length) == 0 && fail[length] == ':') return atoi(fail + length + 1);
  return broken ? 700 : 0;
}
#define CALL(name)                         \
  do {                                     \
    const CUresult failed_ = result(name); \
    if (failed_ != 0) return failed_;      \
  } while (0)

static volatile int loading;
__attribute__((destructor)) static void unload(void) {
  if (loading) abort();
  while (hung) pause();
}

static void synchronise(void) {
  while (hung || now() < readyAt) usleep(100);
}

EXPORT CUresult cuInit(unsigned flags) {
  CALL("cuInit");
  note("cuInit");
  return 0;
}
EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
EXPORT CUresult cuGetErrorName(CUresult code, const char** name) {
  *name = code == 700   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : code == 2   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == 100 ? "CUDA_ERROR_NO_DEVICE"
          : code == 218 ? "CUDA_ERROR_INVALID_PTX"
          : code == 500 ? "CUDA_ERROR_NOT_FOUND"
          : code == 1   ? "CUDA_ERROR_INVALID_VALUE"
                        : "CUDA_ERROR_UNKNOWN";
  return 0;
}
EXPORT CUresult cuGetErrorString(CUresult code, const char** text) {
  *text = code == 700   ? "an illegal memory access was encountered"
          : code == 100 ? "no CUDA-capable device is detected"
                        : "as told";
  return 0;
}
EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = (int)number("FAKE_CUDA_DEVICES", 1);
  return 0;
}
EXPORT CUresult cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
EXPORT CUresult cuDeviceGetName(char* name, int length, int device) {
  snprintf(name, (size_t)length, "Fake GPU %c", 'A' + device);
  return 0;
}
EXPORT CUresult cuDeviceGetUuid(unsigned char* uuid, int device) {
  for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(16 * device + i);
  return 0;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = (size_t)number("FAKE_CUDA_BYTES", 1 << 30);
  return 0;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = (int)number("FAKE_CUDA_CC", 90);
  *value = attribute == 1    ? 1024
           : attribute == 5  ? 2147483647
           : attribute == 16 ? 132
           : attribute == 38 ? 62914560
           : attribute == 75 ? capability / 10
           : attribute == 76 ? capability % 10
           : attribute == 97 ? 232448
                             : 0;
  return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(void** context, int device) {
  CALL("cuDevicePrimaryCtxRetain");
  *context = &mutex;
  return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(int device) {
  note("release of the context");
  return 0;
}
EXPORT CUresult cuCtxSetCurrent(void* context) { return 0; }
EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  *total = (size_t)number("FAKE_CUDA_BYTES", 1 << 30);
  *free = *total - used;
  return 0;
}
EXPORT CUresult cuMemAlloc_v2(void** memory, size_t bytes) {
  CALL("cuMemAlloc");
  pthread_mutex_lock(&mutex);
  CUresult code = used + bytes > (size_t)number("FAKE_CUDA_BYTES", 1 << 30) ? 2 : 0;
  for (int i = 0; code == 0 && i < most; i++) {
    if (allocations[i].memory != NULL) continue;
    *memory = allocations[i].memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    allocations[i].bytes = bytes;
    used += bytes;
    break;
  }
  pthread_mutex_unlock(&mutex);
  return code;
}
EXPORT CUresult cuMemFree_v2(void* memory) {
  synchronise();
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < most; i++) {
    if (allocations[i].memory != memory) continue;
    char line[64];
    snprintf(line, sizeof line, "free %zu", allocations[i].bytes);
    note(line);
    used -= allocations[i].bytes;
    free(memory);
    allocations[i].memory = NULL;
    break;
  }
  pthread_mutex_unlock(&mutex);
  return 0;
}
EXPORT CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  *memory = malloc(bytes);
  return 0;
}
EXPORT CUresult cuMemFreeHost(void* memory) {
  free(memory);
  return 0;
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(void* target, const void* source, size_t bytes, void* stream) {
  CALL("cuMemcpyHtoDAsync");
  memcpy(target, source, bytes);
  return 0;
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void* target, const void* source, size_t bytes, void* stream) {
  CALL("cuMemcpyDtoHAsync");
  memcpy(target, source, bytes);
  return 0;
}
EXPORT CUresult cuMemsetD8Async(void* target, unsigned char value, size_t bytes, void* stream) {
  memset(target, value, bytes);
  return 0;
}
EXPORT CUresult cuModuleLoadDataEx(char** module, const char* image, unsigned count, int* options, void** values) {
  const CUresult code = result("cuModuleLoadDataEx");
  loading = 1;
  usleep((useconds_t)(1000 * number("FAKE_CUDA_LOADING", 0)));
  loading = 0;
  if (code != 0) {
    strcpy((char*)values[0], "ptxas fatal: as told");
    return code;
  }
  *module = strdup(image);
  note("load of a module");
  return 0;
}
EXPORT CUresult cuModuleUnload(char* module) {
  free(module);
  return 0;
}
EXPORT CUresult cuModuleGetFunction(Function** function, const char* module, const char* name) {
  if (strstr(module, name) == NULL) return 500;
  *function = calloc(1, sizeof(Function));
  strncpy((*function)->name, name, sizeof(*function)->name - 1);
  return 0;
}
EXPORT CUresult cuFuncGetAttribute(int* value, int attribute, Function* function) {
  *value = attribute == 0 ? (int)number("FAKE_CUDA_THREADS", 1024) : attribute == 4 ? 255 : 0;
  return 0;
}
EXPORT CUresult cuFuncSetAttribute(Function* function, int attribute, int value) {
  char line[128];
  snprintf(line, sizeof line, "%s may use %d bytes", function->name, value);
  note(line);
  return 0;
}

static void execute(const Launch* launch) {
  char line[256];
  const char* name = launch->function->name;
  snprintf(line, sizeof line, "run %s %u %u %u", name, launch->grid[0], launch->grid[1], launch->grid[2]);
  note(line);
  if (strcmp(name, "hang") == 0) hung = 1;
  if (strcmp(name, "fault") == 0) broken = 1;
  if (strcmp(name, "slow") == 0) readyAt = now() + 50;
  kernelOf(name)->run((u32**)launch->pointers, launch->grid);
}

EXPORT CUresult cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty,
                               unsigned tz, unsigned shared, void* stream, void** parameters, void** extra) {
  static int behind;
  CALL("cuLaunchKernel");
  if (hung && capturing == NULL && behind++ == 1000) synchronise();
  Launch launch = {function, {0}, {x, y, z}};
  for (int i = 0; i < kernelOf(function->name)->pointers; i++) launch.pointers[i] = *(u32**)parameters[i];
  if (capturing != NULL) {
    capturing->launches[capturing->count++] = launch;
  } else {
    execute(&launch);
  }
  return 0;
}
EXPORT CUresult cuStreamCreate(void** stream, unsigned flags) {
  CALL("cuStreamCreate");
  *stream = &used;
  return 0;
}
EXPORT CUresult cuStreamDestroy_v2(void* stream) { return 0; }
EXPORT CUresult cuStreamQuery(void* stream) {
  CALL("cuStreamQuery");
  return hung || now() < readyAt ? 600 : 0;
}
EXPORT CUresult cuStreamBeginCapture_v2(void* stream, int mode) {
  capturing = calloc(1, sizeof(Graph));
  return 0;
}
EXPORT CUresult cuStreamEndCapture(void* stream, Graph** graph) {
  *graph = capturing;
  capturing = NULL;
  return 0;
}
EXPORT CUresult cuEventCreate(double** event, unsigned flags) {
  *event = calloc(1, sizeof(double));
  return 0;
}
EXPORT CUresult cuEventDestroy_v2(double* event) {
  free(event);
  return 0;
}
// Time by FAKE_CUDA_CLOCK.
static double passed;
static double clockNow(void) { return getenv("FAKE_CUDA_CLOCK") == NULL ? now() : passed; }
EXPORT CUresult cuEventRecord(double* event, void* stream) {
  *event = clockNow();
  return 0;
}
EXPORT CUresult cuEventRecordWithFlags(double* event, void* stream, unsigned flags) {
  CALL("cuEventRecordWithFlags");
  if (capturing != NULL) capturing->events[capturing->eventCount++] = event;
  return 0;
}
EXPORT CUresult cuEventQuery(double* event) { return cuStreamQuery(NULL); }
EXPORT CUresult cuEventElapsedTime(float* ms, double* start, double* end) {
  *ms = (float)(*end - *start);
  return 0;
}
EXPORT CUresult cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long flags) {
  CALL("cuGraphInstantiate");
  *executable = malloc(sizeof(Graph));
  memcpy(*executable, graph, sizeof(Graph));
  return 0;
}
EXPORT CUresult cuGraphUpload(Graph* graph, void* stream) {
  CALL("cuGraphUpload");
  return 0;
}
EXPORT CUresult cuGraphLaunch(Graph* graph, void* stream) {
  note("launch of a graph");
  if (graph->eventCount > 0) *graph->events[0] = clockNow();
  for (int i = 0; i < graph->count; i++) {
    execute(&graph->launches[i]);
    passed += (double)number("FAKE_CUDA_CLOCK", 0);
  }
  if (graph->eventCount > 1) *graph->events[1] = clockNow();
  return 0;
}
EXPORT CUresult cuGraphDestroy(Graph* graph) {
  free(graph);
  return 0;
}
EXPORT CUresult cuGraphExecDestroy(Graph* graph) {
  free(graph);
  note("end of a graph");
  return 0;
}
