// A compiler that gives its input back as the binary. `nothing_of_this_name` in it is an error, told as
// NVRTC tells it. Built by fake.ts; the addon opens it through KVFORGE_LIBNVRTC.
//
//   FAKE_NVRTC_LOG    file that gets a line for every call that matters
//   FAKE_NVRTC_SLOW   each text takes 3 s; ending the process meanwhile without care aborts it
//   FAKE_NVRTC_MAJOR  its version (13)
//   FAKE_NVRTC_ARCHS  lowest and highest compute capability, by a space (75 120)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  char* source;
  char name[64];
  char log[256];
} Program;

static void note(const char* text, const char* more) {
  const char* path = getenv("FAKE_NVRTC_LOG");
  if (path == NULL) return;
  FILE* file = fopen(path, "a");
  fprintf(file, "%s%s\n", text, more);
  fclose(file);
}

static void bounds(int* low, int* high) {
  const char* text = getenv("FAKE_NVRTC_ARCHS");
  sscanf(text == NULL ? "75 120" : text, "%d %d", low, high);
}

static volatile int compiling;
__attribute__((destructor)) static void unload(void) {
  if (compiling) abort();
}

EXPORT int nvrtcVersion(int* major, int* minor) {
  note("open", "");
  const char* given = getenv("FAKE_NVRTC_MAJOR");
  *major = given == NULL ? 13 : atoi(given);
  *minor = 0;
  return 0;
}
EXPORT const char* nvrtcGetErrorString(int code) { return code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
EXPORT int nvrtcGetNumSupportedArchs(int* count) {
  int low, high;
  bounds(&low, &high);
  *count = high - low + 1;
  return 0;
}
EXPORT int nvrtcGetSupportedArchs(int* archs) {
  int low, high;
  bounds(&low, &high);
  for (int i = low; i <= high; i++) archs[i - low] = i;
  return 0;
}
EXPORT int nvrtcCreateProgram(Program** program, const char* source, const char* name, int headers,
                              const char* const* texts, const char* const* names) {
  *program = calloc(1, sizeof(Program));
  (*program)->source = strdup(source);
  strncpy((*program)->name, name, sizeof(*program)->name - 1);
  note("header ", headers == 1 && strstr(texts[0], "half_to_float") != NULL ? names[0] : "none");
  return 0;
}
EXPORT int nvrtcDestroyProgram(Program** program) {
  free((*program)->source);
  free(*program);
  return 0;
}
EXPORT int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  if (getenv("FAKE_NVRTC_SLOW") != NULL) {
    compiling = 1;
    sleep(3);
    compiling = 0;
  }
  char line[256] = "";
  for (int i = 0; i < count; i++) strncat(strcat(line, " "), options[i], 100);
  note("compile ", program->name);
  note("options", line);
  const char* found = strstr(program->source, "nothing_of_this_name");
  if (found == NULL) return 0;
  int line_number = 1;
  for (const char* at = program->source; at < found; at++) line_number += *at == '\n';
  snprintf(program->log, sizeof program->log,
           "%s(%d): error: identifier \"nothing_of_this_name\" is undefined\n"
           "    output[1] = nothing_of_this_name;\n                ^\n\n"
           "1 error detected in the compilation of \"%s\".\n",
           program->name, line_number, program->name);
  return 6;
}
EXPORT int nvrtcGetProgramLogSize(Program* program, size_t* size) {
  *size = strlen(program->log) + 1;
  return 0;
}
EXPORT int nvrtcGetProgramLog(Program* program, char* log) {
  strcpy(log, program->log);
  return 0;
}
EXPORT int nvrtcGetCUBINSize(Program* program, size_t* size) {
  *size = strlen(program->source) + 1;
  return 0;
}
EXPORT int nvrtcGetCUBIN(Program* program, char* image) {
  strcpy(image, program->source);
  return 0;
}
EXPORT int nvrtcGetPTXSize(Program* program, size_t* size) { return nvrtcGetCUBINSize(program, size); }
EXPORT int nvrtcGetPTX(Program* program, char* image) { return nvrtcGetCUBIN(program, image); }
