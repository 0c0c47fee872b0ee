import type { LowRankGeometry } from '../../dsl/geometry.js';
import { observedQueries } from '../../dsl/stages/observe.js';
import { allocationError, bestWidths, channelPairs, lastQueries, queryWeights } from '../reference/index.js';
import type { ObservedEvidence } from './checkObserved.js';
import { halfRounding, type Judge, Worst } from './judge.js';

/** Holds the weights of key channels to the last of the prompt's queries, and to the factors that the kernels found for their heads. */
export function checkWeights(
  g: LowRankGeometry,
  weights: Float64Array,
  { queries, headFactors }: ObservedEvidence,
  judge: Judge,
): void {
  const rounding = new Worst();
  const last = lastQueries(queries, observedQueries);
  for (const [channel, exact] of queryWeights(last, g.kvHeads, g.model.rope, headFactors).entries()) {
    const allowed = halfRounding(exact) + 1e-6 * exact;
    rounding.add(Math.abs(weights[channel]! - exact) / allowed, () => `channel ${channel}`);
  }
  judge.check(`keyWeights, over their rounding: ${rounding.at}`, rounding.error, 1);
  const uneven = new Worst();
  for (let head = 0; head < g.kvHeads; head++) {
    for (const [a, b] of channelPairs(g.model.rope, g.headDim)) {
      const [first, second] = [weights[head * g.headDim + a]!, weights[head * g.headDim + b]!];
      uneven.add(Math.abs(first - second), () => `KV head ${head}, channels ${a} and ${b}`);
    }
  }
  judge.check(`keyWeights, two channels of a pair: ${uneven.at}`, uneven.error, 0);
}

/** Holds the widths of the groups to the budget, and their expected error to the least there is. */
export function checkWidths(
  g: LowRankGeometry,
  bits: readonly number[],
  eigenvalues: ArrayLike<number>,
  judge: Judge,
): void {
  const units = g.keyRowWords * 2;
  const spent = bits.reduce((sum, width) => sum + width, 0);
  judge.check(`keyWidths ${bits.join()}: bits beyond the budget`, Math.max(0, spent - units) * 16, 0);
  const variances = Array.from({ length: g.allocatedGroups }, (_, group) => {
    let sum = 0;
    for (let i = 0; i < 16; i++) sum += Math.max(0, eigenvalues[group * 16 + i]!);
    return sum;
  });
  const least = bestWidths(variances, units).error;
  const excess = allocationError(variances, bits) - least;
  judge.check(`keyWidths ${bits.join()}: error beyond the least`, least > 0 ? excess / least : excess, 1e-6);
}
