import { f16round } from '@petamoriken/float16';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { nearestInteger, quantize, toHalf } from '../../../runtime/reference/index.js';

test('halves round to the even integer', () => {
  expect([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.49, -2.51].map(nearestInteger)).toEqual([-2, -2, 0, 0, 2, 2, 2, -3]);
});

test('int4 has the range -7 to 7 and a float16 scale', () => {
  expect(quantize(Float64Array.of(7, -3.4, 0, -7), 4)).toEqual({ codes: Int32Array.of(7, -3, 0, -7), scale: 1 });
  expect(quantize(Float64Array.of(1, -1), 2)).toEqual({ codes: Int32Array.of(1, -1), scale: 1 });
});

test.each([
  ['zeros', 4, [0, -0]],
  ['values too small for a float16 scale', 4, [1e-8, -1e-8]],
  ['a width of 0', 0, [5, 1]],
])('%s give a scale of zero and codes of zero', (_name, bits, values) => {
  expect(quantize(Float64Array.from(values), bits)).toEqual({ codes: Int32Array.of(0, 0), scale: 0 });
});

test('values too large for float16 saturate', () => {
  expect(toHalf(1e9)).toBe(65504);
  expect(quantize(Float64Array.of(1e9, 0), 4)).toEqual({ codes: Int32Array.of(7, 0), scale: 65504 });
});

test('an error is at most half a step, and the largest value loses no more than the rounding of the scale', () => {
  const values = fc.float64Array({ min: -1000, max: 1000, noNaN: true, minLength: 1 });
  fc.assert(
    fc.property(values, fc.constantFrom(2, 4, 6, 8), (x, bits) => {
      const { codes, scale } = quantize(x, bits);
      const limit = 2 ** (bits - 1) - 1;
      const largest = x.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      const lost = Math.max(0, largest - limit * scale);
      return (
        scale === f16round(scale) &&
        x.every((value, i) => {
          const code = codes[i]!;
          return Math.abs(code) <= limit && Math.abs(value - code * scale) <= scale / 2 + lost + 1e-9;
        })
      );
    }),
  );
});
