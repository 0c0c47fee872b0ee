#include "device.h"

namespace {

LaunchList listOf(const Napi::Value& value) {
  const auto array = value.As<Napi::Float64Array>();
  return LaunchList(array.Data(), array.Data() + array.ElementLength());
}

// Milliseconds.
int limitOf(const Napi::Value& value) { return value.As<Napi::Number>().Int32Value(); }

// A double holds the address of an allocation, a multiple of 256, but not every address within: offsets come apart.
CUdeviceptr addressOf(const Napi::Value& value) {
  return static_cast<CUdeviceptr>(value.As<Napi::Number>().DoubleValue());
}

size_t offsetOf(const Napi::Value& value) { return static_cast<size_t>(value.As<Napi::Number>().DoubleValue()); }

Failure lostBefore() { return Failure{"lost", 0, "", ""}; }

}  // namespace

Napi::Function Device::define(Napi::Env env) {
  return DefineClass(env, "Device",
                     {
                         InstanceMethod("open", &Device::open),
                         InstanceMethod("allocate", &Device::allocate),
                         InstanceMethod("free", &Device::free),
                         InstanceMethod("fill", &Device::fill),
                         InstanceMethod("write", &Device::write),
                         InstanceMethod("read", &Device::read),
                         InstanceMethod("load", &Device::load),
                         InstanceMethod("run", &Device::run),
                         InstanceMethod("record", &Device::record),
                         InstanceMethod("replay", &Device::replay),
                         InstanceMethod("dropGraph", &Device::dropGraph),
                         InstanceMethod("time", &Device::time),
                         InstanceMethod("close", &Device::close),
                     });
}

Device::Device(const Napi::CallbackInfo& info)
    : Napi::ObjectWrap<Device>(info), ordinal_(info[0].As<Napi::Number>().Int32Value()) {}

Device::~Device() {
  session_->abandoned = true;
  // The context is the process's: what nobody closed would stay in it.
  if (!closed_) postClose([] {});
}

Pending* Device::begin(const Napi::CallbackInfo& info) {
  Pending* pending = completionsOf(info.Env()).begin();
  pending->keep(info.This().As<Napi::Object>());
  return pending;
}

Napi::Value Device::post(Pending* pending, Work work) {
  const Napi::Promise promise = pending->deferred.Promise();
  worker_->post([session = session_, pending, work = std::move(work)] {
    MakeValue value;
    std::optional<Failure> failed =
        session->lost || session->abandoned ? std::optional<Failure>(lostBefore()) : work(*session, value);
    pending->settle(std::move(failed), std::move(value));
  });
  return promise;
}

Napi::Value Device::post(const Napi::CallbackInfo& info, Work work) {
  return post(begin(info), std::move(work));
}

Napi::Value Device::open(const Napi::CallbackInfo& info) {
  return post(info, [ordinal = ordinal_](Session& session, MakeValue&) { return session.open(ordinal); });
}

Napi::Value Device::allocate(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const size_t bytes = static_cast<size_t>(info[0].As<Napi::Number>().DoubleValue());
  Session& session = *session_;
  CUdeviceptr address = 0;
  if (session.lost) throw toError(env, lostBefore());
  auto failed = session.check("ctxSetCurrent", session.cu.ctxSetCurrent(session.context));
  if (!failed) failed = session.check("memAlloc", session.cu.memAlloc(&address, bytes));
  if (failed && failed->code == CUDA_ERROR_OUT_OF_MEMORY) {
    // Buffers that were released wait for the launches before them.
    worker_->drain();
    if (session.lost) throw toError(env, lostBefore());
    failed = session.check("memAlloc", session.cu.memAlloc(&address, bytes));
  }
  if (failed) {
    Napi::Error error = toError(env, *failed);
    size_t free = 0;
    size_t total = 0;
    if (!session.lost) session.cu.memGetInfo(&free, &total);
    error.Value().Set("free", static_cast<double>(free));
    throw error;
  }
  allocated_.insert(address);
  return Napi::Number::New(env, static_cast<double>(address));
}

void Device::free(const Napi::CallbackInfo& info) {
  const CUdeviceptr address = addressOf(info[0]);
  if (allocated_.erase(address) == 1) postFree(address);
}

void Device::postFree(CUdeviceptr address) {
  // Never on the thread of JavaScript: the driver waits for all work of the context, that of other devices too.
  worker_->post([session = session_, address] {
    if (!session->lost) session->check("memFree", session->cu.memFree(address));
  });
}

Napi::Value Device::fill(const Napi::CallbackInfo& info) {
  const CUdeviceptr target = addressOf(info[0]);
  const size_t bytes = static_cast<size_t>(info[1].As<Napi::Number>().DoubleValue());
  return post(info, [target, bytes](Session& session, MakeValue&) {
    return session.check("memsetD8Async", session.cu.memsetD8Async(target, 0xff, bytes, session.stream));
  });
}

Napi::Value Device::write(const Napi::CallbackInfo& info) {
  const CUdeviceptr target = addressOf(info[0]) + offsetOf(info[1]);
  const auto source = info[2].As<Napi::Uint8Array>();
  // A copy: the caller may change the bytes as soon as this returns.
  auto bytes = std::make_shared<std::string>(reinterpret_cast<const char*>(source.Data()), source.ByteLength());
  return post(info, [target, bytes](Session& session, MakeValue&) {
    return session.toDevice(target, bytes->data(), bytes->size());
  });
}

Napi::Value Device::read(const Napi::CallbackInfo& info) {
  const CUdeviceptr source = addressOf(info[0]) + offsetOf(info[1]);
  auto target = info[2].As<Napi::Uint8Array>();
  Pending* pending = begin(info);
  pending->keep(target);
  char* data = reinterpret_cast<char*>(target.Data());
  return post(pending, [source, data, bytes = target.ByteLength()](Session& session, MakeValue&) {
    return session.toHost(data, source, bytes);
  });
}

Napi::Value Device::load(const Napi::CallbackInfo& info) {
  const auto source = info[0].As<Napi::Uint8Array>();
  std::string image(reinterpret_cast<const char*>(source.Data()), source.ByteLength());
  std::string entry = info[1].As<Napi::String>();
  const unsigned threads = info[2].As<Napi::Number>().Uint32Value();
  const unsigned dynamicBytes = info[3].As<Napi::Number>().Uint32Value();
  return post(info, [=](Session& session, MakeValue& value) {
    size_t kernel = 0;
    std::string log;
    auto failed = session.load(image, entry, threads, dynamicBytes, kernel, log);
    if (failed && !log.empty()) failed->text = log;
    value = [kernel](Napi::Env env) { return Napi::Number::New(env, static_cast<double>(kernel)); };
    return failed;
  });
}

Napi::Value Device::run(const Napi::CallbackInfo& info) {
  return post(info, [list = listOf(info[0]), limit = limitOf(info[1])](Session& session, MakeValue&) {
    return session.run(list, limit);
  });
}

Napi::Value Device::record(const Napi::CallbackInfo& info) {
  return post(info, [list = listOf(info[0])](Session& session, MakeValue& value) {
    int id = 0;
    auto failed = session.record(list, id);
    value = [id](Napi::Env env) { return Napi::Number::New(env, id); };
    return failed;
  });
}

Napi::Value Device::replay(const Napi::CallbackInfo& info) {
  const int id = info[0].As<Napi::Number>().Int32Value();
  return post(info, [id, limit = limitOf(info[1])](Session& session, MakeValue&) { return session.replay(id, limit); });
}

Napi::Value Device::dropGraph(const Napi::CallbackInfo& info) {
  const int id = info[0].As<Napi::Number>().Int32Value();
  return post(info, [id](Session& session, MakeValue&) { return session.dropGraph(id); });
}

Napi::Value Device::time(const Napi::CallbackInfo& info) {
  const unsigned rounds = info[1].As<Napi::Number>().Uint32Value();
  const unsigned samples = info[2].As<Napi::Number>().Uint32Value();
  return post(info,
              [list = listOf(info[0]), rounds, samples, limit = limitOf(info[3])](Session& session, MakeValue& value) {
                auto milliseconds = std::make_shared<std::vector<double>>();
                auto failed = session.time(list, rounds, samples, limit, *milliseconds);
                value = [milliseconds](Napi::Env env) {
                  auto array = Napi::Float64Array::New(env, milliseconds->size());
                  for (size_t i = 0; i < milliseconds->size(); i++) array[i] = (*milliseconds)[i];
                  return array;
                };
                return failed;
              });
}

Napi::Value Device::close(const Napi::CallbackInfo& info) {
  Pending* pending = begin(info);
  const Napi::Promise promise = pending->deferred.Promise();
  postClose([pending] { pending->settle(std::nullopt, nullptr); });
  return promise;
}

void Device::postClose(std::function<void()> closed) {
  closed_ = true;
  for (CUdeviceptr address : allocated_) postFree(address);
  allocated_.clear();
  worker_->post([session = session_, closed = std::move(closed)] {
    session->close();
    closed();
  });
}
