import { expect, test } from 'vitest';
import { inverseNormalCdf, normalBetween, normalCdf } from '../../../runtime/reference/index.js';

// Published values of the distribution to 16 digits.
test.each([
  [0, 0.5],
  [-0.5, 0.3085375387259869],
  [-1, 0.15865525393145705],
  [-2, 0.02275013194817921],
  [-3, 0.0013498980316300946],
  [-5, 2.866515718791939e-7],
  [-8, 6.220960574271785e-16],
  [1, 0.8413447460685429],
  [Infinity, 1],
  [-Infinity, 0],
])('P(X < %d) = %d', (x, p) => {
  expect(Math.abs(normalCdf(x) - p)).toBeLessThanOrEqual(1e-13 * p);
});

test('series and continued fraction meet', () => {
  const gap = normalBetween(2.5 - 1e-9, 2.5) / 1e-9;
  expect(gap).toBeCloseTo(0.0175283, 6);
});

test('the inverse gives the quantile back', () => {
  expect(inverseNormalCdf(0.025)).toBeCloseTo(-1.959963984540054, 13);
  expect(inverseNormalCdf(0.975)).toBeCloseTo(1.959963984540054, 13);
  expect(inverseNormalCdf(0.5)).toBeCloseTo(0, 14);
  for (const p of [1e-12, 1e-3, 0.2, 0.499, 0.7, 0.999]) {
    expect(Math.abs(normalCdf(inverseNormalCdf(p)) / p - 1)).toBeLessThan(1e-12);
  }
});
