import type { ScalarCodec } from '../codec.js';
import { abs, bitsOf, f16, f32, fromBits, type Lookup, min, round, type Static, u32 } from '../device.js';

export interface Float8Params {
  /** `'e4m3'`: 3 bits of mantissa, up to 448; `'e5m2'`: 2 bits, up to 57344. */
  readonly format: 'e4m3' | 'e5m2';
}

/**
 * Bytes of FP8 (OCP 8-bit Floating Point Specification 1.0), with the largest magnitude at the largest finite number. A
 * code is the byte itself, so that hardware can convert it.
 *
 * What a byte stands for is its number times 2^-8 (e4m3) or 2^-15 (e5m2), at most 1.75 either way: with the numbers
 * themselves the f16 scale of e5m2 would be subnormal below a magnitude of 3.5, and zero below 0.0017. Coding rounds to
 * nearest, ties to even, and saturates; it never writes the bytes of NaN and infinity, which the levels give finite numbers.
 *
 * @example
 * float8({ format: 'e4m3' }).levels(128)[0x7e]! * 2 ** 8; // 448
 */
export function float8({ format }: Float8Params): ScalarCodec {
  const [name, mantissa, code, value] =
    format === 'e4m3'
      ? (['float8e4m3', 3, e4m3Code, e4m3Value] as const)
      : (['float8e5m2', 2, e5m2Code, e5m2Value] as const);
  return {
    kind: 'scalar',
    name,
    bits: 8,
    levels: () => Array.from({ length: 256 }, (_, byte) => float8Value(byte, mantissa)),
    device: { scale: float8Scale, code, value },
  };
}

/** The scale that maps the largest magnitude to 1.75, stored as f16: 1.75 is all ones of e4m3's 448 and e5m2's 57344. */
export function float8Scale(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  return f32(f16(min(maxAbs / 1.75, 65504)));
}

/** The nearest byte of e4m3, ties to even; saturates at 448 * 2^-8. */
export function e4m3Code(x: f32, _levels: Lookup<f32>, bits: Static<u32>): u32 {
  'device';
  return u32(float8Magnitude(x, 3) | u32(x < 0 ? 1 << (bits - 1) : 0));
}

/** The nearest byte of e5m2, ties to even; saturates at 57344 * 2^-15. */
export function e5m2Code(x: f32, _levels: Lookup<f32>, bits: Static<u32>): u32 {
  'device';
  return u32(float8Magnitude(x, 2) | u32(x < 0 ? 1 << (bits - 1) : 0));
}

/** The number of an e4m3 byte times 2^-8. */
export function e4m3Value(code: u32, _levels: Lookup<f32>): f32 {
  'device';
  return float8Value(code, 3);
}

/** The number of an e5m2 byte times 2^-15. */
export function e5m2Value(code: u32, _levels: Lookup<f32>): f32 {
  'device';
  return float8Value(code, 2);
}

/*
 * A byte is a sign, an exponent and `mantissa` bits. Times the factor above, an exponent e >= 1 stands for 2^(e - top), with
 * `top` the largest exponent of a finite number; where e is 0 there is no implicit one, and numbers are multiples of
 * 2^(1 - top - mantissa). Neither way passes through a subnormal float32, which WebGPU may flush to zero.
 */

/** The nearest byte of |x| with so many bits of mantissa. */
export function float8Magnitude(x: f32, mantissa: Static<u32>): u32 {
  'device';
  const top = u32(mantissa === 3 ? 15 : 30);
  const dropped = u32(23 - mantissa);
  const magnitude = min(abs(x), 1.75);
  const bits = bitsOf(magnitude);
  let code: u32 = 0;
  if (bits < u32((128 - top) << 23)) {
    code = u32(round(magnitude * fromBits(u32((126 + top + mantissa) << 23))));
  } else {
    // Half of the last place that is kept, less one where that place is even; a carry goes into the exponent, as it should.
    const half = u32((1 << (dropped - 1)) - 1);
    code = u32(u32(u32(bits + u32(half + u32((bits >>> dropped) & 1))) >>> dropped) - u32((127 - top) << mantissa));
  }
  return code;
}

/** What a byte with so many bits of mantissa stands for. */
export function float8Value(code: u32, mantissa: Static<u32>): f32 {
  'device';
  const top = u32(mantissa === 3 ? 15 : 30);
  const magnitude = u32(code & 127);
  let value = f32(magnitude) * fromBits(u32((128 - top - mantissa) << 23));
  if (magnitude >= u32(1 << mantissa)) {
    value = fromBits(u32(u32(magnitude << u32(23 - mantissa)) + u32((127 - top) << 23)));
  }
  return code < 128 ? value : -value;
}
