import type { TiltFit } from '../reference/tiltEncode.js';
import { allocationError } from '../reference/waterFilling.js';

/** What a fit leaves of one layer's keys. */
export interface LayerSpectrum {
  /** Expected squared error of scores over their squares about the mean, 0 to 1, of all heads. */
  readonly error: number;
  readonly heads: readonly {
    /** Components that hold 90 % of the weighted variance. */
    readonly most: number;
    /** 99 %. */
    readonly nearly: number;
    /** Bits of each group of components. */
    readonly widths: readonly number[];
  }[];
}

/**
 * How far the variance of each head is concentrated, and the error that its widths leave.
 *
 * @param group components that share a width
 * @example
 * spectrumOf({ variances: [Float64Array.of(9, 1)], widths: [1, 0], weights, bases }, 1).heads[0]!.most; // 1
 */
export function spectrumOf({ variances, widths }: TiltFit, group: number): LayerSpectrum {
  const each = variances.flatMap((values) => [...values]);
  const total = each.reduce((sum, variance) => sum + variance, 0);
  const bits = each.map((_, component) => widths[Math.floor(component / group)]!);
  const heads = variances.map((values, head) => {
    const own = values.reduce((sum, variance) => sum + variance, 0);
    const holding = (share: number) => {
      let sum = 0;
      const last = values.findIndex((variance) => {
        sum += variance;
        return sum >= share * own * (1 - 1e-12);
      });
      return last + 1;
    };
    const groups = values.length / group;
    return { most: holding(0.9), nearly: holding(0.99), widths: widths.slice(head * groups, (head + 1) * groups) };
  });
  return { error: total === 0 ? 0 : allocationError(each, bits) / total, heads };
}
