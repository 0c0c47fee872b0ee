import type { ShardParts } from './shard.js';

export interface IdentityInput {
  /** [d], before RoPE. */
  readonly query: Float64Array;
  readonly queryPosition: number;
  readonly kvHead: number;
  /** Index into the middle. */
  readonly token: number;
}

/**
 * The score of a query against a middle key, `q.k_hat` without the factor 1/sqrt(d), from the codes and never from the
 * key: a second witness that `decodeShard` followed by a dot product must agree with.
 *
 * With D = query position - key position, pair j = channels (a, b) = (j, j + d/2), c the codes:
 * `sum over j of cos(theta_j D)(u_j.c + u0_j) + sin(theta_j D)(w_j.c + w0_j)`, where
 * `u_jr = s_r(q_a B_ra + q_b B_rb)`, `w_jr = s_r(q_a B_rb - q_b B_ra)` and u0, w0 are the same with the mean.
 *
 * @example
 * identityScore(parts, { query, queryPosition: 2047, kvHead: 0, token: 5 });
 */
export function identityScore(parts: ShardParts, { query, queryPosition, kvHead, token }: IdentityInput): number {
  const { middle, invFreq, headDim: d } = parts;
  const { rank } = middle;
  const distance = queryPosition - (middle.firstPosition + token);
  let score = 0;
  for (let j = 0; j < d / 2; j++) {
    const queryA = query[j]!;
    const queryB = query[j + d / 2]!;
    const rowA = kvHead * d + j;
    const rowB = rowA + d / 2;
    let u = queryA * middle.mean[rowA]! + queryB * middle.mean[rowB]!;
    let w = queryA * middle.mean[rowB]! - queryB * middle.mean[rowA]!;
    for (let r = 0; r < rank; r++) {
      const basisA = middle.basisScales[r]! * middle.basisCodes[rowA * rank + r]!;
      const basisB = middle.basisScales[r]! * middle.basisCodes[rowB * rank + r]!;
      const coefficient = middle.coefficientScales[r]! * middle.coefficientCodes[token * rank + r]!;
      u += coefficient * (queryA * basisA + queryB * basisB);
      w += coefficient * (queryA * basisB - queryB * basisA);
    }
    score += Math.cos(invFreq[j]! * distance) * u + Math.sin(invFreq[j]! * distance) * w;
  }
  return score;
}
