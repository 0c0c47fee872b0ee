import { KvforgeError } from '../dsl/errors.js';
import { trimUnits } from '../dsl/scheme.js';

export interface FitLevelsOptions {
  readonly bits: 2 | 3 | 4;
  /**
   * `'kmeans'`: least squared error, weighted, in at most 50 rounds. `'quantile'`: the medians of 2^bits parts of equal
   * weight, which spends levels where numbers are and not where errors are large. K-means if left out.
   */
  readonly method?: 'kmeans' | 'quantile';
  /** Share that each end of a block's range leaves out, as the scheme has it; 0.005 if left out. */
  readonly trim?: number;
  /** What an error at each number costs, of the shape of the samples: squared gradients of the loss (Fisher); all alike if left out. */
  readonly weights?: readonly ArrayLike<number>[];
  /** Moves and stretches the levels so that decoded samples have the mean and the deviation of the samples (Q-Norm). */
  readonly qNorm?: boolean;
}

/** Samples within their ranges, over these: what levels are fitted to. Ascending, no two alike. */
interface Distinct {
  readonly numbers: Float64Array;
  readonly weights: Float64Array;
  readonly counts: Float64Array;
}

/** Rounds of k-means, at most; samples of a model move by less than float32 can tell long before. */
const mostRounds = 50;

/**
 * The levels of `nuq` for samples of a model's keys, or values: one table for all of them (KVQuant, Hooper et al. 2024,
 * section 3.2). Every block is taken over its own range first, and numbers beyond that are left out, as outliers are kept
 * beside the codes. A block whose numbers are all one says nothing about levels and is left out too. With `qNorm` the levels
 * are those that decoding uses, and encoding takes the nearest of the same.
 *
 * @param samples a list for every block that shares a scale: a channel of a prompt (keys, before RoPE), a head of a token
 * @throws KvforgeError `invalid-input` for a number that is not finite or a weight that is not, with its place; for too few
 * different numbers
 * @example
 * const levels = fitLevels([[0, 1, 2, 3, 4, 5, 6, 7]], { bits: 2, trim: 0 });
 * levels.map((level) => 3.5 + 3.5 * level); // [0.5, 2.5, 4.5, 6.5]
 * nuq({ bits: 2, levels }).bits; // 2
 */
export function fitLevels(
  samples: readonly ArrayLike<number>[],
  { bits, method = 'kmeans', trim = 0.005, weights, qNorm = false }: FitLevelsOptions,
): readonly number[] {
  const count = 2 ** bits;
  const distinct = distinctOf(samples, weights, trim);
  if (distinct.numbers.length < count) {
    const expected = `at least ${count} different numbers within their ranges`;
    refuse('samples', expected, `${distinct.numbers.length}`, 'Give more samples, or take fewer bits.');
  }
  const fitted = method === 'kmeans' ? kMeans(distinct, count) : quantiles(distinct, count);
  const levels = qNorm ? normalized(distinct, fitted) : fitted;
  const twice = levels.findIndex((level, i) => i > 0 && !(Math.fround(level) > Math.fround(levels[i - 1]!)));
  if (twice > 0) {
    const hint = 'Many samples are one number; take fewer bits, or kmeans.';
    refuse('samples', `${count} different levels`, `${levels[twice]} twice`, hint);
  }
  return levels;
}

function refuse(at: string, expected: string, received: string, hint: string): never {
  throw new KvforgeError('invalid-input', { at, expected, received, hint });
}

function distinctOf(
  samples: readonly ArrayLike<number>[],
  weights: readonly ArrayLike<number>[] | undefined,
  trim: number,
): Distinct {
  if (weights && weights.length !== samples.length) {
    refuse('weights', `${samples.length} lists, as of the samples`, `${weights.length}`, 'Give one list a block.');
  }
  const most = samples.reduce((sum, block) => sum + block.length, 0);
  const within = { numbers: new Float64Array(most), weights: new Float64Array(most), used: 0 };
  for (const [index, block] of samples.entries()) takeRange(block, weights?.[index], { index, trim }, within);
  const { used } = within;
  const order = Uint32Array.from({ length: used }, (_, i) => i).sort((a, b) => within.numbers[a]! - within.numbers[b]!);
  const distinct = { numbers: new Float64Array(used), weights: new Float64Array(used), counts: new Float64Array(used) };
  let last = -1;
  for (const i of order) {
    const number = within.numbers[i]!;
    if (last < 0 || distinct.numbers[last] !== number) distinct.numbers[++last] = number;
    distinct.weights[last]! += within.weights[i]!;
    distinct.counts[last]! += 1;
  }
  if (used > 0 && distinct.weights.every((weight) => weight === 0)) {
    refuse('weights', 'one above 0', 'none', 'Leave them out where all numbers count alike.');
  }
  const own = (numbers: Float64Array) => numbers.subarray(0, last + 1);
  return { numbers: own(distinct.numbers), weights: own(distinct.weights), counts: own(distinct.counts) };
}

/** Adds the numbers of a block over half of its range, and their weights; none of a block that has no range. */
function takeRange(
  block: ArrayLike<number>,
  weights: ArrayLike<number> | undefined,
  { index, trim }: { readonly index: number; readonly trim: number },
  within: { readonly numbers: Float64Array; readonly weights: Float64Array; used: number },
): void {
  if (weights && weights.length !== block.length) {
    const hint = 'Give a weight for every number.';
    refuse(`weights[${index}]`, `${block.length} weights, as samples[${index}] has numbers`, `${weights.length}`, hint);
  }
  for (let i = 0; i < block.length; i++) {
    const hint = 'A model that gives this is at fault, or overflowed f16.';
    if (!Number.isFinite(block[i])) refuse(`samples[${index}][${i}]`, 'a finite number', String(block[i]), hint);
    const weight = weights?.[i] ?? 1;
    if (!(weight >= 0 && weight < Number.POSITIVE_INFINITY)) {
      refuse(`weights[${index}][${i}]`, 'a finite weight of at least 0', String(weight), 'Square the gradients.');
    }
  }
  const sorted = Float64Array.from(block).sort();
  const leftOut = Math.round((Math.round(trim * trimUnits) * block.length) / trimUnits);
  const [least, greatest] = [sorted[leftOut], sorted[sorted.length - 1 - leftOut]];
  if (least === undefined || greatest === undefined || !(greatest > least)) return;
  const [middle, half] = [(least + greatest) / 2, (greatest - least) / 2];
  for (let i = 0; i < block.length; i++) {
    const x = block[i]!;
    if (x < least || x > greatest) continue;
    within.numbers[within.used] = (x - middle) / half;
    within.weights[within.used++] = weights?.[i] ?? 1;
  }
}

/**
 * Lloyd's rounds; a level that no number is nearest to stays. They begin half-way between levels that equally many numbers
 * have and levels that are equally far apart, as those of least error are denser than the latter and less dense than the
 * former: from these, 50 rounds leave four bits of a Gaussian three times as far from them.
 */
function kMeans({ numbers, weights }: Distinct, count: number): readonly number[] {
  const part = (i: number) => Math.floor((i * numbers.length) / count);
  let levels = Array.from({ length: count }, (_, i) => {
    const own = numbers.subarray(part(i), part(i + 1));
    return (own.reduce((sum, x) => sum + x, 0) / own.length + (2 * i + 1) / count - 1) / 2;
  });
  for (let round = 0; round < mostRounds; round++) {
    const sums = new Float64Array(count);
    const totals = new Float64Array(count);
    for (const [i, level] of nearest(numbers, levels).entries()) {
      sums[level]! += weights[i]! * numbers[i]!;
      totals[level]! += weights[i]!;
    }
    const next = levels.map((level, i) => (totals[i]! > 0 ? sums[i]! / totals[i]! : level));
    const moved = Math.max(...next.map((level, i) => Math.abs(level - levels[i]!)));
    levels = next;
    if (moved < 1e-9) break;
  }
  return levels;
}

function quantiles({ numbers, weights }: Distinct, count: number): readonly number[] {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const levels: number[] = [];
  let below = 0;
  for (let i = 0; i < numbers.length; i++) {
    below += weights[i]!;
    while (levels.length < count && below > ((levels.length + 0.5) / count) * total) levels.push(numbers[i]!);
  }
  return levels;
}

/** Index of the level that each number is nearest to; both ascend. */
function nearest(numbers: Float64Array, levels: readonly number[]): Uint8Array {
  let level = 0;
  return Uint8Array.from(numbers, (x) => {
    while (level + 1 < levels.length && 2 * x > levels[level]! + levels[level + 1]!) level++;
    return level;
  });
}

/** The levels with which decoded numbers have the mean and the deviation of the numbers themselves. */
function normalized({ numbers, counts }: Distinct, levels: readonly number[]): readonly number[] {
  const taken = nearest(numbers, levels);
  const before = momentsOf(numbers, counts);
  const after = momentsOf(
    Float64Array.from(taken, (level) => levels[level]!),
    counts,
  );
  const scale = before.deviation / after.deviation;
  return levels.map((level) => before.mean + (level - after.mean) * scale);
}

function momentsOf(numbers: Float64Array, counts: Float64Array): { readonly mean: number; readonly deviation: number } {
  const total = counts.reduce((sum, count) => sum + count, 0);
  const mean = numbers.reduce((sum, x, i) => sum + counts[i]! * x, 0) / total;
  return { mean, deviation: Math.sqrt(numbers.reduce((sum, x, i) => sum + counts[i]! * (x - mean) ** 2, 0) / total) };
}
