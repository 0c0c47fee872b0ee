import erf from '@stdlib/math-base-special-erf';
import { describe, expect, it } from 'vitest';
import { coveringScale, middleOfRange } from '../../dsl/codecs/nuq.js';
import { type KvforgeError, type NuqParams, nuq } from '../../dsl/index.js';
import { toHalf } from '../../runtime/reference/index.js';

function refusal(params: NuqParams): string {
  try {
    nuq(params);
  } catch (error) {
    return `${(error as KvforgeError).code}: ${(error as KvforgeError).message}`;
  }
  return 'accepted';
}

/** Where the range of a Gaussian without 0.5 % at each end ends. */
const end = 2.575829303548901;

/** Squared error of levels over half of the range, for the Gaussian within it, by the middle of many small steps. */
function errorOf(levels: readonly number[]): number {
  const steps = 20000;
  let sum = 0;
  for (let i = 0; i < steps; i++) {
    const x = -1 + (2 * (i + 0.5)) / steps;
    sum += Math.exp(-0.5 * (x * end) ** 2) * Math.min(...levels.map((level) => (level - x) ** 2));
  }
  return sum;
}

describe('the levels of nuq', () => {
  it.each([2, 3, 4] as const)('of %d bits ascend within the range, as much to one side as to the other', (bits) => {
    const levels = nuq({ bits }).levels(128);
    expect(levels).toHaveLength(2 ** bits);
    for (const [i, level] of levels.entries()) {
      expect(Math.abs(level)).toBeLessThan(1);
      if (i > 0) expect(level).toBeGreaterThan(levels[i - 1]!);
      expect(level).toBeCloseTo(-levels[levels.length - 1 - i]!, 9);
    }
  });

  it.each([2, 3, 4] as const)('of %d bits have the least error: none of them can move', (bits) => {
    const levels = nuq({ bits }).levels(128);
    const least = errorOf(levels);
    for (let i = 0; i < levels.length; i++) {
      for (const step of [-0.01, 0.01]) {
        expect(errorOf(levels.with(i, levels[i]! + step)), `level ${i}`).toBeGreaterThan(least);
      }
    }
  });

  it('are the means of what is nearest to them', () => {
    const [low, high] = nuq({ bits: 2 })
      .levels(128)
      .slice(2)
      .map((level) => level * end) as [number, number];
    const edge = (low + high) / 2;
    const density = (z: number) => Math.exp(-0.5 * z * z) / Math.sqrt(2 * Math.PI);
    const cumulative = (z: number) => 0.5 * (1 + erf(z / Math.SQRT2));
    expect(low).toBeCloseTo((density(0) - density(edge)) / (cumulative(edge) - 0.5), 9);
    expect(high).toBeCloseTo((density(edge) - density(end)) / (cumulative(end) - cumulative(edge)), 9);
  });

  it('are those given, or refused', () => {
    const levels = [-0.9, -0.2, 0.1, 1.05];
    expect(nuq({ bits: 2, levels }).levels(64)).toEqual(levels);
    expect(refusal({ bits: 2, levels: [0, 1] })).toBe(
      'invalid-codec: nuq.levels: expected 4 finite numbers, ascending, got 2 numbers. Give what fitLevels returns for as many bits.',
    );
    expect(refusal({ bits: 2, levels: [-1, Number.NaN, 0, 1] })).toBe(
      'invalid-codec: nuq.levels: expected 4 finite numbers, ascending, got NaN at 1. Give what fitLevels returns for as many bits.',
    );
    expect(refusal({ bits: 2, levels: [-1, 0, 0, 1] })).toBe(
      'invalid-codec: nuq.levels: expected 4 finite numbers, ascending, got 0 before 0 at 2. Sort them, and name none twice.',
    );
  });
});

describe('the range of nuq', () => {
  it('has its middle as offset', () => {
    expect(middleOfRange(-1, 3)).toBe(1);
    expect(middleOfRange(1, 1.0007)).toBe(toHalf(1.00035));
    expect(middleOfRange(1e5, 1e5)).toBe(65504);
  });

  it('has the least float16 as scale that is not below the largest magnitude', () => {
    for (const exponent of [-24, -20, -14, -13, 0, 3, 15]) {
      for (const share of [1, 1.0001, 1.3, 1.5, 1.9999]) {
        const maxAbs = Math.fround(share * 2 ** exponent);
        const scale = coveringScale(0, maxAbs);
        expect(scale).toBe(toHalf(scale));
        expect(scale).toBeGreaterThanOrEqual(Math.min(maxAbs, 65504));
        const step = 2 ** (Math.max(exponent, -14) - 10);
        expect(scale - maxAbs).toBeLessThan(step);
      }
    }
    expect(coveringScale(0, 0)).toBe(0);
    expect(coveringScale(0, 1e6)).toBe(65504);
    expect(coveringScale(0, 65519)).toBe(65504);
  });
});
