// Loading of compiled kernels.
#include "session.h"

std::optional<Failure> Session::load(const std::string& image, const std::string& entry, unsigned threads,
                                     unsigned dynamicBytes, size_t& kernel, std::string& log) {
  char text[8192] = {0};
  int options[] = {JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  // The driver takes a size by value, in the place of a pointer.
  void* values[] = {text, reinterpret_cast<void*>(sizeof text)};
  Kernel loaded{nullptr, nullptr, threads, dynamicBytes};
  auto failed = check("moduleLoadDataEx", cu.moduleLoadDataEx(&loaded.module, image.data(), 2, options, values));
  if (failed) {
    text[sizeof text - 1] = '\0';
    log = text;
    return failed;
  }
  failed = check("moduleGetFunction", cu.moduleGetFunction(&loaded.function, loaded.module, entry.c_str()));
  int most = 0;
  int registers = 0;
  if (!failed)
    failed = check("funcGetAttribute", cu.funcGetAttribute(&most, FUNC_MAX_THREADS_PER_BLOCK, loaded.function));
  if (!failed) failed = check("funcGetAttribute", cu.funcGetAttribute(&registers, FUNC_NUM_REGS, loaded.function));
  if (!failed && static_cast<int>(threads) > most) {
    failed = Failure{"threads", most, "",
                     std::to_string(registers) + " registers a thread leave room for " + std::to_string(most)};
  }
  // Above 48 KB a kernel must say beforehand what its launches will ask for.
  if (!failed && dynamicBytes > 0) {
    failed = check("funcSetAttribute", cu.funcSetAttribute(loaded.function, FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                           static_cast<int>(dynamicBytes)));
  }
  if (failed) {
    if (!lost) cu.moduleUnload(loaded.module);
    return failed;
  }
  kernel = kernels.size();
  kernels.push_back(loaded);
  return std::nullopt;
}
