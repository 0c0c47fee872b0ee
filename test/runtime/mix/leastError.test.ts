import { describe, expect, test } from 'vitest';
import { type LayerOption, leastError } from '../../../runtime/mix/leastError.js';
import { seededRandom } from '../../../runtime/reference/index.js';

/** The least error of any assignment within the budget, by trying all; undefined if there is none. */
function bruteForce(layers: readonly (readonly LayerOption[])[], budget: number): number | undefined {
  const [first, ...others] = layers;
  if (first === undefined) return budget >= 0 ? 0 : undefined;
  const errors = first.flatMap(({ bytes, error }) => {
    const rest = bruteForce(others, budget - bytes);
    return rest === undefined ? [] : [error + rest];
  });
  return errors.length === 0 ? undefined : Math.min(...errors);
}

const whole = (random: () => number, to: number) => Math.floor(random() * to);

/** Errors are whole, so that sums of any order are the same. */
function drawLayers(random: () => number, step: number): readonly (readonly LayerOption[])[] {
  return Array.from({ length: 1 + whole(random, 5) }, () =>
    Array.from({ length: 1 + whole(random, 6) }, () => ({
      bytes: step * (1 + whole(random, 12)),
      error: whole(random, 20),
    })),
  );
}

const totalOf = (layers: readonly (readonly LayerOption[])[], chosen: readonly number[]) =>
  chosen.reduce(
    (sum, option, layer) => ({
      bytes: sum.bytes + layers[layer]![option]!.bytes,
      error: sum.error + layers[layer]![option]!.error,
    }),
    { bytes: 0, error: 0 },
  );

describe('the assignment of least error', () => {
  test.each([1, 7, 256])('is that of trying all of them, with bytes in steps of %d', (step) => {
    const random = seededRandom(step);
    for (let i = 0; i < 200; i++) {
      const layers = drawLayers(random, step);
      // Below what any takes, between, and beyond what all take.
      const budgets = Array.from({ length: 6 }, () => whole(random, step * 12 * layers.length + 3 * step));
      const { assignments, exact, unit } = leastError(layers, budgets);
      expect(exact).toBe(true);
      // 1 where no layer has a choice.
      expect(unit === 1 || unit % step === 0).toBe(true);
      for (const [b, found] of assignments.entries()) {
        expect(found?.error).toBe(bruteForce(layers, budgets[b]!));
        if (found === undefined) continue;
        expect({ bytes: found.bytes, error: found.error }).toEqual(totalOf(layers, found.chosen));
        expect(found.bytes).toBeLessThanOrEqual(budgets[b]!);
      }
    }
  });

  test('takes fewer bytes where they buy nothing', () => {
    const layers = [
      [
        { bytes: 30, error: 1 },
        { bytes: 10, error: 1 },
        { bytes: 20, error: 1 },
      ],
    ];
    expect(leastError(layers, [100]).assignments).toEqual([{ chosen: [1], bytes: 10, error: 1 }]);
  });

  test('of a grid too coarse stays within the budget, and within a unit of every layer of the best', () => {
    const random = seededRandom(5);
    let coarser = 0;
    for (let i = 0; i < 200; i++) {
      const layers = drawLayers(random, 1);
      const budget = whole(random, 14 * layers.length);
      const { assignments, unit, exact } = leastError(layers, [budget], 5);
      if (!exact) coarser++;
      const [found] = assignments;
      const best = bruteForce(layers, budget);
      expect(found === undefined).toBe(best === undefined);
      if (found === undefined) continue;
      expect(found.bytes).toBeLessThanOrEqual(budget);
      expect(found.error).toBeGreaterThanOrEqual(best!);
      // Rounding up costs less than a unit a layer, and the budget's own rest less than one more.
      const lost = exact ? 0 : (layers.length + 1) * (unit - 1);
      const guaranteed = bruteForce(layers, budget - lost);
      if (guaranteed !== undefined) expect(found.error).toBeLessThanOrEqual(guaranteed);
    }
    expect(coarser).toBeGreaterThan(50);
  });

  test('of a grid too coarse still takes the largest everywhere where all fit', () => {
    const layers = [3, 5, 11].map((bytes) => [
      { bytes: 1, error: 9 },
      { bytes, error: 0 },
    ]);
    const { assignments, exact } = leastError(layers, [19], 2);
    expect(exact).toBe(false);
    expect(assignments).toEqual([{ chosen: [1, 1, 1], bytes: 19, error: 0 }]);
  });
});
