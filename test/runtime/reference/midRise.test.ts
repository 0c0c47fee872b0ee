import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { midRise, midRiseShares, normalFrom, seededRandom } from '../../../runtime/reference/index.js';

const values = fc.array(fc.double({ min: -1000, max: 1000, noNaN: true }), { minLength: 1, maxLength: 40 });

describe('midRise', () => {
  it('is within half a step of every value it has levels for', () => {
    fc.assert(
      fc.property(values, fc.integer({ min: 2, max: 8 }), (given, bits) => {
        const { codes, scale: step } = midRise(Float64Array.from(given), bits);
        for (const [i, value] of given.entries()) {
          expect(codes[i]).toBeGreaterThanOrEqual(-(2 ** (bits - 1)));
          expect(codes[i]).toBeLessThan(2 ** (bits - 1));
          // The step is rounded to float16, so the range ends by up to 2^-11 of it too early.
          const lost = step / 2 + 2 ** -11 * Math.abs(value) + 2 ** -24 * 2 ** bits;
          if (step > 0) expect(Math.abs((codes[i]! + 0.5) * step - value)).toBeLessThanOrEqual(lost);
        }
      }),
      { numRuns: 200 },
    );
  });

  it('keeps the sign and the mean magnitude with one bit', () => {
    const { codes, scale: step } = midRise(Float64Array.of(3, -1, 4, -4), 1);
    expect([...codes].map((code) => (code + 0.5) * step)).toEqual([3, -3, 3, -3]);
  });

  it('stores nothing without bits, and zeros as zero', () => {
    expect(midRise(Float64Array.of(3, -1), 0)).toEqual({ codes: new Int32Array(2), scale: 0 });
    expect(midRise(new Float64Array(3), 5)).toEqual({ codes: new Int32Array(3), scale: 0 });
    expect(midRise(new Float64Array(0), 1)).toEqual({ codes: new Int32Array(0), scale: 0 });
  });

  it('never has an infinite step', () => {
    expect(midRise(Float64Array.of(1e9), 2).scale).toBe(65504);
  });

  it('shrinks nothing: the mean square of evenly spread values is kept', () => {
    const even = Float64Array.from({ length: 2001 }, (_, i) => (i - 1000) / 1000);
    const { codes, scale: step } = midRise(even, 4);
    const of = (list: ArrayLike<number>) => Array.from(list).reduce((sum, x) => sum + x * x, 0);
    expect(of(Array.from(codes, (code) => (code + 0.5) * step)) / of(even)).toBeCloseTo(1, 2);
  });

  // How far the largest of 4096 reaches differs by draw, and the step with it: the share is a mean over draws.
  it.each([...midRiseShares])('with %i bits leaves %d of the variance of 4096 normal samples', (bits, share) => {
    const random = seededRandom(1);
    const draws = 64;
    let left = 0;
    for (let draw = 0; draw < draws; draw++) {
      const samples = Float64Array.from({ length: 4096 }, () => normalFrom(random));
      const { codes, scale: step } = midRise(samples, bits);
      const lost = samples.map((x, i) => x - (bits === 0 ? 0 : (codes[i]! + 0.5) * step));
      left += squares(lost) / squares(samples) / draws;
    }
    expect(Math.abs(left / share - 1)).toBeLessThan(0.15);
  });
});

const squares = (numbers: Float64Array) => numbers.reduce((sum, x) => sum + x * x, 0);
