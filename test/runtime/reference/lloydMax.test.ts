import { describe, expect, test } from 'vitest';
import {
  decodeStream,
  encodeStream,
  lloydMaxLevels,
  nearestLevel,
  normalFrom,
  seededRandom,
} from '../../../runtime/reference/index.js';

/** Mean squared error of random unit vectors, whose length is not rounded. */
function unitError(levels: Float64Array, d: number, count: number): number {
  const random = seededRandom(7);
  let sum = 0;
  for (let n = 0; n < count; n++) {
    const x = Float64Array.from({ length: d }, () => normalFrom(random));
    const length = Math.hypot(...x);
    const unit = x.map((value) => value / length);
    const decoded = decodeStream({ codes: encodeStream(unit, levels).codes, norm: 1 }, levels);
    unit.forEach((value, i) => {
      sum += (value - decoded[i]!) ** 2;
    });
  }
  return sum / count;
}

const bound = (bits: number) => ((Math.sqrt(3) * Math.PI) / 2) * 4 ** -bits;

// Max 1960, table I.
test.each([
  [1, [0.7979]],
  [2, [0.4528, 1.51]],
  [3, [0.2451, 0.756, 1.344, 2.152]],
])('levels at %d bits are those that Max published for N(0, 1)', (bits, positive) => {
  const levels = [...lloydMaxLevels(bits, 1)];
  expect(levels.slice(levels.length / 2)).toEqual(positive.map((level) => expect.closeTo(level, 3)));
  levels.forEach((level, i) => {
    expect(level).toBeCloseTo(-levels[levels.length - 1 - i]!, 12);
  });
});

test('levels scale by 1/sqrt(d)', () => {
  const unit = lloydMaxLevels(3, 1);
  lloydMaxLevels(3, 64).forEach((level, i) => {
    expect(level).toBeCloseTo(unit[i]! / 8, 7);
  });
});

describe('the error of unit vectors', () => {
  test.each([2, 3, 4])('at %d bits lies between 4^-b and sqrt(3) pi/2 4^-b', (bits) => {
    const error = unitError(lloydMaxLevels(bits, 128), 128, 200);
    expect(error).toBeLessThanOrEqual(bound(bits));
    expect(error).toBeGreaterThan(4 ** -bits);
  });

  test('at 8 bits misses that bound by less than five times after the 100 rounds of the scheme, and closes in with more', () => {
    const asShipped = unitError(lloydMaxLevels(8, 64), 64, 100);
    const longer = unitError(lloydMaxLevels(8, 64, 2000), 64, 100);
    expect(asShipped).toBeGreaterThan(2 * bound(8));
    expect(asShipped).toBeLessThan(5 * bound(8));
    expect(longer).toBeLessThan(1.6 * bound(8));
  });
});

test('of equally near levels the first is taken', () => {
  expect(nearestLevel(0, Float64Array.of(-1, 1))).toBe(0);
});

test('the length is stored as a float16 and scales the decoded vector; zero decodes to zero', () => {
  const levels = lloydMaxLevels(8, 4);
  const coded = encodeStream(Float64Array.of(3, 4, 0, 0), levels);
  expect(coded.norm).toBe(5);
  const decoded = decodeStream(coded, levels);
  [3, 4, 0, 0].forEach((value, i) => {
    expect(Math.abs(decoded[i]! - value)).toBeLessThan(0.1);
  });
  expect([...decodeStream(encodeStream(new Float64Array(4), levels), levels)].every((x) => x === 0)).toBe(true);
});
