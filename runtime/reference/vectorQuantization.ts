import { toHalf } from './quantize.js';
import { seededRandom } from './random.js';
import type { Matrix } from './shapes.js';

/**
 * Lower bound of a stored channel maximum. The scheme clamps to 1e-8, which float16 rounds to zero; this is the float16
 * nearest to 1e-7, the smallest that leaves a subnormal step below it.
 */
export const smallestChannelMax = 2 ** -23;

/**
 * Largest magnitude of each column, as the float16 that is stored; never zero, so that it can be divided by.
 *
 * @param values [tokens][d] of one head
 * @returns [d]
 */
export function channelMaximum({ rows, columns, data }: Matrix): Float64Array {
  const maximum = new Float64Array(columns).fill(smallestChannelMax);
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < columns; i++) maximum[i] = Math.max(maximum[i]!, Math.abs(data[row * columns + i]!));
  }
  return maximum.map(toHalf);
}

export interface Nearest {
  readonly index: number;
  /** Squared distance. */
  readonly distance: number;
}

/**
 * The centroid nearest to one row of `points`; of equally near ones the first.
 *
 * @param points [count][channels]
 * @param centroids [entries][channels]
 */
export function nearestCentroid(points: Matrix, row: number, centroids: Matrix): Nearest {
  const channels = points.columns;
  let index = 0;
  let distance = Infinity;
  for (let entry = 0; entry < centroids.rows; entry++) {
    let sum = 0;
    for (let i = 0; i < channels; i++) {
      const difference = points.data[row * channels + i]! - centroids.data[entry * channels + i]!;
      sum += difference * difference;
    }
    if (sum < distance) {
      index = entry;
      distance = sum;
    }
  }
  return { index, distance };
}

/** @returns [count], the nearest centroid of every point */
export function assign(points: Matrix, centroids: Matrix): Uint16Array {
  const codes = new Uint16Array(points.rows);
  for (let row = 0; row < points.rows; row++) codes[row] = nearestCentroid(points, row, centroids).index;
  return codes;
}

/** Sum over the points of the squared distance to the nearest centroid. */
export function inertia(points: Matrix, centroids: Matrix): number {
  let sum = 0;
  for (let row = 0; row < points.rows; row++) sum += nearestCentroid(points, row, centroids).distance;
  return sum;
}

/**
 * One round of Lloyd's algorithm: each centroid moves to the mean of the points nearest to it; one without points
 * stays where it is.
 *
 * @param weights of the points in the means; all alike if left out
 * @example
 * const points = { rows: 3, columns: 1, data: Float64Array.of(0, 1, 10) };
 * lloydStep(points, { rows: 2, columns: 1, data: Float64Array.of(0, 9) }).data; // [0.5, 10]
 */
export function lloydStep(points: Matrix, centroids: Matrix, weights?: Float64Array): Matrix {
  const { columns } = points;
  const sums = new Float64Array(centroids.data.length);
  const counts = new Float64Array(centroids.rows);
  for (let row = 0; row < points.rows; row++) {
    const { index } = nearestCentroid(points, row, centroids);
    const weight = weights?.[row] ?? 1;
    counts[index]! += weight;
    for (let i = 0; i < columns; i++) sums[index * columns + i]! += weight * points.data[row * columns + i]!;
  }
  const data = sums.map((sum, at) => {
    const count = counts[Math.floor(at / columns)]!;
    return count === 0 ? centroids.data[at]! : sum / count;
  });
  return { rows: centroids.rows, columns, data };
}

export interface KMeansOptions {
  readonly entries: number;
  readonly iterations: number;
  readonly seed: number;
  /** Of the points in the means, not in the start; all alike if left out. */
  readonly weights?: Float64Array | undefined;
  /** Points that the start is drawn from; all of them if there are no more. Default 16384. */
  readonly sample?: number;
}

/** Codebook of `points` in float64 (not yet rounded): k-means++ start, then `iterations` Lloyd rounds. */
export function kMeans(points: Matrix, options: KMeansOptions): Matrix {
  let centroids = plusPlusStart(points, options);
  for (let round = 0; round < options.iterations; round++) centroids = lloydStep(points, centroids, options.weights);
  return centroids;
}

/**
 * k-means++: each next centroid is a point drawn with probability proportional to its squared distance to those
 * already there. Source: Arthur and Vassilvitskii 2007.
 */
export function plusPlusStart(points: Matrix, { entries, seed, sample = 16384 }: KMeansOptions): Matrix {
  const { columns } = points;
  const centroids = { rows: entries, columns, data: new Float64Array(entries * columns) };
  if (points.rows === 0) return centroids;
  const random = seededRandom(seed);
  const drawn = Array.from({ length: Math.min(points.rows, sample) }, (_, index) =>
    points.rows <= sample ? index : Math.floor(random() * points.rows),
  );
  const distances = new Float64Array(drawn.length).fill(1);
  for (let entry = 0; entry < entries; entry++) {
    const start = drawn[drawByWeight(distances, random)]! * columns;
    const newest = { rows: 1, columns, data: points.data.slice(start, start + columns) };
    centroids.data.set(newest.data, entry * columns);
    drawn.forEach((row, index) => {
      const { distance } = nearestCentroid(points, row, newest);
      distances[index] = entry === 0 ? distance : Math.min(distances[index]!, distance);
    });
  }
  return centroids;
}

/** With all weights zero, as when there are fewer distinct points than entries, the last index. */
function drawByWeight(weights: Float64Array, random: () => number): number {
  let left = random() * weights.reduce((sum, weight) => sum + weight, 0);
  return Math.max(
    0,
    weights.findIndex((weight, index) => {
      left -= weight;
      return left < 0 || index === weights.length - 1;
    }),
  );
}
