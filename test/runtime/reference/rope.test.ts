import fc from 'fast-check';
import { expect, test } from 'vitest';
import { presetModel } from '../../../dsl/model.js';
import { rotate, unrotate } from '../../../runtime/reference/index.js';

test('channel j turns with channel j + d/2, counterclockwise', () => {
  const turned = rotate(Float64Array.of(1, 2, 3, 4), 1, { invFreq: [Math.PI / 2, Math.PI], pairing: 'half' });
  [-3, -2, 1, -4].forEach((expected, i) => {
    expect(turned[i]).toBeCloseTo(expected, 14);
  });
});

test('position 0 and channels past the rotated ones stay', () => {
  const [x, pairing] = [Float64Array.of(1, 2, 3, 4), 'half'] as const;
  expect([...rotate(x, 0, { invFreq: [1, 0.1], pairing })]).toEqual([1, 2, 3, 4]);
  expect([...rotate(x, 5, { invFreq: [1], pairing }).slice(2)]).toEqual([3, 4]);
});

test('interleaved, channel 2j turns with channel 2j + 1', () => {
  const turned = rotate(Float64Array.of(1, 2, 3, 4), 1, { invFreq: [Math.PI / 2, Math.PI], pairing: 'interleaved' });
  [-2, 1, -3, -4].forEach((expected, i) => {
    expect(turned[i]).toBeCloseTo(expected, 14);
  });
});

const { rope } = presetModel('smollm2-135m');
const vector = fc.float64Array({ minLength: 64, maxLength: 64, min: -100, max: 100, noNaN: true });

test('unrotate takes back rotate', () => {
  fc.assert(
    fc.property(vector, fc.nat(8191), (x, position) => {
      const back = unrotate(rotate(x, position, rope), position, rope);
      return back.every((value, i) => Math.abs(value - x[i]!) < 1e-12);
    }),
  );
});

test('a dot product depends on the distance of the positions only', () => {
  const dot = (a: Float64Array, b: Float64Array) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);
  fc.assert(
    fc.property(vector, vector, fc.nat(2000), fc.nat(2000), (q, k, at, shift) => {
      const near = dot(rotate(q, at, rope), rotate(k, 0, rope));
      const far = dot(rotate(q, at + shift, rope), rotate(k, shift, rope));
      return Math.abs(near - far) < 1e-6;
    }),
  );
});
