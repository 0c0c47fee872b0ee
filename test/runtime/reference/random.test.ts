import { expect, test } from 'vitest';
import { normalFrom, seededRandom } from '../../../runtime/reference/index.js';

test('the same seed repeats, numbers lie in [0, 1) and spread evenly', () => {
  const numbers = (seed: number) => Array.from({ length: 10000 }, seededRandom(seed));
  expect(numbers(1)).toEqual(numbers(1));
  expect(numbers(1)).not.toEqual(numbers(2));
  expect(numbers(1).every((x) => x >= 0 && x < 1)).toBe(true);
  expect(numbers(1).reduce((sum, x) => sum + x, 0) / 10000).toBeCloseTo(0.5, 1);
});

test('normal numbers have mean 0 and variance 1', () => {
  const random = seededRandom(1);
  const numbers = Array.from({ length: 20000 }, () => normalFrom(random));
  expect(numbers.reduce((sum, x) => sum + x, 0) / 20000).toBeCloseTo(0, 1);
  expect(numbers.reduce((sum, x) => sum + x * x, 0) / 20000).toBeCloseTo(1, 1);
});
