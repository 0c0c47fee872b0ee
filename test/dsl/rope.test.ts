import fc from 'fast-check';
import { expect, test } from 'vitest';
import { presetModel } from '../../dsl/model.js';
import { ropeTables } from '../../dsl/rope.js';

const llama = presetModel('llama-3.1-8b').rope.invFreq;
const tables = (positions: number, tile: number) => ropeTables(llama, 64, positions, tile);

test('there is a coarse row for each tile begun and a fine row for each position in a tile', () => {
  const { coarse, fine } = tables(130, 64);
  expect(coarse.length).toBe(3 * 64 * 2);
  expect(fine.length).toBe(64 * 64 * 2);
  expect(tables(0, 64).coarse.length).toBe(0);
});

test('a coarse rotation followed by a fine one is the rotation by the position', () => {
  const tile = 64;
  const { coarse, fine } = tables(131072, tile);
  fc.assert(
    fc.property(fc.nat(131071), fc.nat(63), (position, pair) => {
      const hi = (Math.floor(position / tile) * 64 + pair) * 2;
      const lo = ((position % tile) * 64 + pair) * 2;
      const cos = coarse[hi]! * fine[lo]! - coarse[hi + 1]! * fine[lo + 1]!;
      const sin = coarse[hi + 1]! * fine[lo]! + coarse[hi]! * fine[lo + 1]!;
      const angle = position * llama[pair]!;
      return Math.abs(cos - Math.cos(angle)) < 2e-7 && Math.abs(sin - Math.sin(angle)) < 2e-7;
    }),
  );
});

test('entries are rounded once, to the nearest float32', () => {
  // 0.75 * position is exact, so Math.cos sees the true angle.
  const { coarse } = ropeTables([0.75], 1, 2 ** 24, 2 ** 12);
  for (let row = 0; row < 2 ** 12; row++) {
    expect(coarse[row * 2]).toBe(Math.fround(Math.cos(row * 2 ** 12 * 0.75)));
    expect(coarse[row * 2 + 1]).toBe(Math.fround(Math.sin(row * 2 ** 12 * 0.75)));
  }
});

test('pairs beyond the frequencies stay where they are', () => {
  const { coarse, fine } = ropeTables([0.5], 3, 4, 2);
  expect([...fine]).toEqual([1, 0, 1, 0, 1, 0, Math.fround(Math.cos(0.5)), Math.fround(Math.sin(0.5)), 1, 0, 1, 0]);
  expect([...coarse.slice(6)]).toEqual([Math.fround(Math.cos(1)), Math.fround(Math.sin(1)), 1, 0, 1, 0]);
});

test.each([1, 2.5, Number.NaN])('%d pairs for two frequencies are refused', (pairs) => {
  const message = `pairs: expected a whole number, at least the 2 frequencies, got ${pairs}. A head of d channels has d/2 pairs.`;
  expect(() => ropeTables([1, 0.1], pairs, 8, 4)).toThrow(expect.objectContaining({ code: 'invalid-input', message }));
});

test.each([
  [-1, 64, 'positions: expected a whole number from 0 to 16777216, got -1. Positions count tokens of one sequence.'],
  [8, 0, 'tile: expected a whole number from 1 to 16777216, got 0. Positions count tokens of one sequence.'],
  [
    Number.NaN,
    1,
    'positions: expected a whole number from 0 to 16777216, got NaN. Positions count tokens of one sequence.',
  ],
])('positions %d in tiles of %d are refused', (positions, tile, message) => {
  expect(() => tables(positions, tile)).toThrow(expect.objectContaining({ code: 'invalid-input', message }));
});
