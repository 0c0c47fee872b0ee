import { f16round } from '@petamoriken/float16';
import { expect, test } from 'vitest';
import {
  assign,
  channelMaximum,
  inertia,
  kMeans,
  lloydStep,
  type Matrix,
  nearestCentroid,
  normalFrom,
  plusPlusStart,
  seededRandom,
  smallestChannelMax,
} from '../../../runtime/reference/index.js';

const column = (...values: number[]): Matrix => ({ rows: values.length, columns: 1, data: Float64Array.from(values) });

function cloud(rows: number, columns: number, seed: number): Matrix {
  const random = seededRandom(seed);
  return { rows, columns, data: Float64Array.from({ length: rows * columns }, () => normalFrom(random)) };
}

test('a channel maximum is a float16 and never zero', () => {
  expect(smallestChannelMax).toBe(f16round(1e-7));
  const values = { rows: 2, columns: 3, data: Float64Array.of(0.1, -3, 0, -0.2, 2, 0) };
  expect([...channelMaximum(values)]).toEqual([f16round(0.2), 3, smallestChannelMax]);
  expect([...channelMaximum({ rows: 0, columns: 1, data: new Float64Array() })]).toEqual([smallestChannelMax]);
});

test('of equally near centroids the first is taken', () => {
  expect(nearestCentroid(column(1), 0, column(3, 0, 2, 0))).toEqual({ index: 1, distance: 1 });
});

test('a Lloyd round moves centroids to the means of their points, by hand', () => {
  const points = { rows: 4, columns: 2, data: Float64Array.of(0, 0, 2, 0, 10, 10, 10, 14) };
  const start = { rows: 3, columns: 2, data: Float64Array.of(1, 1, 9, 9, 50, 50) };
  expect([...lloydStep(points, start).data]).toEqual([1, 0, 10, 12, 50, 50]);
  expect([...assign(points, start)]).toEqual([0, 0, 1, 1]);
  expect(inertia(points, start)).toBe(2 + 2 + 2 + 26);
});

test('inertia never rises from one Lloyd round to the next', () => {
  const points = cloud(500, 4, 1);
  let centroids = plusPlusStart(points, { entries: 16, iterations: 0, seed: 2 });
  let last = inertia(points, centroids);
  for (let round = 0; round < 10; round++) {
    centroids = lloydStep(points, centroids);
    expect(inertia(points, centroids)).toBeLessThanOrEqual(last + 1e-9);
    last = inertia(points, centroids);
  }
});

test('the start draws from the points, spread out: three far clusters get a centroid each', () => {
  const points = column(0, 0.1, 0.2, 1000, 1000.1, -1000, -1000.1);
  for (let seed = 0; seed < 50; seed++) {
    const { data } = plusPlusStart(points, { entries: 3, iterations: 0, seed });
    expect([...data].map(Math.round).sort((a, b) => a - b)).toEqual([-1000, 0, 1000]);
  }
});

test('the same seed gives the same codebook, another seed another', () => {
  const points = cloud(200, 4, 3);
  const options = { entries: 8, iterations: 3, sample: 50 };
  expect(kMeans(points, { ...options, seed: 1 })).toEqual(kMeans(points, { ...options, seed: 1 }));
  expect(kMeans(points, { ...options, seed: 1 })).not.toEqual(kMeans(points, { ...options, seed: 2 }));
});

test('fewer distinct points than entries, and none at all, give a finite codebook', () => {
  expect(inertia(column(1, 1, 2), kMeans(column(1, 1, 2), { entries: 5, iterations: 2, seed: 1 }))).toBe(0);
  expect([...kMeans(column(), { entries: 2, iterations: 2, seed: 1 }).data]).toEqual([0, 0]);
});
