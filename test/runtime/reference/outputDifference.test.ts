import { describe, expect, test } from 'vitest';
import { outputDifference } from '../../../runtime/reference/index.js';

const of = (...numbers: readonly number[]) => Float64Array.from(numbers);

describe('the difference of attention outputs', () => {
  // (3, 4) to (3, 0): the difference (0, -4) has length 4 of 5, and (0, -4).(3, 4) = -16 of 25.
  test('is the relative length of the error, and its part along the exact output', () => {
    const { error, bias } = outputDifference(of(3, 4), of(3, 0));
    expect(error).toBeCloseTo(0.8, 15);
    expect(bias).toBeCloseTo(-0.64, 15);
  });

  test('of outputs that shrink by 3 % is a bias of -0.03 and nothing else', () => {
    const exact = of(1, -2, 0.5, 8);
    const { error, bias } = outputDifference(
      exact,
      exact.map((x) => 0.97 * x),
    );
    expect(bias).toBeCloseTo(-0.03, 14);
    expect(error).toBeCloseTo(0.03, 14);
  });

  test('at a right angle to the exact output is an error without bias', () => {
    expect(outputDifference(of(1, 1), of(2, 0))).toEqual({ error: 1, bias: 0 });
  });

  test('weighs large outputs more: sums are over all of them', () => {
    // Errors 1 of 100 and 1 of 1: sqrt(2 / 10001), not the mean of 0.01 and 1; along: (100 - 1) / 10001.
    const { error, bias } = outputDifference(of(100, 1), of(101, 0));
    expect(error).toBeCloseTo(Math.sqrt(2 / 10001), 15);
    expect(bias).toBeCloseTo(99 / 10001, 15);
  });

  test('of zeros is the length of the error, without bias', () => {
    expect(outputDifference(of(0, 0), of(3, 4))).toEqual({ error: 5, bias: 0 });
    expect(outputDifference(of(0), of(0))).toEqual({ error: 0, bias: 0 });
  });

  test('of what is no number is none', () => {
    const { error, bias } = outputDifference(of(1), of(Number.NaN));
    expect([error, bias]).toEqual([Number.NaN, Number.NaN]);
  });
});
