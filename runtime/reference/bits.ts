/** Widths a group of coefficients may get, in bits. */
export const widths = [0, 2, 4, 6, 8] as const;

export interface BitGroups {
  /** Variance of each component. */
  readonly variances: ArrayLike<number>;
  /** Components that share one width; the last group may be shorter. */
  readonly group: number;
  /** Bits one token may take over all components. */
  readonly budget: number;
}

interface Group {
  readonly size: number;
  readonly variance: number;
}

/** Expected cost of coding a group: dropping a direction is far worse than quantising it. */
export function groupCost(variance: number, bits: number): number {
  return bits === 0 ? variance * 4 : variance / (3 * 4 ** bits);
}

/**
 * The widths of least total cost within the budget, one a group; exact, by dynamic programming over the bits spent.
 * Of equal costs the one of fewer bits wins.
 *
 * @example
 * allocateBits({ variances: [8, 8, 1, 1], group: 2, budget: 12 }); // [4, 2]
 */
export function allocateBits(groups: BitGroups): number[] {
  const list = groupsOf(groups);
  // least[spent]: lowest cost of the groups so far at exactly that many bits a token; chosen: how it was reached.
  let least = new Float64Array(groups.budget + 1).fill(Infinity);
  least[0] = 0;
  const chosen: Int8Array[] = [];
  for (const { size, variance } of list) {
    const next = new Float64Array(groups.budget + 1).fill(Infinity);
    const choice = new Int8Array(groups.budget + 1).fill(-1);
    for (const bits of widths) {
      for (let spent = bits * size; spent <= groups.budget; spent++) {
        const cost = least[spent - bits * size]! + groupCost(variance, bits);
        if (cost < next[spent]!) {
          next[spent] = cost;
          choice[spent] = bits;
        }
      }
    }
    least = next;
    chosen.push(choice);
  }
  let spent = least.indexOf(Math.min(...least));
  const allocation: number[] = [];
  for (let g = list.length - 1; g >= 0; g--) {
    const bits = chosen[g]![spent]!;
    allocation.unshift(bits);
    spent -= bits * list[g]!.size;
  }
  return allocation;
}

/** Total cost of an allocation. */
export function allocationCost(groups: BitGroups, allocation: readonly number[]): number {
  return groupsOf(groups).reduce((sum, { variance }, g) => sum + groupCost(variance, allocation[g]!), 0);
}

/** The least cost within the budget by trying all 5^groups allocations: the judge of `allocateBits` in tests. */
export function leastCostByBruteForce(groups: BitGroups): number {
  const list = groupsOf(groups);
  const search = (g: number, left: number): number => {
    if (g === list.length) return 0;
    const { size, variance } = list[g]!;
    const costs = widths
      .filter((bits) => bits * size <= left)
      .map((bits) => groupCost(variance, bits) + search(g + 1, left - bits * size));
    return Math.min(...costs);
  };
  return search(0, groups.budget);
}

function groupsOf({ variances, group }: BitGroups): Group[] {
  const list: Group[] = [];
  for (let start = 0; start < variances.length; start += group) {
    const end = Math.min(start + group, variances.length);
    let variance = 0;
    for (let r = start; r < end; r++) variance += variances[r]!;
    list.push({ size: end - start, variance });
  }
  return list;
}
