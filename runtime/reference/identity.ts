import { pairChannels } from './rope.js';
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
 * With D = query position - key position, pair j = channels (a, b), c the codes:
 * `sum over j of cos(theta_j D)(u_j.c + u0_j) + sin(theta_j D)(w_j.c + w0_j)`, where
 * `u_jr = s_r(q_a B_ra + q_b B_rb)`, `w_jr = s_r(q_a B_rb - q_b B_ra)` and u0, w0 are the same with the mean. A channel
 * that is not rotated adds `q_a (B_a.c + mu_a)`, as a pair of frequency zero would.
 *
 * @example
 * const parts = encodeShard(exact, model, options);
 * identityScore(parts, { query: vectorAt(queries, 0, 0), queryPosition: 48, kvHead: 0, token: 5 });
 */
export function identityScore(parts: ShardParts, { query, queryPosition, kvHead, token }: IdentityInput): number {
  const { middle, rope, headDim: d } = parts;
  const { rank } = middle;
  const basisAt = (row: number, r: number) =>
    (middle.basisScales[r]! * middle.basisCodes[row * rank + r]!) / middle.weights[row]!;
  const distance = queryPosition - (middle.firstPosition + token);
  let score = 0;
  const rotary = rope.invFreq.map((frequency, j) => ({ frequency, channels: pairChannels(rope, j) }));
  const others = Array.from({ length: d / 2 - rotary.length }, (_, j) => {
    const first = 2 * (rotary.length + j);
    return { frequency: 0, channels: [first, first + 1] as const };
  });
  for (const { frequency, channels } of [...rotary, ...others]) {
    const [queryA, queryB] = [query[channels[0]]!, query[channels[1]]!];
    const [rowA, rowB] = [kvHead * d + channels[0], kvHead * d + channels[1]];
    let u = queryA * middle.mean[rowA]! + queryB * middle.mean[rowB]!;
    let w = queryA * middle.mean[rowB]! - queryB * middle.mean[rowA]!;
    for (let r = 0; r < rank; r++) {
      const [basisA, basisB] = [basisAt(rowA, r), basisAt(rowB, r)];
      const code = middle.coefficientCodes[token * rank + r]! + middle.codeOffset;
      const coefficient = middle.coefficientScales[r]! * code;
      u += coefficient * (queryA * basisA + queryB * basisB);
      w += coefficient * (queryA * basisB - queryB * basisA);
    }
    score += Math.cos(frequency * distance) * u + Math.sin(frequency * distance) * w;
  }
  return score;
}
