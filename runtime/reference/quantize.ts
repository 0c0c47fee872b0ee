import { f16round } from '@petamoriken/float16';

/** The largest finite float16. */
export const largestHalf = 65504;

/** Rounds to float16; what is too large for it becomes its largest value, so that a stored scale is never infinite. */
export function toHalf(x: number): number {
  return f16round(Math.max(-largestHalf, Math.min(largestHalf, x)));
}

/** Rounds to the nearest integer, halves to the even one, as GPUs do. */
export function nearestInteger(x: number): number {
  const below = Math.floor(x);
  const rest = x - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

export interface Quantized {
  /** In [-(2^(bits-1)-1), 2^(bits-1)-1]. */
  readonly codes: Int32Array;
  /** A float16; value = code * scale. */
  readonly scale: number;
}

/**
 * Symmetric integer quantisation with one scale, `max|x| / (2^(bits-1)-1)` rounded to float16.
 * A scale of zero (all values zero, or too small for float16) gives codes of zero, and so does a width of 0 bits.
 *
 * @param values finite
 * @param bits 0, or 2 to 16
 * @example
 * quantize(Float64Array.of(7, -3.4), 4); // { codes: [7, -3], scale: 1 }
 */
export function quantize(values: Float64Array, bits: number): Quantized {
  const codes = new Int32Array(values.length);
  if (bits === 0) return { codes, scale: 0 };
  const limit = 2 ** (bits - 1) - 1;
  let largest = 0;
  for (const value of values) largest = Math.max(largest, Math.abs(value));
  const scale = toHalf(largest / limit);
  if (scale === 0) return { codes, scale };
  for (let i = 0; i < values.length; i++) {
    // The rounded scale may be below max/limit, and then the largest value would round past the range.
    codes[i] = Math.max(-limit, Math.min(limit, nearestInteger(values[i]! / scale)));
  }
  return { codes, scale };
}
