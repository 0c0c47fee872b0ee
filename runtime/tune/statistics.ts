/** A measured time: the median of its samples, and how far they lie apart. */
export interface Measured {
  readonly microseconds: number;
  /** Median absolute deviation from the median, in microseconds. */
  readonly spread: number;
}

/** @param values at least one */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** @param samples at least one */
export function measuredFrom(samples: readonly number[]): Measured {
  const microseconds = median(samples);
  return { microseconds, spread: median(samples.map((sample) => Math.abs(sample - microseconds))) };
}

/** Part of the faster median: times that scatter more than this say too little to call anything slower as fast. */
const mostNoise = 0.1;

/**
 * Whether the medians are apart by no more than the samples themselves are, and by a tenth of the faster one at most:
 * 1.4826 times a median absolute deviation is a standard deviation where the noise is normal.
 */
export function withinNoise(a: Measured, b: Measured): boolean {
  const noise = 1.4826 * (a.spread + b.spread);
  const most = mostNoise * Math.min(a.microseconds, b.microseconds);
  return Math.abs(a.microseconds - b.microseconds) <= Math.min(noise, most);
}

/** Ranks from 1; equal numbers share the mean of theirs. */
function ranks(values: readonly number[]): readonly number[] {
  return values.map((value) => {
    const below = values.filter((other) => other < value).length;
    const equal = values.filter((other) => other === value).length;
    return below + (equal + 1) / 2;
  });
}

/**
 * Spearman's rank correlation: 1 where both orders agree, -1 where one is the other reversed; undefined where there is no
 * order, with fewer than two pairs or all of one side equal.
 */
export function rankCorrelation(a: readonly number[], b: readonly number[]): number | undefined {
  const [x, y] = [ranks(a), ranks(b)];
  const mean = (a.length + 1) / 2;
  const product = (u: readonly number[], v: readonly number[]) =>
    u.reduce((sum, value, i) => sum + (value - mean) * (v[i]! - mean), 0);
  const scale = Math.sqrt(product(x, x) * product(y, y));
  return scale > 0 ? product(x, y) / scale : undefined;
}
