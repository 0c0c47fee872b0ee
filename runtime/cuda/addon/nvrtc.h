// The compiler of CUDA text. It is opened when a text has to be compiled, and not before.
#pragma once

#include <napi.h>

// openNvrtc(paths: string[]): Promise<{ path, version, architectures: number[] }>
Napi::Value openNvrtc(const Napi::CallbackInfo& info);
// compile({ name, source, headerName, header, options: string[], ptx: boolean }): Promise<Uint8Array>; each call has a
// thread of its own
Napi::Value compile(const Napi::CallbackInfo& info);
