// Vector makers, bit casts and arithmetic of CUDA. Functions of libm are declared, not included.
#pragma once

KVF_INLINE float2 make_float2(float x, float y) { return float2{x, y}; }
KVF_INLINE float3 make_float3(float x, float y, float z) { return float3{x, y, z}; }
KVF_INLINE float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
KVF_INLINE uint2 make_uint2(u32 x, u32 y) { return uint2{x, y}; }
KVF_INLINE uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return uint4{x, y, z, w}; }
KVF_INLINE int2 make_int2(i32 x, i32 y) { return int2{x, y}; }
KVF_INLINE int4 make_int4(i32 x, i32 y, i32 z, i32 w) { return int4{x, y, z, w}; }

KVF_INLINE u32 __float_as_uint(float value) { return kvf_float_bits(value); }
KVF_INLINE i32 __float_as_int(float value) { return static_cast<i32>(kvf_float_bits(value)); }
KVF_INLINE float __uint_as_float(u32 bits) { return kvf_bits_float(bits); }
KVF_INLINE float __int_as_float(i32 bits) { return kvf_bits_float(static_cast<u32>(bits)); }

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

extern "C" {
float expf(float) noexcept;
float exp2f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float log10f(float) noexcept;
float log1pf(float) noexcept;
float expm1f(float) noexcept;
float powf(float, float) noexcept;
float fmodf(float, float) noexcept;
float ldexpf(float, int) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
float tanhf(float) noexcept;
float sqrtf(float) noexcept;
double sqrt(double) noexcept;
float fabsf(float) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
float truncf(float) noexcept;
float rintf(float) noexcept;
float roundf(float) noexcept;
float fmaf(float, float, float) noexcept;
float copysignf(float, float) noexcept;
int abs(int) noexcept;
}

// As on the hardware: of a number and a NaN, the number.
KVF_INLINE float fminf(float a, float b) { return a < b || b != b ? a : b; }
KVF_INLINE float fmaxf(float a, float b) { return a > b || b != b ? a : b; }
KVF_INLINE float rsqrtf(float value) { return 1.0f / sqrtf(value); }
KVF_INLINE float __expf(float value) { return expf(value); }
KVF_INLINE float __logf(float value) { return logf(value); }
KVF_INLINE float __fdividef(float a, float b) { return a / b; }
KVF_INLINE float __fdiv_rn(float a, float b) { return a / b; }
KVF_INLINE float __frcp_rn(float value) { return 1.0f / value; }
KVF_INLINE float __fsqrt_rn(float value) { return sqrtf(value); }
KVF_INLINE float __fadd_rn(float a, float b) { return a + b; }
KVF_INLINE float __fsub_rn(float a, float b) { return a - b; }
KVF_INLINE float __fmul_rn(float a, float b) { return a * b; }
KVF_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
KVF_INLINE bool isnan(float value) { return value != value; }
KVF_INLINE bool isinf(float value) { return fabsf(value) == INFINITY; }
KVF_INLINE bool isfinite(float value) { return fabsf(value) < INFINITY; }

KVF_INLINE i32 min(i32 a, i32 b) { return a < b ? a : b; }
KVF_INLINE i32 max(i32 a, i32 b) { return a > b ? a : b; }
KVF_INLINE u32 min(u32 a, u32 b) { return a < b ? a : b; }
KVF_INLINE u32 max(u32 a, u32 b) { return a > b ? a : b; }
KVF_INLINE u64 min(u64 a, u64 b) { return a < b ? a : b; }
KVF_INLINE u64 max(u64 a, u64 b) { return a > b ? a : b; }
KVF_INLINE float min(float a, float b) { return fminf(a, b); }
KVF_INLINE float max(float a, float b) { return fmaxf(a, b); }
KVF_INLINE i32 clamp(i32 value, i32 low, i32 high) { return min(max(value, low), high); }
KVF_INLINE u32 clamp(u32 value, u32 low, u32 high) { return min(max(value, low), high); }
KVF_INLINE float clamp(float value, float low, float high) { return fminf(fmaxf(value, low), high); }

// The hardware saturates out-of-range conversions and turns NaN into 0; C++ leaves them undefined.
KVF_INLINE i32 __float2int_rn(float value) {
  const float whole = rintf(value);
  return whole != whole ? 0 : whole >= 0x1p31f ? 0x7fffffff : whole < -0x1p31f ? -0x7fffffff - 1 : static_cast<i32>(whole);
}
KVF_INLINE i32 __float2int_rz(float value) { return __float2int_rn(truncf(value)); }
KVF_INLINE u32 __float2uint_rn(float value) {
  const float whole = rintf(value);
  return !(whole > 0.0f) ? 0u : whole >= 0x1p32f ? 0xffffffffu : static_cast<u32>(whole);
}
KVF_INLINE u32 __float2uint_rz(float value) { return __float2uint_rn(truncf(value)); }
KVF_INLINE float __int2float_rn(i32 value) { return static_cast<float>(value); }
KVF_INLINE float __uint2float_rn(u32 value) { return static_cast<float>(value); }

KVF_INLINE int __popc(u32 value) { return __builtin_popcount(value); }
KVF_INLINE int __clz(i32 value) { return value == 0 ? 32 : __builtin_clz(static_cast<u32>(value)); }
KVF_INLINE int __ffs(i32 value) { return __builtin_ffs(value); }
KVF_INLINE u32 __umulhi(u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); }
KVF_INLINE u32 __brev(u32 value) {
  u32 reversed = 0;
  for (u32 bit = 0; bit < 32; ++bit) reversed |= (value >> bit & 1u) << (31 - bit);
  return reversed;
}
KVF_INLINE u32 __funnelshift_r(u32 low, u32 high, u32 shift) {
  return static_cast<u32>((static_cast<u64>(high) << 32 | low) >> (shift & 31u));
}
KVF_INLINE u32 __funnelshift_l(u32 low, u32 high, u32 shift) {
  return static_cast<u32>((static_cast<u64>(high) << 32 | low) << (shift & 31u) >> 32);
}
KVF_INLINE u32 __byte_perm(u32 x, u32 y, u32 selector) {
  const u64 bytes = static_cast<u64>(y) << 32 | x;
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 pick = selector >> 4 * i & 0xfu;
    u32 byte = static_cast<u32>(bytes >> 8 * (pick & 7u)) & 0xffu;
    if (pick & 8u) byte = byte & 0x80u ? 0xffu : 0u;
    result |= byte << 8 * i;
  }
  return result;
}
KVF_INLINE i32 __dp4a(i32 a, i32 b, i32 sum) {
  for (u32 i = 0; i < 4; ++i) sum += static_cast<signed char>(a >> 8 * i) * static_cast<signed char>(b >> 8 * i);
  return sum;
}
KVF_INLINE u32 __dp4a(u32 a, u32 b, u32 sum) {
  for (u32 i = 0; i < 4; ++i) sum += (a >> 8 * i & 0xffu) * (b >> 8 * i & 0xffu);
  return sum;
}
