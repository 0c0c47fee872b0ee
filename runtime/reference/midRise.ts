import { toHalf } from './quantize.js';

export interface MidRise {
  /** In [-2^(bits-1), 2^(bits-1) - 1]; zero without bits. */
  readonly codes: Int32Array;
  /** The step, a float16; value = (code + 1/2) * scale. */
  readonly scale: number;
}

/**
 * Uniform levels at odd multiples of half a step: the range [-max, max] in 2^bits steps, and for one bit plus and minus
 * the mean magnitude.
 *
 * @param values finite
 * @param bits 0 to 8
 * @example
 * midRise(Float64Array.of(4, -1), 2); // { codes: [1, -1], scale: 2 }
 */
export function midRise(values: Float64Array, bits: number): MidRise {
  const codes = new Int32Array(values.length);
  if (bits === 0) return { codes, scale: 0 };
  const magnitudes = values.map(Math.abs);
  const mean = magnitudes.reduce((sum, x) => sum + x, 0) / Math.max(1, values.length);
  const scale = toHalf(bits === 1 ? 2 * mean : (2 * magnitudes.reduce((a, b) => Math.max(a, b), 0)) / 2 ** bits);
  if (scale === 0) return { codes, scale };
  const half = 2 ** (bits - 1);
  for (let i = 0; i < values.length; i++) {
    codes[i] = Math.max(-half, Math.min(half - 1, Math.floor(values[i]! / scale)));
  }
  return { codes, scale };
}
