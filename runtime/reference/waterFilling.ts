/** A width a group may get, and the share of its variance that is then left as error. */
const shares: readonly (readonly [bits: number, share: number])[] = [
  [0, 1],
  [1, 0.3634],
  [2, 0.1175],
  [3, 0.03454],
  [4, 0.009497],
  [5, 0.002499],
  [6, 0.000642],
  [8, 0.00004],
];

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
 * allocationError([4, 1], [1, 0]); // 2.4536
 */
export function allocationError(variances: ArrayLike<number>, bits: ArrayLike<number>): number {
  let error = 0;
  for (let group = 0; group < variances.length; group++) {
    const known = shares.find(([width]) => width === bits[group]);
    error += known ? variances[group]! * known[1] : Number.POSITIVE_INFINITY;
  }
  return error;
}

/**
 * The widths of least expected error whose sum is at most `units`: every group's rest is solved once for every sum that
 * is left to it.
 *
 * @param variances of whole groups, which are all as long
 * @param units bits of one component of every group together
 * @example
 * waterFill([900, 1], 8).bits; // [6, 2]
 */
export function waterFill(variances: ArrayLike<number>, units: number): Allocation {
  const solved = new Map<number, Allocation>();
  const rest = (group: number, left: number): Allocation => {
    if (group === variances.length) return { bits: [], error: 0 };
    const key = group * (units + 1) + left;
    let best = solved.get(key);
    if (best) return best;
    for (const [width, share] of shares) {
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
 * itself, and the price is bisected until the budget is just kept (Lagrangian duality). A second witness of `waterFill`.
 */
export function errorBound(variances: ArrayLike<number>, units: number): number {
  const at = (price: number) => {
    let [spent, total] = [0, -price * units];
    for (let group = 0; group < variances.length; group++) {
      let [cheapest, width] = [Number.POSITIVE_INFINITY, 0];
      for (const [bits, share] of shares) {
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
