// A device as JavaScript holds it: posts work to its worker and gives promises. `runtime/cuda/nativeTypes.ts` declares
// the methods; `runtime/cuda/` checks what goes into them.
#pragma once

#include <napi.h>

#include <functional>
#include <memory>
#include <set>

#include "completion.h"
#include "session.h"
#include "worker.h"

class Device : public Napi::ObjectWrap<Device> {
 public:
  static Napi::Function define(Napi::Env env);
  explicit Device(const Napi::CallbackInfo& info);
  ~Device() override;

 private:
  // Work on the worker: gives a failure, or nothing and, in the second parameter, how to make the value.
  using Work = std::function<std::optional<Failure>(Session&, MakeValue&)>;
  Napi::Value post(const Napi::CallbackInfo& info, Work work);
  Napi::Value post(Pending* pending, Work work);
  // A promise that keeps this object: one that was collected would give up the work.
  Pending* begin(const Napi::CallbackInfo& info);
  void postFree(CUdeviceptr address);
  void postClose(std::function<void()> closed);

  Napi::Value open(const Napi::CallbackInfo& info);
  Napi::Value allocate(const Napi::CallbackInfo& info);
  void free(const Napi::CallbackInfo& info);
  Napi::Value fill(const Napi::CallbackInfo& info);
  Napi::Value write(const Napi::CallbackInfo& info);
  Napi::Value read(const Napi::CallbackInfo& info);
  Napi::Value load(const Napi::CallbackInfo& info);
  Napi::Value run(const Napi::CallbackInfo& info);
  Napi::Value record(const Napi::CallbackInfo& info);
  Napi::Value replay(const Napi::CallbackInfo& info);
  Napi::Value dropGraph(const Napi::CallbackInfo& info);
  Napi::Value time(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);

  int ordinal_;
  bool closed_ = false;
  // Memory that was allocated and not freed.
  std::set<CUdeviceptr> allocated_;
  std::shared_ptr<Session> session_ = std::make_shared<Session>();
  std::unique_ptr<Worker> worker_ = std::make_unique<Worker>();
};
