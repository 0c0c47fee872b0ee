#include "failure.h"

Napi::Error toError(Napi::Env env, const Failure& failure) {
  Napi::Error error = Napi::Error::New(env, failure.call + ": " + (failure.name.empty() ? failure.text : failure.name));
  Napi::Object value = error.Value();
  value.Set("call", failure.call);
  value.Set("code", failure.code);
  value.Set("cudaName", failure.name);
  value.Set("text", failure.text);
  value.Set("launch", failure.launch);
  return error;
}
