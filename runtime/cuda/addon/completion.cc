#include "completion.h"

#include <thread>

#include "exit_guard.h"

void Pending::settle(std::optional<Failure> failed, MakeValue make) {
  failure = std::move(failed);
  value = std::move(make);
  // Settled, this may be gone at once.
  Completions* const completions = owner;
  const std::lock_guard<std::mutex> lock(completions->ending_);
  // After the end of the environment nobody is left to be told, and references may not be dropped here.
  if (!completions->ended_) napi_call_threadsafe_function(completions->queue_, this, napi_tsfn_nonblocking);
}

Completions::Completions(Napi::Env env) : env_(env) {
  const napi_status made = napi_create_threadsafe_function(env, nullptr, nullptr, Napi::String::New(env, "kvforge"), 0,
                                                           1, nullptr, nullptr, this, settleOnLoop, &queue_);
  if (made != napi_ok) throw Napi::Error::New(env, "kvforge: no thread-safe function");
  napi_unref_threadsafe_function(env, queue_);
  // Hooks run in reverse order: this one before the queue's own, after which Node has deleted it.
  napi_add_env_cleanup_hook(
      env,
      [](void* data) {
        auto* self = static_cast<Completions*>(data);
        const std::lock_guard<std::mutex> lock(self->ending_);
        self->ended_ = true;
      },
      this);
}

Pending* Completions::begin() {
  if (pending_++ == 0) napi_ref_threadsafe_function(env_, queue_);
  return new Pending(env_, this);
}

void Completions::settleOnLoop(napi_env raw, napi_value, void* context, void* data) {
  if (raw == nullptr) return;
  Napi::Env env(raw);
  Napi::HandleScope scope(env);
  auto* self = static_cast<Completions*>(context);
  auto* pending = static_cast<Pending*>(data);
  if (--self->pending_ == 0) napi_unref_threadsafe_function(raw, self->queue_);
  try {
    if (pending->failure) {
      pending->deferred.Reject(toError(env, *pending->failure).Value());
    } else {
      pending->deferred.Resolve(pending->value ? pending->value(env) : env.Undefined());
    }
    delete pending;
  } catch (const Napi::Error&) {
    // A worker of Node that is being terminated takes no values, and does not let references go.
  }
}

Completions& completionsOf(Napi::Env env) { return *env.GetInstanceData<Completions>(); }

Napi::Value onThread(Napi::Env env, std::function<std::optional<Failure>(MakeValue&)> work) {
  Pending* pending = completionsOf(env).begin();
  const Napi::Promise promise = pending->deferred.Promise();
  std::thread([pending, work = std::move(work)] {
    MakeValue value;
    std::optional<Failure> failed;
    {
      const Busy busy;
      failed = work(value);
    }
    pending->settle(std::move(failed), std::move(value));
  }).detach();
  return promise;
}
