import fc from 'fast-check';
import { expect, test } from 'vitest';
import { allocateBits, allocationCost, groupCost, leastCostByBruteForce } from '../../../runtime/reference/index.js';

test('a dropped group costs four times its variance, a coded one a third of it over 4^bits', () => {
  expect(groupCost(6, 0)).toBe(24);
  expect(groupCost(6, 2)).toBe(6 / 48);
});

test('bits go where the variance is', () => {
  expect(allocateBits({ variances: [8, 8, 1, 1], group: 2, budget: 12 })).toEqual([4, 2]);
  expect(allocateBits({ variances: [1, 1, 8, 8], group: 2, budget: 4 })).toEqual([0, 2]);
  expect(allocateBits({ variances: [1, 1], group: 1, budget: 0 })).toEqual([0, 0]);
  expect(allocateBits({ variances: [1], group: 64, budget: 100 })).toEqual([8]);
});

test('a group without variance is given no bits', () => {
  expect(allocateBits({ variances: [1, 0], group: 1, budget: 16 })).toEqual([8, 0]);
});

test('the allocation fits the budget and costs what brute force finds, also with a shorter last group', () => {
  const variances = fc.array(fc.double({ min: 0, max: 1e6, noNaN: true }), { maxLength: 12 });
  fc.assert(
    fc.property(variances, fc.integer({ min: 2, max: 5 }), fc.nat(100), (list, group, budget) => {
      const groups = { variances: list, group, budget };
      const allocation = allocateBits(groups);
      const sizes = allocation.map((_, g) => Math.min(group, list.length - g * group));
      const spent = allocation.reduce((sum, bits, g) => sum + bits * sizes[g]!, 0);
      const least = leastCostByBruteForce(groups);
      return spent <= budget && Math.abs(allocationCost(groups, allocation) - least) <= 1e-12 * least;
    }),
  );
});
