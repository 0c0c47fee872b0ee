#include "library.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#if defined(__linux__)
#include <link.h>
#endif
#endif

Library* Library::open(const std::string& path, std::string& problem) {
#if defined(_WIN32)
  HMODULE handle = LoadLibraryA(path.c_str());
  if (handle == nullptr) {
    problem = "LoadLibrary error " + std::to_string(GetLastError());
    return nullptr;
  }
  char file[MAX_PATH];
  const DWORD length = GetModuleFileNameA(handle, file, MAX_PATH);
  return new Library(handle, length > 0 ? std::string(file, length) : path);
#else
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* text = dlerror();
    problem = text == nullptr ? "unknown error of dlopen" : text;
    return nullptr;
  }
#if defined(__linux__)
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] != '\0') {
    return new Library(handle, map->l_name);
  }
#endif
  return new Library(handle, path);
#endif
}

Library* Library::openFirst(const std::vector<std::string>& paths, std::string& problems) {
  for (const std::string& path : paths) {
    std::string problem;
    Library* library = open(path, problem);
    if (library != nullptr) return library;
    problems += (problems.empty() ? "" : "; ") + problem;
  }
  return nullptr;
}

void* Library::symbol(const char* name) const {
#if defined(_WIN32)
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), name));
#else
  return dlsym(handle_, name);
#endif
}
