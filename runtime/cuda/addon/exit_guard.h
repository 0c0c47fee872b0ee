// What happens when the process exits while the driver or NVRTC is at work.
#pragma once

// Libraries clean up at exit: the driver would wait for a kernel that never ends, and NVRTC would take memory away from
// a thread that still compiles. While a `Busy` exists, the process ends without any clean-up instead. Call this after
// a library was opened: handlers run in reverse order, and this one has to come before the library's.
void guardExit();

// Work that clean-up must not meet. One that is never destroyed marks work that never ends.
struct Busy {
  Busy();
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
};
