import fc from 'fast-check';
import { expect, test } from 'vitest';
import { presetModel } from '../../dsl/model.js';
import { ropeTables } from '../../dsl/rope.js';

const llama = presetModel('llama-3.1-8b').rope;

test('there is a coarse row for each tile begun and a fine row for each position in a tile', () => {
  const { coarse, fine } = ropeTables(llama, 130, 64);
  expect(coarse.length).toBe(3 * 64 * 2);
  expect(fine.length).toBe(64 * 64 * 2);
  expect(ropeTables(llama, 0, 64).coarse.length).toBe(0);
});

test('a coarse rotation followed by a fine one is the rotation by the position', () => {
  const tile = 64;
  const { coarse, fine } = ropeTables(llama, 131072, tile);
  fc.assert(
    fc.property(fc.nat(131071), fc.nat(63), (position, pair) => {
      const hi = (Math.floor(position / tile) * 64 + pair) * 2;
      const lo = ((position % tile) * 64 + pair) * 2;
      const cos = coarse[hi]! * fine[lo]! - coarse[hi + 1]! * fine[lo + 1]!;
      const sin = coarse[hi + 1]! * fine[lo]! + coarse[hi]! * fine[lo + 1]!;
      const angle = position * llama.invFreq[pair]!;
      return Math.abs(cos - Math.cos(angle)) < 2e-7 && Math.abs(sin - Math.sin(angle)) < 2e-7;
    }),
  );
});

test('entries are rounded once, to the nearest float32', () => {
  // 0.75 * position is exact, so Math.cos sees the true angle.
  const { coarse } = ropeTables({ type: 'default', theta: 1, rotaryDim: 2, invFreq: [0.75] }, 2 ** 24, 2 ** 12);
  for (let row = 0; row < 2 ** 12; row++) {
    expect(coarse[row * 2]).toBe(Math.fround(Math.cos(row * 2 ** 12 * 0.75)));
    expect(coarse[row * 2 + 1]).toBe(Math.fround(Math.sin(row * 2 ** 12 * 0.75)));
  }
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
  expect(() => ropeTables(llama, positions, tile)).toThrow(expect.objectContaining({ code: 'invalid-input', message }));
});
