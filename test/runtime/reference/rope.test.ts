import fc from 'fast-check';
import { expect, test } from 'vitest';
import { presetModel } from '../../../dsl/model.js';
import { rotate, unrotate } from '../../../runtime/reference/index.js';

test('channel j turns with channel j + d/2, counterclockwise', () => {
  const turned = rotate(Float64Array.of(1, 2, 3, 4), 1, [Math.PI / 2, Math.PI]);
  [-3, -2, 1, -4].forEach((expected, i) => {
    expect(turned[i]).toBeCloseTo(expected, 14);
  });
});

test('position 0 and channels past the rotated ones stay', () => {
  expect([...rotate(Float64Array.of(1, 2, 3, 4), 0, [1, 0.1])]).toEqual([1, 2, 3, 4]);
  expect([...rotate(Float64Array.of(1, 2, 3, 4), 5, [1]).slice(2)]).toEqual([3, 4]);
});

const { invFreq } = presetModel('smollm2-135m').rope;
const vector = fc.float64Array({ minLength: 64, maxLength: 64, min: -100, max: 100, noNaN: true });

test('unrotate takes back rotate', () => {
  fc.assert(
    fc.property(vector, fc.nat(8191), (x, position) => {
      const back = unrotate(rotate(x, position, invFreq), position, invFreq);
      return back.every((value, i) => Math.abs(value - x[i]!) < 1e-12);
    }),
  );
});

test('a dot product depends on the distance of the positions only', () => {
  const dot = (a: Float64Array, b: Float64Array) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);
  fc.assert(
    fc.property(vector, vector, fc.nat(2000), fc.nat(2000), (q, k, at, shift) => {
      const near = dot(rotate(q, at, invFreq), rotate(k, 0, invFreq));
      const far = dot(rotate(q, at + shift, invFreq), rotate(k, shift, invFreq));
      return Math.abs(near - far) < 1e-6;
    }),
  );
});
