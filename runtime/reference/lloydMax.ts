import { hadamard } from './hadamard.js';
import { inverseNormalCdf, normalBetween, normalDensity } from './normal.js';
import { toHalf } from './quantize.js';

/**
 * The 2^bits levels of the Lloyd-Max quantizer of N(0, 1/d), ascending: started at the quantiles (i + 1/2) / 2^bits,
 * then each level goes to the mean of its cell, whose edges are midpoints; ended after `rounds`, or when no level
 * moves by 1e-9 or more.
 *
 * The scheme's limit is 100 rounds, which 8 bits do not converge in: their error stays at 1.5e-4 of a unit vector's
 * square, where a converged table gives 4e-5. So the rounds are part of the definition.
 *
 * @param d channels of the unit vectors it is for
 * @returns [2^bits]
 * @example
 * lloydMaxLevels(1, 1); // [-Math.sqrt(2 / Math.PI), Math.sqrt(2 / Math.PI)], to rounding
 */
export function lloydMaxLevels(bits: number, d: number, rounds = 100): Float64Array {
  const count = 2 ** bits;
  const sigma = 1 / Math.sqrt(d);
  let levels = Float64Array.from({ length: count }, (_, i) => inverseNormalCdf((i + 0.5) / count) * sigma);
  for (let round = 0; round < rounds; round++) {
    const next = levels.map((level, i) => {
      const from = i === 0 ? -Infinity : (levels[i - 1]! + level) / 2 / sigma;
      const to = i === count - 1 ? Infinity : (level + levels[i + 1]!) / 2 / sigma;
      return (sigma * (normalDensity(from) - normalDensity(to))) / normalBetween(from, to);
    });
    const moved = next.reduce((largest, level, i) => Math.max(largest, Math.abs(level - levels[i]!)), 0);
    levels = next;
    if (moved < 1e-9) break;
  }
  return levels;
}

/** Index of the level nearest to x; of equally near ones the first. */
export function nearestLevel(x: number, levels: Float64Array): number {
  let best = 0;
  for (let i = 1; i < levels.length; i++) {
    if (Math.abs(levels[i]! - x) < Math.abs(levels[best]! - x)) best = i;
  }
  return best;
}

export interface StreamVector {
  /** [d] */
  readonly codes: Uint16Array;
  /** Euclidean length of the vector, float16. */
  readonly norm: number;
}

/**
 * Codes one vector without any data-dependent table: Hadamard, divide by its length, each channel to the nearest level.
 * A vector of zeros decodes to zeros, as its norm is zero.
 *
 * @param x [d]
 */
export function encodeStream(x: Float64Array, levels: Float64Array): StreamVector {
  const turned = hadamard(x);
  const length = Math.hypot(...turned);
  const codes = Uint16Array.from(turned, (channel) => nearestLevel(length === 0 ? 0 : channel / length, levels));
  return { codes, norm: toHalf(length) };
}

/** @returns [d] */
export function decodeStream({ codes, norm }: StreamVector, levels: Float64Array): Float64Array {
  return hadamard(Float64Array.from(codes, (code) => levels[code]! * norm));
}
