import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { allocationError, bestWidths, errorBound } from '../../../runtime/reference/index.js';

const widths = [0, 1, 2, 3, 4, 5, 6, 8];
const variances = (most: number) =>
  fc.array(
    fc.oneof(
      fc.constant(0),
      fc.double({ min: -9, max: 9, noNaN: true }).map((x) => 10 ** x),
    ),
    {
      minLength: 1,
      maxLength: most,
    },
  );

/** Every table of widths, one by one. */
function* tables(groups: number): Generator<number[]> {
  if (groups === 0) {
    yield [];
    return;
  }
  for (const rest of tables(groups - 1)) for (const width of widths) yield [...rest, width];
}

describe('bestWidths', () => {
  it('finds the least error of all tables within the budget', () => {
    fc.assert(
      fc.property(variances(4), fc.integer({ min: 0, max: 34 }), (given, units) => {
        let least = Number.POSITIVE_INFINITY;
        for (const bits of tables(given.length)) {
          if (bits.reduce((a, b) => a + b, 0) <= units) least = Math.min(least, allocationError(given, bits));
        }
        const { bits, error } = bestWidths(given, units);
        expect(bits.reduce((a, b) => a + b, 0)).toBeLessThanOrEqual(units);
        expect(allocationError(given, bits)).toBeCloseTo(error, 12);
        expect(Math.abs(error - least)).toBeLessThanOrEqual(1e-12 * least);
      }),
      { numRuns: 100 },
    );
  });

  it('never gets below the bound of duality, and is close to it where groups are many', () => {
    fc.assert(
      fc.property(variances(40), fc.integer({ min: 0, max: 330 }), (given, units) => {
        const { error } = bestWidths(given, units);
        expect(errorBound(given, units)).toBeLessThanOrEqual(error * (1 + 1e-9));
      }),
      { numRuns: 200 },
    );
    const smooth = Array.from({ length: 64 }, (_, i) => 1.2 ** -i);
    expect(errorBound(smooth, 128)).toBeGreaterThan(0.98 * bestWidths(smooth, 128).error);
  });

  it('gives large variances more bits, zeros none, and everything 8 when there is plenty', () => {
    expect(bestWidths([90, 1], 8).bits).toEqual([6, 2]);
    expect(bestWidths([1, 0, 0], 24).bits).toEqual([8, 0, 0]);
    expect(bestWidths([3, 2, 1], 24).bits).toEqual([8, 8, 8]);
    expect(bestWidths([3, 2, 1], 0)).toEqual({ bits: [0, 0, 0], error: 6 });
  });

  it('knows no width of 7 bits', () => {
    expect(allocationError([1], [7])).toBe(Number.POSITIVE_INFINITY);
  });
});
