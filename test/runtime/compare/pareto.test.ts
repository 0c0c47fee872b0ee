import { describe, expect, test } from 'vitest';
import { type Cost, paretoFront } from '../../../runtime/compare/pareto.js';

const front = (...costs: readonly (readonly [bytes: number, error: number])[]) =>
  paretoFront(costs.map(([bytes, error]): Cost => ({ bytes, error })));

describe('the Pareto front', () => {
  test('has those that no other beats, whatever their order', () => {
    expect(front([10, 0.2], [20, 0.1], [20, 0.3], [30, 0.1])).toEqual([true, true, false, false]);
    expect(front([30, 0.1], [20, 0.3], [20, 0.1], [10, 0.2])).toEqual([false, false, true, true]);
  });

  test('of one is that one, of none is none', () => {
    expect(front([10, 1])).toEqual([true]);
    expect(front()).toEqual([]);
  });

  test('has both of two that are equal in bytes and error', () => {
    expect(front([10, 0.2], [10, 0.2], [5, 0.3])).toEqual([true, true, true]);
  });

  test('has neither of two equal ones that a third beats', () => {
    expect(front([10, 0.2], [10, 0.2], [9, 0.2])).toEqual([false, false, true]);
  });

  test('of the same bytes has the smaller error alone, of the same error the fewer bytes alone', () => {
    expect(front([10, 0.2], [10, 0.1])).toEqual([false, true]);
    expect(front([11, 0.1], [10, 0.1])).toEqual([false, true]);
  });

  test('is found by its definition on any points', () => {
    // Small whole numbers, so that ties of one or both are frequent.
    let state = 1;
    const next = () => {
      state = (state * 48271) % 2147483647;
      return state % 6;
    };
    for (let round = 0; round < 200; round++) {
      const costs = Array.from({ length: 8 }, () => ({ bytes: next(), error: next() }));
      const marked = paretoFront(costs);
      // By sorting: on the front is what has less error than everything with fewer bytes, and least of its own bytes.
      const expected = costs.map(({ bytes, error }) => {
        const fewer = costs.filter((other) => other.bytes < bytes).map((other) => other.error);
        const same = costs.filter((other) => other.bytes === bytes).map((other) => other.error);
        return error < Math.min(Infinity, ...fewer) && error === Math.min(...same);
      });
      expect(marked).toEqual(expected);
    }
  });
});
