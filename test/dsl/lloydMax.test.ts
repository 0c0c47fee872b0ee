import { describe, expect, it } from 'vitest';
import { lloydMaxLevels } from '../../dsl/index.js';
import { normalBetween, normalDensity, lloydMaxLevels as publishedLevels } from '../../runtime/reference/index.js';

/** Expected squared error of a table for N(0, 1), by the normal distribution alone. */
function meanSquaredError(levels: readonly number[]): number {
  return levels.reduce((sum, level, i) => {
    const low = i === 0 ? Number.NEGATIVE_INFINITY : (levels[i - 1]! + level) / 2;
    const high = i === levels.length - 1 ? Number.POSITIVE_INFINITY : (level + levels[i + 1]!) / 2;
    const edge = (z: number) => (Number.isFinite(z) ? z * normalDensity(z) : 0);
    const density = (z: number) => (Number.isFinite(z) ? normalDensity(z) : 0);
    const mass = normalBetween(low, high);
    // Second moment, first moment and mass of the cell give the integral of (x - level)^2.
    return sum + mass + edge(low) - edge(high) - 2 * level * (density(low) - density(high)) + level * level * mass;
  }, 0);
}

describe('lloydMaxLevels', () => {
  it.each([2, 3, 4, 8])(
    'stays below the error bound sqrt(3) pi / 2 * 4^-b at %i bits, above what no quantiser beats',
    (bits) => {
      const unit = lloydMaxLevels(bits, 1);
      const error = meanSquaredError(unit);
      expect(error).toBeLessThanOrEqual(((Math.sqrt(3) * Math.PI) / 2) * 4 ** -bits);
      expect(error).toBeGreaterThanOrEqual(4 ** -bits);
    },
  );

  it.each([2, 3])('is the published table at %i bits, where 100 rounds reach the fixed point', (bits) => {
    const published = publishedLevels(bits, 64);
    const spacing = Math.min(...published.slice(1).map((level, i) => level - published[i]!));
    lloydMaxLevels(bits, 64).forEach((level, i) => {
      expect(Math.abs(level - published[i]!)).toBeLessThan(1e-5 * spacing);
    });
  });

  it('costs at 4 bits what the published rounds cost when they are carried on to their fixed point', () => {
    const converged = meanSquaredError([...publishedLevels(4, 1, 5000)]);
    expect(meanSquaredError(lloydMaxLevels(4, 1)) / converged).toBeLessThan(1.001);
  });

  it('scales with the deviation of the channels', () => {
    const [wide, narrow] = [lloydMaxLevels(3, 16), lloydMaxLevels(3, 64)];
    wide.forEach((level, i) => {
      expect(level / narrow[i]!).toBeCloseTo(2, 6);
    });
  });
});
