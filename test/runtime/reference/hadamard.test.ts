import fc from 'fast-check';
import { expect, test } from 'vitest';
import { blockSize, hadamard, hadamardMatrix } from '../../../runtime/reference/index.js';

test('the matrix of 4 is in Sylvester order', () => {
  expect([...hadamardMatrix(4)].map((entry) => entry * 2)).toEqual([
    1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1, -1, -1, 1,
  ]);
});

test('blocks are the largest power of two that divides the channels', () => {
  expect([1, 2, 64, 80, 96, 128, 192, 256].map(blockSize)).toEqual([1, 2, 64, 16, 32, 128, 64, 256]);
});

test('channels of different blocks do not mix', () => {
  expect([...hadamard(Float64Array.of(1, 0, 0, 0, 0, 2))].map((x) => x * Math.SQRT2)).toEqual(
    [1, 1, 0, 0, 2, -2].map((x) => expect.closeTo(x, 14)),
  );
});

test('the transform keeps lengths and is its own inverse', () => {
  const vector = fc
    .constantFrom(1, 6, 64, 80, 96, 128)
    .chain((d) => fc.float64Array({ minLength: d, maxLength: d, min: -1e3, max: 1e3, noNaN: true }));
  fc.assert(
    fc.property(vector, (x) => {
      const y = hadamard(x);
      const back = hadamard(y);
      return (
        Math.abs(Math.hypot(...x) - Math.hypot(...y)) < 1e-9 && back.every((value, i) => Math.abs(value - x[i]!) < 1e-9)
      );
    }),
  );
});
