import { measuredFrom } from '../tune/statistics.js';

/** What many samples of one time say. */
export interface Timing {
  /** Median, in microseconds. */
  readonly us: number;
  /** Median distance from the median. */
  readonly spread: number;
  readonly p10: number;
  readonly p90: number;
  readonly samples: number;
}

/**
 * Median, spread and tails: a mean would be moved by the one sample in which the machine did something else.
 *
 * @param samples microseconds, at least one
 */
export function timingOf(samples: readonly number[]): Timing {
  const sorted = [...samples].sort((a, b) => a - b);
  const { microseconds: us, spread } = measuredFrom(samples);
  return { us, spread, p10: quantile(sorted, 0.1), p90: quantile(sorted, 0.9), samples: samples.length };
}

/** Between the two samples next to it, in proportion. */
function quantile(sorted: readonly number[], part: number): number {
  const place = part * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below]! + (sorted[above]! - sorted[below]!) * (place - below);
}
