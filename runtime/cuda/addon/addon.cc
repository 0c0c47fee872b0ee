// Entry points of the addon; `runtime/cuda/nativeTypes.ts` declares them.
#include <napi.h>

#include <cstdio>

#include "completion.h"
#include "device.h"
#include "driver.h"
#include "nvrtc.h"

namespace {

// openDriver(paths: string[]): Promise<{ path, version }>
Napi::Value openDriver(const Napi::CallbackInfo& info) {
  std::vector<std::string> paths;
  const auto given = info[0].As<Napi::Array>();
  for (uint32_t i = 0; i < given.Length(); i++) paths.push_back(given.Get(i).As<Napi::String>());
  return onThread(info.Env(), [paths](MakeValue& value) {
    value = [](Napi::Env env) {
      Napi::Object result = Napi::Object::New(env);
      result.Set("path", Driver::get().path);
      result.Set("version", Driver::get().version);
      return result;
    };
    return Driver::open(paths);
  });
}

std::string textOf(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; i++) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", uuid.bytes[i]);
    text += (i == 4 || i == 6 || i == 8 || i == 10) ? std::string("-") + digits : digits;
  }
  return text;
}

std::optional<Failure> describe(Napi::Env env, int index, Napi::Object& result) {
  const Driver& cu = Driver::get();
  CUdevice device = 0;
  char name[256] = {0};
  CUuuid uuid{};
  size_t bytes = 0;
  TRY_CUDA(cu, deviceGet, &device, index);
  TRY_CUDA(cu, deviceGetName, name, sizeof name, device);
  TRY_CUDA(cu, deviceGetUuid, &uuid, device);
  TRY_CUDA(cu, deviceTotalMem, &bytes, device);
  result.Set("index", index);
  result.Set("name", name);
  result.Set("uuid", textOf(uuid));
  result.Set("bytes", static_cast<double>(bytes));
  const std::pair<const char*, int> attributes[] = {
      {"major", COMPUTE_CAPABILITY_MAJOR},
      {"minor", COMPUTE_CAPABILITY_MINOR},
      {"multiprocessors", MULTIPROCESSOR_COUNT},
      {"cacheBytes", L2_CACHE_SIZE},
      {"sharedBytes", MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
      {"threadsPerBlock", MAX_THREADS_PER_BLOCK},
      {"blocks", MAX_GRID_DIM_X},
  };
  for (const auto& [key, attribute] : attributes) {
    int value = 0;
    TRY_CUDA(cu, deviceGetAttribute, &value, attribute, device);
    result.Set(key, value);
  }
  return std::nullopt;
}

// devices(): what the driver knows of each device
Napi::Value devices(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const Driver& cu = Driver::get();
  int count = 0;
  if (cu.deviceGetCount == nullptr) throw Napi::Error::New(env, "kvforge: the driver is not open");
  if (auto failed = cu.check("deviceGetCount", cu.deviceGetCount(&count))) throw toError(env, *failed);
  Napi::Array list = Napi::Array::New(env);
  for (int index = 0; index < count; index++) {
    Napi::Object device = Napi::Object::New(env);
    if (auto failed = describe(env, index, device)) throw toError(env, *failed);
    list.Set(static_cast<uint32_t>(index), device);
  }
  return list;
}

// A thread that compiles may outlive the environment, so what it settles promises with is never deleted.
void keep(Napi::Env, Completions*) {}

}  // namespace

Napi::Object start(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData<Completions, keep>(new Completions(env));
  exports.Set("openDriver", Napi::Function::New(env, openDriver));
  exports.Set("devices", Napi::Function::New(env, devices));
  exports.Set("openNvrtc", Napi::Function::New(env, openNvrtc));
  exports.Set("compile", Napi::Function::New(env, compile));
  exports.Set("Device", Device::define(env));
  return exports;
}

NODE_API_MODULE(kvforge, start)
