import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { allocateBits } from '../../dsl/index.js';
import { allocationCost, leastCostByBruteForce } from '../../runtime/reference/index.js';

describe('allocateBits', () => {
  it('gives wide groups to strong components', () => {
    expect(allocateBits({ variances: [900, 900, 1, 1], group: 2, budget: 16 })).toEqual([6, 2]);
    expect(allocateBits({ variances: [900, 900, 1, 1], group: 2, budget: 0 })).toEqual([0, 0]);
    expect(allocateBits({ variances: [1, 1, 1, 1], group: 2, budget: 1000 })).toEqual([8, 8]);
    expect(allocateBits({ variances: [], group: 64, budget: 10 })).toEqual([]);
  });

  it('costs what the best of all allocations costs, within the budget', () => {
    const draw = fc.record({
      variances: fc.array(fc.double({ min: 0, max: 100, noNaN: true }), { minLength: 1, maxLength: 10 }),
      group: fc.integer({ min: 1, max: 4 }),
      budget: fc.integer({ min: 0, max: 80 }),
    });
    fc.assert(
      fc.property(draw, (parts) => {
        fc.pre(Math.ceil(parts.variances.length / parts.group) <= 5);
        const bits = allocateBits(parts);
        const spent = parts.variances.reduce((sum, _, i) => sum + bits[Math.floor(i / parts.group)]!, 0);
        expect(spent).toBeLessThanOrEqual(parts.budget);
        expect(allocationCost(parts, bits)).toBeCloseTo(leastCostByBruteForce(parts), 9);
      }),
      { numRuns: 200 },
    );
  });

  it('refuses what is no spectrum', () => {
    expect(() => allocateBits({ variances: [1, -1], group: 1, budget: 4 })).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: variances[1]: expected a finite number, at least 0, got -1. Pass the eigenvalues.]`,
    );
    expect(() => allocateBits({ variances: [1, Number.NaN], group: 1, budget: 4 })).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: variances[1]: expected a finite number, at least 0, got NaN. Pass the eigenvalues.]`,
    );
    expect(() => allocateBits({ variances: [1], group: 1, budget: -4 })).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: budget: expected a number of bits, at least 0, got -4. Pass the eigenvalues.]`,
    );
  });
});
