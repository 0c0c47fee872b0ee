import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { KvforgeError, nuq } from '../../dsl/index.js';
import { type FitLevelsOptions, fitLevels } from '../../runtime/fitLevels.js';
import { normalFrom, seededRandom } from '../../runtime/reference/index.js';

const normals = (seed: number, count: number) => {
  const random = seededRandom(seed);
  return Float64Array.from({ length: count }, () => normalFrom(random));
};

function refusal(samples: readonly ArrayLike<number>[], options: FitLevelsOptions): string {
  try {
    fitLevels(samples, options);
  } catch (error) {
    expect(error).toBeInstanceOf(KvforgeError);
    return `${(error as KvforgeError).code}: ${(error as KvforgeError).message}`;
  }
  return 'accepted';
}

const ranks = Float64Array.from({ length: 8 }, (_, i) => i);

describe('fitLevels', () => {
  test.each([2, 3, 4] as const)('finds the default levels of nuq in Gaussian samples, %d bits', (bits) => {
    // Blocks of one distribution, whatever their middle and their deviation.
    const samples = [0, 1, 2, 3].map((i) => normals(i + 1, 20_000).map((x) => 2 ** i * x - 3 * i));
    const levels = fitLevels(samples, { bits });
    const exact = nuq({ bits }).levels(128);
    for (const [i, level] of levels.entries()) expect(Math.abs(level - exact[i]!)).toBeLessThan(0.015);
  });

  test('takes numbers over the range of their own block, without what is beyond it', () => {
    const levels = fitLevels([ranks], { bits: 2, trim: 0 });
    expect(levels.map((level) => 3.5 + 3.5 * level)).toEqual([0.5, 2.5, 4.5, 6.5]);
    const loud = Float64Array.from({ length: 10 }, (_, i) => [-1e6, ...ranks, 1e6][i]!);
    expect(fitLevels([loud], { bits: 2, trim: 0.1 })).toEqual(levels);
    expect(fitLevels([ranks, ranks.map((x) => 8 - 2 * x)], { bits: 2, trim: 0 })).toEqual(levels);
  });

  test('takes the medians of equal parts by quantile', () => {
    const squares = ranks.map((x) => x ** 2);
    const levels = fitLevels([squares], { bits: 2, method: 'quantile', trim: 0 });
    expect(levels.map((level) => Math.round(24.5 + 24.5 * level))).toEqual([1, 9, 25, 49]);
  });

  test('no level that k-means finds can move for less weighted error', () => {
    const drawn = fc.record({ seed: fc.nat(9999), count: fc.integer({ min: 40, max: 400 }), weighted: fc.boolean() });
    fc.assert(
      fc.property(drawn, ({ seed, count, weighted }) => {
        const x = normals(seed, count);
        const weights = normals(seed + 1, count).map((w) => (weighted ? w * w : 1));
        const levels = fitLevels([x], { bits: 2, trim: 0, ...(weighted ? { weights: [weights] } : {}) });
        const [least, greatest] = [Math.min(...x), Math.max(...x)];
        const over = x.map((number) => (2 * number - least - greatest) / (greatest - least));
        // Of numbers that keep the level they are nearest to, as between the last two rounds.
        const nearest = over.map((number) =>
          levels.reduce((best, l, i) => (Math.abs(l - number) < Math.abs(levels[best]! - number) ? i : best), 0),
        );
        for (const [i, level] of levels.entries()) {
          let [sum, total] = [0, 0];
          for (const [k, number] of over.entries()) {
            if (nearest[k] !== i) continue;
            sum += weights[k]! * number;
            total += weights[k]!;
          }
          if (total > 0) expect(Math.abs(level - sum / total)).toBeLessThan(0.02);
        }
      }),
      { numRuns: 25 },
    );
  });

  test('weights move levels to where errors cost', () => {
    const x = normals(5, 5000);
    const right = x.map((number) => (number > 0 ? 100 : 1));
    const levels = fitLevels([x], { bits: 3, weights: [right] });
    expect(levels.filter((level) => level > 0).length).toBeGreaterThan(4);
  });

  test('Q-Norm gives decoded samples their mean and deviation', () => {
    const x = normals(7, 4000).map((number) => Math.exp(number / 2));
    const moments = (y: Float64Array) => {
      const mean = y.reduce((sum, number) => sum + number, 0) / y.length;
      return [mean, Math.sqrt(y.reduce((sum, number) => sum + (number - mean) ** 2, 0) / y.length)] as const;
    };
    const [plain, folded] = [false, true].map((qNorm) => fitLevels([x], { bits: 2, trim: 0, qNorm }));
    const [least, greatest] = [Math.min(...x), Math.max(...x)];
    const over = x.map((number) => (2 * number - least - greatest) / (greatest - least));
    const code = (number: number) =>
      plain!.reduce((best, l, i) => (Math.abs(l - number) < Math.abs(plain![best]! - number) ? i : best), 0);
    const decoded = moments(over.map((number) => folded![code(number)]!));
    expect(decoded[0]).toBeCloseTo(moments(over)[0], 9);
    expect(decoded[1]).toBeCloseTo(moments(over)[1], 9);
    expect(moments(over.map((number) => plain![code(number)]!))[1]).toBeLessThan(moments(over)[1] - 0.001);
  });

  test('constant channels and tokens of zeros say nothing', () => {
    const flat = [new Float32Array(8), new Float32Array(8).fill(3), new Float32Array(0)];
    const options = { bits: 2, trim: 0 } as const;
    expect(fitLevels([...flat, ranks], options)).toEqual(fitLevels([ranks], options));
    expect(refusal(flat, options)).toBe(
      'invalid-input: samples: expected at least 4 different numbers within their ranges, got 0. Give more samples, or take fewer bits.',
    );
  });

  test('what is not finite is named with its place', () => {
    const options = { bits: 2 } as const;
    expect(refusal([ranks, ranks.with(5, Number.NaN)], options)).toBe(
      'invalid-input: samples[1][5]: expected a finite number, got NaN. A model that gives this is at fault, or overflowed f16.',
    );
    expect(refusal([ranks.with(0, Number.NEGATIVE_INFINITY)], options)).toBe(
      'invalid-input: samples[0][0]: expected a finite number, got -Infinity. A model that gives this is at fault, or overflowed f16.',
    );
    expect(refusal([ranks], { ...options, weights: [ranks.with(2, -1)] })).toBe(
      'invalid-input: weights[0][2]: expected a finite weight of at least 0, got -1. Square the gradients.',
    );
  });

  test('weights have the shape of the samples, and are not all zero', () => {
    const options = { bits: 2, trim: 0 } as const;
    expect(refusal([ranks], { ...options, weights: [] })).toBe(
      'invalid-input: weights: expected 1 lists, as of the samples, got 0. Give one list a block.',
    );
    expect(refusal([ranks], { ...options, weights: [[1]] })).toBe(
      'invalid-input: weights[0]: expected 8 weights, as samples[0] has numbers, got 1. Give a weight for every number.',
    );
    expect(refusal([ranks], { ...options, weights: [new Float32Array(8)] })).toBe(
      'invalid-input: weights: expected one above 0, got none. Leave them out where all numbers count alike.',
    );
  });

  test('samples that are mostly one number have no quantiles', () => {
    const most = Float64Array.from({ length: 40 }, (_, i) => (i < 36 ? 0 : i - 35));
    expect(refusal([most], { bits: 2, trim: 0, method: 'quantile' })).toBe(
      'invalid-input: samples: expected 4 different levels, got -1 twice. Many samples are one number; take fewer bits, or kmeans.',
    );
  });
});
