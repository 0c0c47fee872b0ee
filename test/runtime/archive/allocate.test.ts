import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { bitAllocator, type GroupChoice, type PartChoices } from '../../../runtime/archive/allocate.js';

/** Every way to cover a prefix of one part's components by groups. */
function* coverings({ choices }: PartChoices, start = 0): Generator<readonly GroupChoice[]> {
  yield [];
  for (const choice of choices) {
    if (choice.start !== start) continue;
    for (const rest of coverings({ width: 0, tail: [], choices }, start + choice.components)) yield [choice, ...rest];
  }
}

const end = (groups: readonly GroupChoice[]) => groups.reduce((sum, { components }) => sum + components, 0);
const costOf = (groups: readonly GroupChoice[]) => groups.reduce((sum, { cost }) => sum + cost, 0);
const errorOf = ({ tail }: PartChoices, groups: readonly GroupChoice[]) =>
  groups.reduce((sum, { error }) => sum + error, 0) + tail[end(groups)]!;

/** The least error of all combinations, each tried. */
function leastOfAll(parts: readonly PartChoices[], budget: number): number {
  const [first, ...others] = parts;
  if (first === undefined) return 0;
  let least = Number.POSITIVE_INFINITY;
  for (const groups of coverings(first)) {
    const cost = costOf(groups);
    if (cost <= budget) least = Math.min(least, errorOf(first, groups) + leastOfAll(others, budget - cost));
  }
  return least;
}

// Costs in eighths, so that the grid holds them exactly.
const choicesFor = (width: number) =>
  fc.array(
    fc
      .record({
        start: fc.nat(Math.max(0, width - 1)),
        components: fc.integer({ min: 1, max: 3 }),
        bits: fc.integer({ min: 2, max: 8 }),
        cost: fc.integer({ min: 0, max: 24 }).map((eighths) => eighths / 8),
        error: fc.integer({ min: 0, max: 30 }),
      })
      .filter(({ start, components }) => start + components <= width),
    { maxLength: 5 },
  );
const part = fc.integer({ min: 1, max: 4 }).chain((width) =>
  fc.record({
    width: fc.constant(width),
    tail: fc
      .array(fc.integer({ min: 0, max: 40 }), { minLength: width, maxLength: width })
      .map((squares) => [...squares.map((_, i) => squares.slice(i).reduce((a, b) => a + b, 0)), 0]),
    choices: choicesFor(width),
  }),
);

describe('bits', () => {
  it('are allocated as well as any combination of groups allows, for every budget up to the most', () => {
    const budgets = fc.array(fc.integer({ min: 0, max: 100 }), { minLength: 1, maxLength: 3 });
    fc.assert(
      fc.property(fc.array(part, { minLength: 1, maxLength: 3 }), budgets, (parts, eighths) => {
        const allocate = bitAllocator(parts, 100 / 8);
        for (const each of eighths) {
          const budget = each / 8;
          const { groups, error } = allocate(budget);
          expect(error).toBe(leastOfAll(parts, budget));
          expect(groups.reduce((sum, own) => sum + costOf(own), 0)).toBeLessThanOrEqual(budget);
          expect(groups.reduce((sum, own, i) => sum + errorOf(parts[i]!, own), 0)).toBe(error);
          for (const own of groups) {
            for (const [i, { start }] of own.entries()) expect(start).toBe(end(own.slice(0, i)));
          }
        }
      }),
      { numRuns: 300 },
    );
  });

  it('cost what they are rounded up to on the grid', () => {
    const one = { start: 0, components: 1, bits: 2, cost: 1.01, error: 0 };
    const allocate = bitAllocator([{ width: 1, tail: [5, 0], choices: [one] }], 2);
    expect(allocate(1.1).error).toBe(5);
    expect(allocate(1.125).error).toBe(0);
  });

  it('are counted in larger steps where a table of eighths would take too much memory', () => {
    // Eighths would be 2^36 cells; 2^23 of them leave steps of 1024 bits.
    const choices = [{ start: 0, components: 1, bits: 8, cost: 2 ** 20, error: 0 }];
    const tail = Float64Array.from({ length: 8192 }, (_, start) => (start === 0 ? 1 : 0));
    const allocate = bitAllocator([{ width: 8191, tail, choices }], 2 ** 20);
    expect(allocate(2 ** 20 - 1)).toEqual({ groups: [[]], error: 1 });
    expect(allocate(2 ** 20)).toEqual({ groups: [choices], error: 0 });
  });

  it('stay within the budget where many parts share it in larger steps', () => {
    const wide = (seed: number): PartChoices => {
      const tail = Array.from({ length: 65 }, (_, i) => (i === 64 ? 0 : (64 - i) * (1 + (seed % 7))));
      const choices = Array.from({ length: 64 }, (_, start) =>
        [2, 4, 8].map((bits) => ({ start, components: 1, bits, cost: bits * 16, error: (1 + (seed % 7)) / 4 ** bits })),
      ).flat();
      return { width: 64, tail, choices };
    };
    const parts = Array.from({ length: 12 }, (_, seed) => wide(seed));
    const { groups } = bitAllocator(parts, 12_000)(12_000);
    const spent = groups.reduce((sum, own) => sum + costOf(own), 0);
    expect(spent).toBeLessThanOrEqual(12_000);
    expect(spent).toBeGreaterThan(11_500);
  });
});
