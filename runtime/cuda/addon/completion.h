// Promises that other threads settle. The event loop is kept alive while one is pending, and no longer.
#pragma once

#include <napi.h>

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "failure.h"

// Makes the value of a promise on the thread of JavaScript.
using MakeValue = std::function<Napi::Value(Napi::Env)>;

class Completions;

// One promise. Made on the thread of JavaScript; `settle` may be called once, from any thread.
struct Pending {
  Pending(Napi::Env env, Completions* owner) : deferred(Napi::Promise::Deferred::New(env)), owner(owner) {}
  void settle(std::optional<Failure> failed, MakeValue make);
  // Keeps an object (the memory that a copy reads or writes) until the promise is settled.
  void keep(Napi::Object object) { kept.push_back(Napi::Persistent(object)); }

  Napi::Promise::Deferred deferred;
  std::vector<Napi::ObjectReference> kept;
  Completions* owner;
  std::optional<Failure> failure;
  MakeValue value;
};

// One of each environment (a worker of Node has its own).
class Completions {
 public:
  explicit Completions(Napi::Env env);
  Pending* begin();

 private:
  friend struct Pending;
  static void settleOnLoop(napi_env env, napi_value, void* context, void* data);

  Napi::Env env_;
  napi_threadsafe_function queue_ = nullptr;
  size_t pending_ = 0;
  // A worker of Node may end while threads are still at work for it.
  std::mutex ending_;
  bool ended_ = false;
};

// Work that has no device: it runs on a thread of its own. Gives the promise.
Napi::Value onThread(Napi::Env env, std::function<std::optional<Failure>(MakeValue&)> work);

// That of the environment, as the addon's instance data.
Completions& completionsOf(Napi::Env env);
