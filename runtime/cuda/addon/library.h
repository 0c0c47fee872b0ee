// Shared libraries opened at run time.
#pragma once

#include <string>
#include <vector>

// Opens a library by path or by the name that the system's loader searches for. It stays open for the life of the
// process: a driver keeps threads of its own, which must not lose their code.
class Library {
 public:
  // Null, with the loader's words in `problem`, where it cannot be opened.
  static Library* open(const std::string& path, std::string& problem);
  // The first of several that opens; null, with the loader's words for each in `problems`, where none does.
  static Library* openFirst(const std::vector<std::string>& paths, std::string& problems);
  // Null where the library has no such symbol.
  void* symbol(const char* name) const;
  // The file that the loader chose, as far as the system tells; the name asked for otherwise.
  const std::string& path() const { return path_; }

 private:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* handle_;
  std::string path_;
};
