// A compiled kernel: its entry, the addresses it occupies, and its shared memory, which is its TLS block.
#pragma once
#include <dlfcn.h>
#include <link.h>

#include <string>

#include "types.h"

namespace kvf {

const u64 dynamic_capacity = 233472;  // of shared_memory in prelude.cuh

typedef void (*Entry)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
                      void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
                      void*, void*, void*, void*);

struct Module {
  Entry entry = nullptr;
  u64 begin = 0, end = 0;
  u8* shared = nullptr;
  u64 shared_bytes = 0;
  u64 dynamic_begin = 0;
};

inline int describe_module(dl_phdr_info* info, size_t, void* data) {
  Module& module = *static_cast<Module*>(data);
  if (info->dlpi_addr != module.begin) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type == PT_LOAD) module.end = info->dlpi_addr + header.p_vaddr + header.p_memsz;
    if (header.p_type == PT_TLS) {
      module.shared = static_cast<u8*>(info->dlpi_tls_data);
      module.shared_bytes = header.p_memsz;
    }
  }
  return 1;
}

inline std::string load_module(const char* path, const char* entry, Module& module) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  void* address = dlsym(handle, entry);
  if (address == nullptr) return std::string("no function ") + entry + " in the compiled text";
  module.entry = reinterpret_cast<Entry>(address);
  const auto dynamic = reinterpret_cast<u8* (*)()>(dlsym(handle, "kvf_dynamic_shared"));
  if (dynamic == nullptr) return "the text does not include prelude.cuh";
  u8* shared = dynamic();
  Dl_info info;
  dladdr(address, &info);
  module.begin = reinterpret_cast<u64>(info.dli_fbase);
  dl_iterate_phdr(describe_module, &module);
  if (module.shared == nullptr) return "the dynamic linker does not say where shared memory lies";
  module.dynamic_begin = static_cast<u64>(shared - module.shared);
  return "";
}

}  // namespace kvf
