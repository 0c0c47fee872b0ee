#include "exit_guard.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#if defined(__GLIBC__)
#include <unistd.h>
#endif

namespace {
std::atomic<int> busy{0};
}

Busy::Busy() { busy++; }
Busy::~Busy() { busy--; }

void guardExit() {
#if defined(__GLIBC__)
  on_exit(
      [](int status, void*) {
        if (busy == 0) return;
        fflush(nullptr);
        _exit(status);
      },
      nullptr);
#endif
}
