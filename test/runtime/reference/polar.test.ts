import fc from 'fast-check';
import { expect, test } from 'vitest';
import { fromPolarForm, pairsOf, polarForm, type Rotation } from '../../../runtime/reference/index.js';

const ropes: readonly Rotation[] = [
  { invFreq: [1, 0.1, 0.01], pairing: 'half' },
  { invFreq: [1, 0.1], pairing: 'interleaved' },
  { invFreq: [], pairing: 'half' },
];
const vectors = fc.float64Array({ minLength: 6, maxLength: 6, min: -1e5, max: 1e5, noNaN: true });

test.each(ropes)('every channel is in one pair, %j', (rope) => {
  expect(
    pairsOf(rope, 6)
      .flat()
      .sort((a, b) => a - b),
  ).toEqual([0, 1, 2, 3, 4, 5]);
});

test.each(ropes)('a vector comes back from its radii and angles, %j', (rope) => {
  fc.assert(
    fc.property(vectors, (x) => {
      const coded = polarForm(x, rope);
      for (const [first, second] of pairsOf(rope, 6)) {
        expect(coded[first]).toBe(Math.hypot(x[first]!, x[second]!));
        expect(Math.abs(coded[second]!)).toBeLessThanOrEqual(1);
      }
      const back = fromPolarForm(coded, rope);
      const largest = Math.max(...x.map(Math.abs));
      for (const [i, number] of back.entries())
        expect(Math.abs(number - x[i]!)).toBeLessThanOrEqual(1e-15 * 4 * largest);
    }),
  );
});

test('zeros of either sign have the same code, and a radius below zero is none', () => {
  const rope: Rotation = { invFreq: [1, 1], pairing: 'interleaved' };
  expect([...polarForm(Float64Array.of(-3, -0, -0, -0), rope)]).toEqual([3, 1, 0, 0]);
  expect(fromPolarForm(Float64Array.of(-3, 0.2, 2, -0.5), rope).map(Math.abs)[0]).toBe(0);
  expect(fromPolarForm(Float64Array.of(-3, 0.2, 2, -0.5), rope)[3]).toBe(-2);
});
