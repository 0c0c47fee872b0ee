import { allocationError } from './waterFilling.js';

/** Where the field of a group lies among the nibbles of its head: `bit` counts 8 a byte plane. */
export interface FieldPlace {
  readonly bits: number;
  /** 0 for a group without bits. */
  readonly bit: number;
  /** Rank by `bit` among the groups of the head that have bits; 0 for a group without. */
  readonly slot: number;
}

/** The fields of one head. */
export interface HeadFields {
  readonly groups: readonly FieldPlace[];
  /** Two for every byte plane, and one for a nibble plane after them. */
  readonly nibbles: number;
}

/**
 * Places fields in byte planes, the first one with room, widest fields first and of equal ones the lower group; the last
 * plane is a nibble plane where its fields have 4 bits together, or fewer.
 *
 * @example
 * placeFields([5, 3, 2]).nibbles; // 3
 */
export function placeFields(widths: readonly number[]): HeadFields {
  const planes: number[] = [];
  const bits = widths.map(() => 0);
  const order = widths.map((_, group) => group).sort((a, b) => widths[b]! - widths[a]! || a - b);
  for (const group of order) {
    const width = widths[group]!;
    if (width === 0) continue;
    let plane = planes.findIndex((used) => used + width <= 8);
    if (plane < 0) plane = planes.push(0) - 1;
    bits[group] = 8 * plane + planes[plane]!;
    planes[plane]! += width;
  }
  const groups = widths.map((width, group) => ({
    bits: width,
    bit: bits[group]!,
    slot: width === 0 ? 0 : widths.filter((other, i) => other > 0 && bits[i]! < bits[group]!).length,
  }));
  const nibbles = planes.length * 2 - (planes.length > 0 && planes.at(-1)! <= 4 ? 1 : 0);
  return { groups, nibbles };
}

/** Every list of so many widths that do not ascend: wider ones are worth more where variances descend. */
function* descendingWidths(groups: number, widest = 8): Generator<readonly number[]> {
  if (groups === 0) {
    yield [];
    return;
  }
  for (const width of [8, 6, 5, 4, 3, 2, 1, 0]) {
    if (width > widest) continue;
    for (const rest of descendingWidths(groups - 1, width)) yield [width, ...rest];
  }
}

interface Candidate {
  readonly widths: readonly number[];
  /** Nibbles. */
  readonly taken: number;
}

const candidates = new Map<number, readonly Candidate[]>();

/** Every list of widths for so many groups, and the nibbles that their fields take. */
function candidatesOf(groups: number): readonly Candidate[] {
  const known = candidates.get(groups);
  if (known) return known;
  const all = [...descendingWidths(groups)].map((widths) => ({ widths, taken: placeFields(widths).nibbles }));
  candidates.set(groups, all);
  return all;
}

interface Allocated {
  readonly widths: readonly number[];
  readonly error: number;
}

/**
 * The widths of least expected error whose fields fit into a row: of every head the best widths for every number of
 * nibbles, by trying all, and then the best share of the nibbles for every head.
 *
 * @param variances of whole groups, [heads][groups of a head], descending in each head
 * @param nibbles of a row, for all heads together
 */
export function fittingWidths(variances: readonly number[], headGroups: number, nibbles: number): readonly number[] {
  // best[n]: of the heads so far, in n nibbles or fewer.
  let best: readonly Allocated[] = Array.from({ length: nibbles + 1 }, () => ({ widths: [], error: 0 }));
  for (let first = 0; first < variances.length; first += headGroups) {
    const own = variances.slice(first, first + headGroups);
    const ofHead = new Map<number, Allocated>();
    for (const { widths, taken } of candidatesOf(headGroups)) {
      const error = allocationError(own, widths);
      if (error < (ofHead.get(taken)?.error ?? Number.POSITIVE_INFINITY)) ofHead.set(taken, { widths, error });
    }
    best = best.map((_, room) => {
      let least: Allocated = { widths: [], error: Number.POSITIVE_INFINITY };
      for (const [taken, { widths, error }] of ofHead) {
        const rest = best[room - taken];
        if (rest && rest.error + error < least.error) {
          least = { widths: [...rest.widths, ...widths], error: rest.error + error };
        }
      }
      return least;
    });
  }
  return best[nibbles]!.widths;
}
