import type { FieldBits } from './codec.js';
import { KvforgeError } from './errors.js';

const widths: readonly FieldBits[] = [0, 2, 4, 6, 8];

/**
 * Widths of the coefficient groups with the least expected error under a budget, by dynamic programming (Shard, "Keys"):
 * a group of variance v costs `4 v` without bits (losing a direction is far worse than quantising it) and
 * `v / (3 * 4^b)` with b.
 *
 * @param parts.variances of the components, one each: the eigenvalues of the second-moment matrix, descending
 * @param parts.group components that share a width; the last group may be shorter
 * @param parts.budget bits a token for all components together
 * @throws KvforgeError `wrong-use` for a variance that is negative or no number, or a budget below 0
 * @example
 * allocateBits({ variances: [900, 900, 1, 1], group: 2, budget: 16 }); // [6, 2]
 */
export function allocateBits(parts: {
  readonly variances: readonly number[];
  readonly group: number;
  readonly budget: number;
}): FieldBits[] {
  const { variances, group, budget } = parts;
  const refuse = (at: string, expected: string, received: unknown): never => {
    throw new KvforgeError('wrong-use', { at, expected, received: String(received), hint: 'Pass the eigenvalues.' });
  };
  if (!Number.isInteger(group) || group < 1) refuse('group', 'a whole number from 1 on', group);
  if (!Number.isFinite(budget) || budget < 0) refuse('budget', 'a number of bits, at least 0', budget);
  for (const [i, variance] of variances.entries()) {
    if (!Number.isFinite(variance) || variance < 0) refuse(`variances[${i}]`, 'a finite number, at least 0', variance);
  }
  const groups = Array.from({ length: Math.ceil(variances.length / group) }, (_, i) => {
    const members = variances.slice(i * group, (i + 1) * group);
    return { size: members.length, variance: members.reduce((sum, variance) => sum + variance, 0) };
  });
  const limit = Math.floor(Math.min(budget, variances.length * 8));
  // best[spent]: least cost of the groups so far that spends exactly so many bits, and how.
  let best = new Map<number, { readonly cost: number; readonly chosen: readonly FieldBits[] }>([
    [0, { cost: 0, chosen: [] }],
  ]);
  for (const { size, variance } of groups) {
    const next: typeof best = new Map();
    for (const [spent, { cost, chosen }] of best) {
      for (const bits of widths) {
        const total = spent + size * bits;
        if (total > limit) break;
        const sum = cost + (bits === 0 ? 4 * variance : variance / (3 * 4 ** bits));
        const known = next.get(total);
        if (!known || sum < known.cost) next.set(total, { cost: sum, chosen: [...chosen, bits] });
      }
    }
    best = next;
  }
  let winner: { readonly cost: number; readonly chosen: readonly FieldBits[] } | undefined;
  for (const candidate of best.values()) if (!winner || candidate.cost < winner.cost) winner = candidate;
  return [...winner!.chosen];
}
