/** Some components of a part, coded with so many bits. */
export interface GroupChoice {
  /** The first component. */
  readonly start: number;
  readonly components: number;
  readonly bits: number;
  /** Bits that the group takes of every coded token. */
  readonly cost: number;
  /** What is left of its squares. */
  readonly error: number;
}

/** How the components of one basis may be coded. */
export interface PartChoices {
  readonly width: number;
  /** [width + 1]: the squares from each component on, which are lost where nothing from there on is coded. */
  readonly tail: ArrayLike<number>;
  readonly choices: readonly GroupChoice[];
}

export interface Allocated {
  /** For every part its groups, from the first component on without a gap; the components after them are left out. */
  readonly groups: readonly (readonly GroupChoice[])[];
  readonly error: number;
}

/** Cells that the parts are combined over: beyond this many, the parts share the budget in larger steps. */
const mostCells = 2 ** 26;
/** Cells of a part's table, 64 MB: beyond, as for a width of 1024 and 6 bits a channel, costs count in larger steps. */
const mostTableCells = 2 ** 23;

/**
 * Gives the groups of least error whose costs are within a budget, by dynamic programming: first every part by itself for
 * all budgets, then which part gets how much. Costs count as rounded up to 1/`finest` of a bit: on that grid nothing is
 * better, unless parts are so wide or so many that the grid has to be a coarser one.
 *
 * @param most that will be asked for
 * @returns what a budget buys, in bits of a coded token for all parts together; more than `most` buys no more
 * @example
 * const choices = [{ start: 0, components: 1, bits: 2, cost: 2, error: 1 }];
 * bitAllocator([{ width: 1, tail: [9, 0], choices }], 8)(2).error; // 1
 */
export function bitAllocator(parts: readonly PartChoices[], most: number, finest = 8): (budget: number) => Allocated {
  const steps = affordableSteps(parts, most, finest);
  const spendable = parts.map((part) => mostUnits(part, steps));
  const cells = Math.min(Math.floor(most * steps), sum(spendable));
  const own = spendable.map((units) => Math.min(cells, units));
  const work = cells * sum(own);
  const share = Math.max(1, Math.ceil(Math.sqrt(work / mostCells)));
  const coarse = Math.floor(cells / share);
  const unitsFor = (part: number, shares: number) => Math.min(shares * share, own[part]!);

  let best = new Float64Array(coarse + 1);
  const taken: Int32Array[] = [];
  for (const [index, part] of parts.entries()) {
    const least = leastErrors(part, own[index]!, steps)[0]!;
    const curve = Float64Array.from({ length: Math.ceil(own[index]! / share) + 1 }, (_, shares) => {
      return least[unitsFor(index, shares)]!;
    });
    const next = new Float64Array(coarse + 1).fill(Number.POSITIVE_INFINITY);
    const from = new Int32Array(coarse + 1);
    for (let total = 0; total <= coarse; total++) {
      for (let shares = 0; shares <= total && shares < curve.length; shares++) {
        const error = best[total - shares]! + curve[shares]!;
        if (error < next[total]!) {
          next[total] = error;
          from[total] = shares;
        }
      }
    }
    best = next;
    taken.push(from);
  }

  return (budget) => {
    const whole = Math.min(Math.floor((budget * steps) / share), coarse);
    const groups: (readonly GroupChoice[])[] = [];
    let left = whole;
    for (let index = parts.length - 1; index >= 0; index--) {
      const shares = taken[index]![left]!;
      groups.unshift(groupsOf(parts[index]!, unitsFor(index, shares), steps));
      left -= shares;
    }
    return { groups, error: best[whole]! };
  };
}

const sum = (numbers: readonly number[]) => numbers.reduce((total, each) => total + each, 0);
const unitsOf = ({ cost }: GroupChoice, steps: number) => Math.ceil(cost * steps);

/** Steps of a bit, `finest` or so many fewer that every part's table has memory. */
function affordableSteps(parts: readonly PartChoices[], most: number, finest: number): number {
  const cells = parts.map((part) => (part.width + 1) * Math.min(most * finest, mostUnits(part, finest)));
  return finest * Math.min(1, mostTableCells / Math.max(1, ...cells));
}

/** More than this no part can spend. */
function mostUnits({ width, choices }: PartChoices, steps: number): number {
  const most = new Float64Array(width + 1);
  for (let start = width - 1; start >= 0; start--) {
    for (const choice of choices) {
      if (choice.start !== start) continue;
      most[start] = Math.max(most[start]!, unitsOf(choice, steps) + most[start + choice.components]!);
    }
  }
  return most[0]!;
}

/** [component][units]: the least error from a component on, with so many units left. */
function leastErrors({ width, tail, choices }: PartChoices, units: number, steps: number): readonly Float64Array[] {
  const least = Array.from({ length: width + 1 }, (_, start) => new Float64Array(units + 1).fill(tail[start]!));
  for (const choice of [...choices].sort((a, b) => b.start - a.start)) {
    const [here, after] = [least[choice.start]!, least[choice.start + choice.components]!];
    const cost = unitsOf(choice, steps);
    for (let left = cost; left <= units; left++) {
      const error = choice.error + after[left - cost]!;
      if (error < here[left]!) here[left] = error;
    }
  }
  return least;
}

/** The choices behind the least error. They are found again from the errors: keeping them would take a table more. */
function groupsOf(part: PartChoices, units: number, steps: number): readonly GroupChoice[] {
  const least = leastErrors(part, units, steps);
  const groups: GroupChoice[] = [];
  let [start, left] = [0, units];
  while (least[start]![left]! < part.tail[start]!) {
    const chosen = part.choices.find((choice) => {
      const cost = unitsOf(choice, steps);
      if (choice.start !== start || cost > left) return false;
      return choice.error + least[start + choice.components]![left - cost]! === least[start]![left]!;
    })!;
    groups.push(chosen);
    start += chosen.components;
    left -= unitsOf(chosen, steps);
  }
  return groups;
}
