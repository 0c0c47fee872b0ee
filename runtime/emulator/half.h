// Conversions between f16 and f32 in integer arithmetic: the same bits on every machine, and the bits of `cvt.rn`.
#pragma once
#include "types.h"

static inline u32 kvf_float_bits(float value) {
  u32 bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

static inline float kvf_bits_float(u32 bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

static inline float half_to_float(u16 half) {
  const u32 sign = static_cast<u32>(half & 0x8000u) << 16;
  const u32 rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return kvf_bits_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x0400u) return kvf_bits_float(sign | (rest + 0x1c000u) << 13);
  // A subnormal is an integer multiple of 2^-24, which f32 holds exactly.
  return kvf_bits_float(sign | kvf_float_bits(static_cast<float>(rest) * 0x1p-24f));
}

// Rounds to nearest, ties to even; past 65519.99 the result is infinity; NaN becomes 0x7fff, as on the hardware.
static inline u16 float_to_half(float value) {
  const u32 bits = kvf_float_bits(value);
  const u32 sign = bits >> 16 & 0x8000u;
  const u32 rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return 0x7fff;
  if (rest >= 0x477ff000u) return static_cast<u16>(sign | 0x7c00u);
  if (rest < 0x38800000u) {
    // Adding 0.5 puts the last bit of a half subnormal (2^-24) at the last bit of the f32, whose adder then rounds.
    const u32 shifted = kvf_float_bits(kvf_bits_float(rest) + 0.5f);
    return static_cast<u16>(sign | (shifted - 0x3f000000u));
  }
  const u32 odd = rest >> 13 & 1u;
  return static_cast<u16>(sign | (rest - 0x38000000u + 0xfffu + odd) >> 13);
}

static inline u16 float_to_half_saturated(float value) {
  if (value != value) return 0x7fff;
  return float_to_half(value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value);
}

static inline float round_to_half(float value) { return half_to_float(float_to_half(value)); }

static inline u32 pack_half2(float low, float high) {
  return static_cast<u32>(float_to_half(low)) | static_cast<u32>(float_to_half(high)) << 16;
}

static inline float2 unpack_half2(u32 pair) {
  return float2{half_to_float(static_cast<u16>(pair & 0xffffu)), half_to_float(static_cast<u16>(pair >> 16))};
}

static inline u32 multiply_half2(u32 first, u32 second) {
  const float2 a = unpack_half2(first);
  const float2 b = unpack_half2(second);
  return pack_half2(a.x * b.x, a.y * b.y);
}

// A product of halves is exact in f32, but not its sum with a third: that rounds twice, first to a double.
static inline u32 fma_half2(u32 first, u32 second, u32 third) {
  const float2 a = unpack_half2(first);
  const float2 b = unpack_half2(second);
  const float2 c = unpack_half2(third);
  return pack_half2(static_cast<float>(static_cast<double>(a.x) * b.x + c.x),
                    static_cast<float>(static_cast<double>(a.y) * b.y + c.y));
}

static inline void unpack_signed_bytes(u32 (&pairs)[2], u32 bytes) {
  for (u32 i = 0; i < 2; ++i) {
    pairs[i] = pack_half2(static_cast<signed char>(bytes >> 16 * i), static_cast<signed char>(bytes >> (16 * i + 8)));
  }
}
