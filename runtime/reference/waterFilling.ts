/** Where the largest of 4096 normal samples lies, in standard deviations, on average. */
const largest = 3.7;

/**
 * The share of its variance that a group is left with as error, by the bits of a component, for normal components:
 * without bits all, with one 1 - 2/pi, as two levels at the mean magnitude hold (E|x|)^2 = 2/pi of it, and with more the
 * mean square of an error that is even over a step of 2 * largest / 2^bits, which is largest^2 / (3 * 4^bits).
 */
export const midRiseShares: ReadonlyMap<number, number> = new Map([
  [0, 1],
  [1, 1 - 2 / Math.PI],
  ...[2, 3, 4, 5, 6, 8].map((bits) => [bits, largest ** 2 / (3 * 4 ** bits)] as const),
]);

export interface Allocation {
  /** Bits of a component, one number a group. */
  readonly bits: readonly number[];
  /** Expected error: the sum over groups of variance times the share that is left. */
  readonly error: number;
}

/**
 * Expected error of a table of widths; infinite for a width that does not exist.
 *
 * @example
 * allocationError([4, 1], [1, 0]); // 2.4535
 */
export function allocationError(variances: ArrayLike<number>, bits: ArrayLike<number>): number {
  let error = 0;
  for (let group = 0; group < variances.length; group++) {
    const share = midRiseShares.get(bits[group]!);
    error += share === undefined ? Number.POSITIVE_INFINITY : variances[group]! * share;
  }
  return error;
}

/**
 * The widths of least expected error whose sum is at most `units`, by dynamic programming: every group's rest is solved
 * once for every sum that is left to it.
 *
 * @param variances of whole groups, which are all as long
 * @param units bits of one component of every group together
 * @example
 * bestWidths([90, 1], 8).bits; // [6, 2]
 */
export function bestWidths(variances: ArrayLike<number>, units: number): Allocation {
  const solved = new Map<number, Allocation>();
  const rest = (group: number, left: number): Allocation => {
    if (group === variances.length) return { bits: [], error: 0 };
    const key = group * (units + 1) + left;
    let best = solved.get(key);
    if (best) return best;
    for (const [width, share] of midRiseShares) {
      if (width > left) break;
      const tail = rest(group + 1, left - width);
      const error = variances[group]! * share + tail.error;
      if (!best || error < best.error) best = { bits: [width, ...tail.bits], error };
    }
    solved.set(key, best!);
    return best!;
  };
  return rest(0, units);
}

/**
 * What no table of widths within the budget can get below: for a price of a bit, every group takes what is cheapest for
 * itself, and the price is bisected until the budget is just kept (Lagrangian duality). A second witness of `bestWidths`.
 */
export function errorBound(variances: ArrayLike<number>, units: number): number {
  const at = (price: number) => {
    let [spent, total] = [0, -price * units];
    for (let group = 0; group < variances.length; group++) {
      let [cheapest, width] = [Number.POSITIVE_INFINITY, 0];
      for (const [bits, share] of midRiseShares) {
        const cost = variances[group]! * share + price * bits;
        if (cost < cheapest) [cheapest, width] = [cost, bits];
      }
      spent += width;
      total += cheapest;
    }
    return { spent, total };
  };
  if (at(0).spent <= units) return at(0).total;
  let [low, high] = [0, Array.from(variances).reduce((a, b) => Math.max(a, b), 0)];
  for (let round = 0; round < 100; round++) {
    const middle = (low + high) / 2;
    if (at(middle).spent <= units) high = middle;
    else low = middle;
  }
  return Math.max(at(low).total, at(high).total);
}
