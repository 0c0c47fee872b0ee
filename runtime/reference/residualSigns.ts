import { hadamard } from './hadamard.js';
import { toHalf } from './quantize.js';
import { type HeadTensor, vectorAt } from './shapes.js';

/** What is kept of what the codes of a middle leave of each token and head: signs of a projection, and a length. */
export interface ResidualSigns {
  /** [d], 1 or -1: what channels are multiplied with before the Hadamard transform, which together are the projection. */
  readonly projection: ArrayLike<number>;
  /** [M][kvHeads][d]; 1 where the projection is not below zero. */
  readonly signs: Uint8Array;
  /** [M][kvHeads], float16: the length of what is left. */
  readonly norms: Float64Array;
}

/**
 * A residual after its projection: an orthogonal one, so that lengths stay.
 *
 * @param residual [d], d a power of two
 * @example
 * projected(Float64Array.of(4, 0, 0, 0), [-1, 1, 1, 1]); // [-2, -2, -2, -2]
 */
export function projected(residual: Float64Array, projection: ArrayLike<number>): Float64Array {
  return hadamard(residual.map((x, i) => x * projection[i]!));
}

/**
 * What signs and a length stand for: sqrt(pi / 2d) |r| P' sign(P r), whose product with any vector is that of r in the mean
 * over random projections P (Zandieh et al. 2024, lemma 3.2, for rows of length sqrt(d)).
 *
 * @param signs [d], 1 or 0
 * @example
 * const length = Math.sqrt(8 / Math.PI);
 * residualOf(Uint8Array.of(1, 1, 1, 1), length, [-1, 1, 1, 1]); // [-2, 0, 0, 0], to rounding
 */
export function residualOf(signs: ArrayLike<number>, norm: number, projection: ArrayLike<number>): Float64Array {
  const sides = Float64Array.from(signs, (sign) => (sign === 1 ? 1 : -1));
  const size = Math.sqrt(Math.PI / (2 * sides.length)) * norm;
  return hadamard(sides).map((x, i) => x * size * projection[i]!);
}

/**
 * The signs and lengths of residuals.
 *
 * @param residuals [kvHeads][M][d]
 * @example
 * const residuals = { heads: 1, tokens: 1, channels: 2, data: Float64Array.of(0.6, -0.8) };
 * encodeResiduals(residuals, [1, 1]).norms; // [1]
 */
export function encodeResiduals(residuals: HeadTensor, projection: ArrayLike<number>): ResidualSigns {
  const { heads, tokens, channels: d } = residuals;
  const signs = new Uint8Array(tokens * heads * d);
  const norms = new Float64Array(tokens * heads);
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < heads; head++) {
      const residual = vectorAt(residuals, head, token);
      norms[token * heads + head] = toHalf(Math.hypot(...residual));
      signs.set(
        Uint8Array.from(projected(residual, projection), (x) => (x < 0 ? 0 : 1)),
        (token * heads + head) * d,
      );
    }
  }
  return { projection, signs, norms };
}
