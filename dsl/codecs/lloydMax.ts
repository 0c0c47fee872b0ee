import erf from '@stdlib/math-base-special-erf';
import erfinv from '@stdlib/math-base-special-erfinv';
import type { ScalarCodec } from '../codec.js';
import { f16, f32, type Lookup, min, type Static, sqrt, u32 } from '../device.js';

export interface LloydMaxParams {
  /** Bits of a code; 8 is what Shard ships. */
  readonly bits: 2 | 3 | 4 | 8;
}

/**
 * An f16 norm, and the Lloyd-Max levels of a Gaussian with variance 1/d for the unit vector of the d numbers that share
 * it: after the Hadamard transform what Shard makes of generated tokens ("Stream") and TurboQuant of all. It cannot
 * drift, because nothing in it is fitted.
 *
 * @example
 * lloydMax({ bits: 8 })
 */
export function lloydMax(params: LloydMaxParams): ScalarCodec {
  return {
    kind: 'scalar',
    name: 'lloydMax',
    bits: params.bits,
    levels: (headDim) => lloydMaxLevels(params.bits, headDim),
    device: { scale: vectorNorm, code: nearestLevel, value: levelValue },
  };
}

/**
 * The Lloyd-Max codebook of N(0, 1/d), ascending: at most 100 rounds, stopped when no level moves by more than 1e-9
 * (Lloyd 1982; Max 1960). It starts at the quantiles of N(0, 3/d), the best density of levels when there are many
 * (Panter and Dite 1951): from the quantiles of N(0, 1/d) itself, 100 rounds leave 8 bits at four times the error bound.
 *
 * @example
 * lloydMaxLevels(2, 64).length; // 4
 */
export function lloydMaxLevels(bits: number, headDim: number): number[] {
  const sigma = 1 / Math.sqrt(headDim);
  const count = 2 ** bits;
  const cumulative = (z: number) => 0.5 * (1 + erf(z / Math.SQRT2));
  const density = (z: number) => Math.exp(-0.5 * z * z) / Math.sqrt(2 * Math.PI);
  let levels = Array.from({ length: count }, (_, i) => sigma * Math.sqrt(6) * erfinv((2 * i + 1) / count - 1));
  for (let round = 0; round < 100; round++) {
    const edges = levels.slice(1).map((level, i) => (level + levels[i]!) / 2 / sigma);
    const next = levels.map((_, i) => {
      const low = i === 0 ? Number.NEGATIVE_INFINITY : edges[i - 1]!;
      const high = i === count - 1 ? Number.POSITIVE_INFINITY : edges[i]!;
      return (sigma * (density(low) - density(high))) / (cumulative(high) - cumulative(low));
    });
    const moved = Math.max(...next.map((level, i) => Math.abs(level - levels[i]!)));
    levels = next;
    if (moved < 1e-9) break;
  }
  return levels;
}

/** The norm of the vector, stored as f16: the codebook is for the unit sphere. */
export function vectorNorm(sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  // The largest magnitude is taken out first, so that f16 extremes do not overflow or vanish when squared.
  return f32(f16(min(sqrt(sumOfSquares) * maxAbs, 65504)));
}

/** Index of the level nearest to `x` (a channel over its norm), by bisection of the midpoints. */
export function nearestLevel(x: f32, levels: Lookup<f32>, bits: Static<u32>): u32 {
  'device';
  let code: u32 = 0;
  for (let step = 0; step < bits; step++) {
    const probe = u32(code + u32(1 << (bits - 1 - step)));
    if (x * 2 > levels(u32(probe - 1)) + levels(probe)) {
      code = probe;
    }
  }
  return code;
}

/** The value of a code on the unit sphere. */
export function levelValue(code: u32, levels: Lookup<f32>): f32 {
  'device';
  return levels(code);
}
