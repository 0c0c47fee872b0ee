/** One way to code a layer. */
export interface LayerOption {
  /** A whole number. */
  readonly bytes: number;
  /** Not negative; errors of layers are added. */
  readonly error: number;
}

/** An option for every layer. */
export interface Assignment {
  /** Of each layer, the index of its option. */
  readonly chosen: readonly number[];
  /** Of all layers together. */
  readonly bytes: number;
  readonly error: number;
}

export interface LeastError {
  /** For each budget; undefined where even the smallest options take more. */
  readonly assignments: readonly (Assignment | undefined)[];
  /** Bytes of a cell of the grid. */
  readonly unit: number;
  /** Whether the unit divides all differences in bytes: no other assignment within the budget has a smaller error. */
  readonly exact: boolean;
}

/**
 * For each budget the option of every layer with the least sum of errors: the multiple-choice knapsack, by dynamic
 * programming over bytes beyond those of the smallest options (Kellerer, Pferschy and Pisinger 2004, section 11.5).
 *
 * The grid's unit is the greatest common divisor of all differences, which loses nothing, unless that takes more than
 * `cells` cells: then the unit is a multiple, bytes count as rounded up to it, and an assignment may leave so much less
 * than a unit of every layer unused, but never takes more than the budget.
 *
 * @param layers options of each layer, one at least
 * @param budgets bytes of all layers together
 * @param cells of the grid; time and memory grow with cells times layers
 * @example
 * const layers = [[{ bytes: 10, error: 4 }, { bytes: 20, error: 1 }], [{ bytes: 10, error: 2 }, { bytes: 20, error: 1 }]];
 * leastError(layers, [30]).assignments[0]; // { chosen: [1, 0], bytes: 30, error: 3 }
 */
export function leastError(
  layers: readonly (readonly LayerOption[])[],
  budgets: readonly number[],
  cells = 2 ** 20,
): LeastError {
  const fronts = layers.map(front);
  const smallest = fronts.map((places) => places[0]!.bytes);
  const base = smallest.reduce((sum, bytes) => sum + bytes, 0);
  const most = fronts.reduce((sum, places) => sum + places.at(-1)!.bytes, 0) - base;
  const width = Math.min(Math.max(0, ...budgets.map((budget) => budget - base)), most);
  const divisor = fronts.reduce(
    (all, places, i) => places.reduce((d, { bytes }) => gcd(d, bytes - smallest[i]!), all),
    0,
  );
  const finest = Math.max(divisor, 1);
  const unit = finest * Math.max(1, Math.ceil(width / finest / cells));
  const steps = fronts.map((places, i) => places.map(({ bytes }) => Math.ceil((bytes - smallest[i]!) / unit)));
  // With the largest options everywhere what rounding up adds is no matter.
  const all = steps.reduce((sum, each) => sum + each.at(-1)!, 0);
  const cellOf = (budget: number) => (budget - base >= most ? all : Math.min(all, Math.floor((budget - base) / unit)));
  const taken = tableOf(fronts, steps, Math.max(0, ...budgets.map(cellOf)));
  const assignments = budgets.map((budget): Assignment | undefined => {
    if (budget < base) return undefined;
    let cell = cellOf(budget);
    const chosen = new Array<number>(layers.length);
    for (let i = layers.length - 1; i >= 0; i--) {
      const place = taken[i]![cell]!;
      chosen[i] = fronts[i]![place]!.index;
      cell -= steps[i]![place]!;
    }
    const options = chosen.map((index, i) => layers[i]![index]!);
    const total = (of: (option: LayerOption) => number) => options.reduce((sum, option) => sum + of(option), 0);
    return { chosen, bytes: total(({ bytes }) => bytes), error: total(({ error }) => error) };
  });
  return { assignments, unit, exact: unit === finest };
}

interface Place extends LayerOption {
  /** Among the options as they were given. */
  readonly index: number;
}

/** Options that no other has as few bytes and as small an error as; the smallest first. */
function front(options: readonly LayerOption[]): readonly Place[] {
  const sorted = options
    .map(({ bytes, error }, index) => ({ bytes, error, index }))
    .sort((a, b) => a.bytes - b.bytes || a.error - b.error || a.index - b.index);
  const kept: Place[] = [];
  for (const place of sorted) {
    if (kept.length === 0 || place.error < kept.at(-1)!.error) kept.push(place);
  }
  return kept;
}

/** For each layer and each number of cells that it and those before it may take: which place on its front it takes. */
function tableOf(
  fronts: readonly (readonly Place[])[],
  steps: readonly (readonly number[])[],
  last: number,
): readonly Uint16Array[] {
  let before = new Float64Array(last + 1);
  return fronts.map((places, i) => {
    const least = new Float64Array(last + 1);
    const taken = new Uint16Array(last + 1);
    for (let cell = 0; cell <= last; cell++) {
      least[cell] = Infinity;
      for (let place = 0; place < places.length && steps[i]![place]! <= cell; place++) {
        const error = before[cell - steps[i]![place]!]! + places[place]!.error;
        // The smaller option stays where both have one error.
        if (error < least[cell]!) [least[cell], taken[cell]] = [error, place];
      }
    }
    before = least;
    return taken;
  });
}

function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}
