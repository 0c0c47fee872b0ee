import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { codebookSample } from '../../dsl/stages/codebook.js';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { type Matrix, nearestCentroid, seededRandom } from '../../runtime/reference/index.js';
import {
  type Draw,
  draws,
  halfBits,
  halfValues,
  largestOf,
  lengths,
  numbers,
  strayWrites,
  untouched,
  worstDifference,
} from '../../runtime/verify/draws.js';
import {
  asFloats,
  asHalfBits,
  cases,
  deviceNames,
  geometry,
  load,
  openDevice,
  partBytes,
  promptSetting,
  runKernel,
} from './harness.js';

const RUNS = 15;
const POINTS_PER_BLOCK = 2048;

describe.each(deviceNames)('codebook on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  }, 60_000);
  afterAll(() => device?.close());

  describe.each(cases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const { entries, channels } = g;
    const centroidBytes = entries * channels * 4;
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, [
        'codebook_seed',
        'codebook_assign',
        'codebook_update',
        'codebook_store',
        'assign_values',
      ]);
    }, 60_000);

    // Some geometries have few points a token, others many; both fewer points than entries and several blocks occur.
    const middles = fc.oneof(lengths(Math.ceil((POINTS_PER_BLOCK * channels) / g.width), 40), fc.constant(3));

    /** Rotated values with their channel scales, and the points they stand for in float64. */
    function setting({ tokens: middle, kind, seed }: Draw) {
      const { record, layout } = promptSetting(g, g.scheme.sinks + middle + g.scheme.window);
      const rotated = Float32Array.from(numbers({ kind, seed }, middle, g.width));
      const largest = new Float64Array(g.width).fill(2 ** -23);
      for (const [i, x] of rotated.entries()) largest[i % g.width] = Math.max(largest[i % g.width]!, Math.abs(x));
      const scales = halfValues(halfBits(largest.map((x) => Math.min(x, 65504))));
      const points: Matrix = {
        rows: (middle * g.width) / channels,
        columns: channels,
        data: Float64Array.from(rotated, (x, i) => x / scales[i % g.width]!),
      };
      const random = seededRandom(seed);
      const weights = Float32Array.from({ length: middle * g.kvHeads }, () => (g.weighted ? 0.5 + 2 * random() : 1));
      const shared = { sequence: record, rotated, channel_scales: Float32Array.from(scales) };
      return { middle, record, layout, points, weights, shared };
    }

    async function seeded({ middle, shared }: ReturnType<typeof setting>): Promise<Float32Array> {
      const distances = device.target === 'wgsl' ? { distances: { bytes: codebookSample * 4 } } : {};
      const outputs = await runKernel(
        kernels,
        'codebook_seed',
        { middleTokens: middle },
        { ...shared, centroids: { bytes: centroidBytes }, ...distances },
      );
      return asFloats(outputs.centroids!);
    }

    async function lloydStep(
      { middle, record, points, weights, shared }: ReturnType<typeof setting>,
      centroids: Float32Array,
    ) {
      const blocks = Math.ceil(points.rows / POINTS_PER_BLOCK);
      const cellBytes = blocks * entries * (channels + 1) * 4;
      const assigned = await runKernel(
        kernels,
        'codebook_assign',
        { middleTokens: middle },
        {
          ...{ ...shared, centroids, partial_cells: { bytes: cellBytes } },
          ...(g.weighted ? { value_weights: weights } : {}),
        },
      );
      const cells = asFloats(assigned.partial_cells!).subarray(0, cellBytes / 4);
      const updated = await runKernel(
        kernels,
        'codebook_update',
        { middleTokens: middle },
        { sequence: record, partial_cells: cells, centroids },
      );
      return { blocks, cells, centroids: asFloats(updated.centroids!) };
    }

    const matrix = (data: ArrayLike<number>): Matrix => ({
      rows: entries,
      columns: channels,
      data: Float64Array.from(data),
    });
    const rowText = (data: ArrayLike<number>, row: number) =>
      Array.from({ length: channels }, (_, k) => Math.fround(data[row * channels + k]!)).join();

    test('starts at distinct points while there are any, the same ones every time', async () => {
      await fc.assert(
        fc.asyncProperty(draws(middles), async (draw) => {
          const drawn = setting(draw);
          const centroids = await seeded(drawn);
          expect(await seeded(drawn)).toEqual(centroids);
          if (drawn.points.rows === 0) {
            expect(largestOf(centroids)).toBe(0);
            return;
          }
          const nearest = Array.from({ length: entries }, (_, entry) =>
            nearestCentroid(matrix(centroids), entry, drawn.points),
          );
          // Every centroid is a point, up to the rounding of one division.
          expect(Math.max(...nearest.map(({ distance }) => distance))).toBeLessThan(
            1e-12 * largestOf(centroids) ** 2 + 1e-30,
          );
          const distinct = new Set(
            Array.from({ length: drawn.points.rows }, (_, row) => rowText(drawn.points.data, row)),
          );
          const chosen = new Set(Array.from({ length: entries }, (_, entry) => rowText(centroids, entry)));
          if (drawn.points.rows <= codebookSample) expect(chosen.size).toBe(Math.min(entries, distinct.size));
        }),
        { numRuns: RUNS },
      );
    });

    test('one Lloyd round moves every centroid to the weighted mean of its points', async () => {
      await fc.assert(
        fc.asyncProperty(draws(middles), async (draw) => {
          const drawn = setting(draw);
          const { points, weights } = drawn;
          const before = await seeded(drawn);
          const { blocks, cells, centroids } = await lloydStep(drawn, before);
          expect(await lloydStep(drawn, before)).toEqual({ blocks, cells, centroids });

          const reference = matrix(before);
          const sums = new Float64Array(entries * channels);
          const counts = new Float64Array(entries);
          const unsure = new Float64Array(entries);
          for (let row = 0; row < points.rows; row++) {
            const { index, rivals } = nearestWithRivals(points, row, reference);
            const weight = weights[Math.floor((row * channels) / g.headDim)]!;
            counts[index]! += weight;
            for (let k = 0; k < channels; k++) sums[index * channels + k]! += weight * points.data[row * channels + k]!;
            for (const entry of rivals) {
              unsure[entry]! += weight;
              unsure[index]! += weight;
            }
          }
          const scale = Math.max(largestOf(points.data), 1e-30);
          for (let entry = 0; entry < entries; entry++) {
            let count = 0;
            const total = new Float64Array(channels);
            for (let block = 0; block < blocks; block++) {
              const at = (block * entries + entry) * (channels + 1);
              count += cells[at + channels]!;
              for (let k = 0; k < channels; k++) total[k]! += cells[at + k]!;
            }
            const rounding = g.weighted ? 1e-5 * count : 0;
            expect(Math.abs(count - counts[entry]!)).toBeLessThanOrEqual(unsure[entry]! + rounding);
            const moved = centroids.slice(entry * channels, (entry + 1) * channels);
            if (count === 0) expect(moved).toEqual(before.slice(entry * channels, (entry + 1) * channels));
            else
              expect(
                worstDifference(
                  moved,
                  total.map((sum) => sum / count),
                ).by,
              ).toBeLessThanOrEqual(1e-5 * scale);
            if (unsure[entry] === 0) {
              const expected = sums.slice(entry * channels, (entry + 1) * channels);
              expect(worstDifference(total, expected).by).toBeLessThanOrEqual(1e-5 * scale * Math.max(1, count));
            }
          }
          const all = Float64Array.from(weights).reduce((sum, weight) => sum + weight, 0) * (g.headDim / channels);
          const summed = cells.filter((_, i) => i % (channels + 1) === channels).reduce((sum, n) => sum + n, 0);
          expect(Math.abs(summed - all)).toBeLessThanOrEqual(g.weighted ? 1e-4 * all : 0);
        }),
        { numRuns: RUNS },
      );
    });

    test('stores the codebook as f16 and the nearest entry of every vector', async () => {
      await fc.assert(
        fc.asyncProperty(draws(middles), async (draw) => {
          const drawn = setting(draw);
          const { layout, points, shared, middle, record } = drawn;
          const centroids = await seeded(drawn);
          const part = (name: string) => layout.parts.find((candidate) => candidate.name === name)!;
          const stored = await runKernel(
            kernels,
            'codebook_store',
            {},
            { sequence: record, centroids, cache: new Uint8Array(layout.bytes).fill(untouched) },
          );
          const codebook = halfValues(asHalfBits(partBytes(layout, stored.cache!, 'codebook')));
          const expected = halfValues(halfBits(centroids));
          expect(worstDifference(codebook, expected).by).toBeLessThanOrEqual(2 ** -24);
          expect(strayWrites(stored.cache!, [part('codebook')])).toEqual([]);

          const outputs = await runKernel(
            kernels,
            'assign_values',
            { middleTokens: middle },
            { ...shared, cache: stored.cache! },
          );
          const codes = partBytes(layout, outputs.cache!, 'valueCodes');
          expect(codes.length).toBe(points.rows);
          const entriesAsStored = matrix(codebook);
          const scale = largestOf(points.data);
          for (let row = 0; row < points.rows; row++) {
            const { distance } = nearestCentroid(points, row, entriesAsStored);
            const taken = distanceTo(points, row, entriesAsStored, codes[row]!);
            expect(taken).toBeLessThanOrEqual(distance * (1 + 1e-4) + 1e-12 * scale * scale);
          }
          expect(strayWrites(outputs.cache!, [part('codebook'), part('valueCodes')])).toEqual([]);
        }),
        { numRuns: RUNS },
      );
    });
  });
});

function distanceTo(points: Matrix, row: number, centroids: Matrix, entry: number): number {
  const { columns } = points;
  let sum = 0;
  for (let k = 0; k < columns; k++) {
    sum += (points.data[row * columns + k]! - centroids.data[entry * columns + k]!) ** 2;
  }
  return sum;
}

/** The nearest entry, and those that float32 may take for it: as near to 1e-4, and not the same numbers again. */
function nearestWithRivals(points: Matrix, row: number, centroids: Matrix): { index: number; rivals: number[] } {
  const distances = Float64Array.from({ length: centroids.rows }, (_, entry) =>
    distanceTo(points, row, centroids, entry),
  );
  let index = 0;
  for (let entry = 1; entry < distances.length; entry++) if (distances[entry]! < distances[index]!) index = entry;
  const size = largestOf(points.data.subarray(row * points.columns, (row + 1) * points.columns));
  const limit = distances[index]! * (1 + 1e-4) + 1e-12 * size * size;
  const rivals: number[] = [];
  for (let entry = 0; entry < distances.length; entry++) {
    if (entry !== index && distances[entry]! <= limit && distanceTo(centroids, index, centroids, entry) > 0) {
      rivals.push(entry);
    }
  }
  return { index, rivals };
}
