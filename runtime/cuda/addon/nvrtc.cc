#include "nvrtc.h"

#include <mutex>
#include <string>
#include <vector>

#include "completion.h"
#include "exit_guard.h"
#include "library.h"
#include "nvrtc_api.h"

namespace {

struct Nvrtc {
#define DECLARE(name, exported, parameters) nvrtcResult(*name) parameters = nullptr;
  NVRTC_ENTRY_POINTS(DECLARE)
#undef DECLARE
  const char* (*getErrorString)(nvrtcResult) = nullptr;
};

Nvrtc opened;
std::string openedPath;
std::mutex opening;

std::optional<Failure> check(const char* call, nvrtcResult result) {
  if (result == NVRTC_SUCCESS) return std::nullopt;
  const char* name = opened.getErrorString(result);
  return Failure{call, result, name == nullptr ? "" : name, ""};
}

// NVRTC opens a second library by its bare name. In a folder that the loader does not search (a wheel of Python) it is
// found only if it is open already.
void openBuiltins(const std::string& path, int major, int minor) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return;
  const std::string name = "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
  std::string problem;
  // Where it is elsewhere, NVRTC finds it by itself or says what is missing.
  Library::open(path.substr(0, slash + 1) + name, problem);
}

std::optional<Failure> openLibrary(const std::vector<std::string>& paths) {
  const std::lock_guard<std::mutex> lock(opening);
  if (!openedPath.empty()) return std::nullopt;
  std::string problems;
  const Library* library = Library::openFirst(paths, problems);
  if (library == nullptr) return Failure{"library", 0, "", problems};
  Nvrtc found;
#define FIND(name, exported, parameters)                                          \
  found.name = reinterpret_cast<decltype(found.name)>(library->symbol(exported)); \
  if (found.name == nullptr) return Failure{"symbol", 0, "", library->path() + " has no function " + exported};
  NVRTC_ENTRY_POINTS(FIND)
#undef FIND
  found.getErrorString = reinterpret_cast<decltype(found.getErrorString)>(library->symbol("nvrtcGetErrorString"));
  if (found.getErrorString == nullptr)
    return Failure{"symbol", 0, "", library->path() + " has no nvrtcGetErrorString"};
  int major = 0;
  int minor = 0;
  if (found.version(&major, &minor) == NVRTC_SUCCESS) openBuiltins(library->path(), major, minor);
  guardExit();
  opened = found;
  openedPath = library->path();
  return std::nullopt;
}

struct Request {
  std::string name, source, headerName, header;
  std::vector<std::string> options;
  bool ptx;
};

std::optional<Failure> build(const Request& request, std::string& image) {
  const char* headers[] = {request.header.c_str()};
  const char* headerNames[] = {request.headerName.c_str()};
  nvrtcProgram program = nullptr;
  auto failed = check("nvrtcCreateProgram", opened.createProgram(&program, request.source.c_str(), request.name.c_str(),
                                                                 1, headers, headerNames));
  if (failed) return failed;
  std::vector<const char*> options;
  for (const std::string& option : request.options) options.push_back(option.c_str());
  failed =
      check("nvrtcCompileProgram", opened.compileProgram(program, static_cast<int>(options.size()), options.data()));
  size_t size = 0;
  if (failed) {
    if (opened.getProgramLogSize(program, &size) == NVRTC_SUCCESS && size > 1) {
      failed->text.resize(size);
      opened.getProgramLog(program, &failed->text[0]);
      failed->text.resize(size - 1);
    }
  } else {
    failed =
        check("nvrtcGetSize", request.ptx ? opened.getPtxSize(program, &size) : opened.getCubinSize(program, &size));
    if (!failed) {
      image.resize(size);
      failed =
          check("nvrtcGetImage", request.ptx ? opened.getPtx(program, &image[0]) : opened.getCubin(program, &image[0]));
    }
  }
  opened.destroyProgram(&program);
  return failed;
}

std::vector<std::string> stringsOf(const Napi::Value& value) {
  const auto array = value.As<Napi::Array>();
  std::vector<std::string> strings;
  for (uint32_t i = 0; i < array.Length(); i++) strings.push_back(array.Get(i).As<Napi::String>());
  return strings;
}

}  // namespace

Napi::Value openNvrtc(const Napi::CallbackInfo& info) {
  return onThread(info.Env(), [paths = stringsOf(info[0])](MakeValue& value) {
    int major = 0;
    int minor = 0;
    int count = 0;
    auto failed = openLibrary(paths);
    if (!failed) failed = check("nvrtcVersion", opened.version(&major, &minor));
    if (!failed) failed = check("nvrtcGetNumSupportedArchs", opened.getNumSupportedArchs(&count));
    std::vector<int> architectures(static_cast<size_t>(count));
    if (!failed) failed = check("nvrtcGetSupportedArchs", opened.getSupportedArchs(architectures.data()));
    value = [major, minor, architectures](Napi::Env env) {
      Napi::Object result = Napi::Object::New(env);
      result.Set("path", openedPath);
      result.Set("version", std::to_string(major) + "." + std::to_string(minor));
      Napi::Array list = Napi::Array::New(env);
      for (size_t i = 0; i < architectures.size(); i++) list.Set(static_cast<uint32_t>(i), architectures[i]);
      result.Set("architectures", list);
      return result;
    };
    return failed;
  });
}

Napi::Value compile(const Napi::CallbackInfo& info) {
  const auto given = info[0].As<Napi::Object>();
  const auto text = [&](const char* name) { return given.Get(name).As<Napi::String>().Utf8Value(); };
  Request request{text("name"),
                  text("source"),
                  text("headerName"),
                  text("header"),
                  stringsOf(given.Get("options")),
                  given.Get("ptx").As<Napi::Boolean>()};
  return onThread(info.Env(), [request = std::move(request)](MakeValue& value) {
    auto image = std::make_shared<std::string>();
    auto failed = build(request, *image);
    value = [image](Napi::Env env) { return Napi::Buffer<char>::Copy(env, image->data(), image->size()); };
    return failed;
  });
}
