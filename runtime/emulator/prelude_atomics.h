// Atomic functions of CUDA. Fibers switch only at collectives, so a plain update is atomic; the host does it to check it.
#pragma once

KVF_INLINE u32 atomicAdd(u32* address, u32 value) { return kvf_atomic(address, kvf_atomic_add, value, 0); }
KVF_INLINE i32 atomicAdd(i32* address, i32 value) {
  return static_cast<i32>(kvf_atomic(address, kvf_atomic_add, static_cast<u32>(value), 0));
}
KVF_INLINE float atomicAdd(float* address, float value) {
  return kvf_bits_float(kvf_atomic(address, kvf_atomic_add_float, kvf_float_bits(value), 0));
}
KVF_INLINE u32 atomicSub(u32* address, u32 value) { return kvf_atomic(address, kvf_atomic_add, 0u - value, 0); }
KVF_INLINE u32 atomicMax(u32* address, u32 value) { return kvf_atomic(address, kvf_atomic_max, value, 0); }
KVF_INLINE i32 atomicMax(i32* address, i32 value) {
  return static_cast<i32>(kvf_atomic(address, kvf_atomic_max_signed, static_cast<u32>(value), 0));
}
KVF_INLINE u32 atomicMin(u32* address, u32 value) { return kvf_atomic(address, kvf_atomic_min, value, 0); }
KVF_INLINE i32 atomicMin(i32* address, i32 value) {
  return static_cast<i32>(kvf_atomic(address, kvf_atomic_min_signed, static_cast<u32>(value), 0));
}
KVF_INLINE u32 atomicAnd(u32* address, u32 value) { return kvf_atomic(address, kvf_atomic_and, value, 0); }
KVF_INLINE u32 atomicOr(u32* address, u32 value) { return kvf_atomic(address, kvf_atomic_or, value, 0); }
KVF_INLINE u32 atomicXor(u32* address, u32 value) { return kvf_atomic(address, kvf_atomic_xor, value, 0); }
KVF_INLINE u32 atomicExch(u32* address, u32 value) { return kvf_atomic(address, kvf_atomic_exchange, value, 0); }
KVF_INLINE i32 atomicExch(i32* address, i32 value) {
  return static_cast<i32>(kvf_atomic(address, kvf_atomic_exchange, static_cast<u32>(value), 0));
}
KVF_INLINE float atomicExch(float* address, float value) {
  return kvf_bits_float(kvf_atomic(address, kvf_atomic_exchange, kvf_float_bits(value), 0));
}
KVF_INLINE u32 atomicCAS(u32* address, u32 compare, u32 value) {
  return kvf_atomic(address, kvf_atomic_compare_exchange, value, compare);
}
KVF_INLINE i32 atomicCAS(i32* address, i32 compare, i32 value) {
  return static_cast<i32>(
      kvf_atomic(address, kvf_atomic_compare_exchange, static_cast<u32>(value), static_cast<u32>(compare)));
}
