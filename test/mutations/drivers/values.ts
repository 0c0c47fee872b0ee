import { uniformRandom } from '../../../dsl/random.js';
import type { LoadedKernels } from '../../../runtime/kernels.js';
import { hadamard, type Matrix, nearestCentroid } from '../../../runtime/reference/index.js';
import { halfBits, halfValues, type Kind, largestOf, numbers, worstDifference } from '../../../runtime/verify/draws.js';
import { type Judge, Worst } from '../../../runtime/verify/judge.js';
import { asFloats, runKernel } from '../../../runtime/verify/run.js';
import { lowRankOf } from '../../lowRank.js';
import { middleSetting, writtenParts } from './setting.js';

const POINTS_PER_BLOCK = 2048;
const TILE = 32;

export async function driveRotate(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  for (const middle of [37, 1]) {
    const { record } = middleSetting(g, middle);
    const tokens = g.scheme.sinks + middle + g.scheme.window;
    const bits = halfBits(numbers({ kind: 'normal', seed: 9 }, g.kvHeads * tokens, g.headDim));
    const values = halfValues(bits);
    const tiles = Math.ceil(middle / TILE);
    const outputs = await runKernel(
      kernels,
      'rotate_values',
      { middleTokens: middle },
      {
        sequence: record,
        values: bits,
        rotated: { bytes: middle * g.width * 4 },
        partial_maxima: { bytes: tiles * g.width * 4 },
      },
    );
    const rotated = asFloats(outputs.rotated!);
    const expected = new Float64Array(middle * g.width);
    const largest = new Float64Array(tiles * g.width);
    for (let token = 0; token < middle; token++) {
      for (let head = 0; head < g.kvHeads; head++) {
        const start = (head * tokens + g.scheme.sinks + token) * g.headDim;
        expected.set(hadamard(values.slice(start, start + g.headDim)), token * g.width + head * g.headDim);
      }
      for (let channel = 0; channel < g.width; channel++) {
        const at = Math.floor(token / TILE) * g.width + channel;
        largest[at] = Math.max(largest[at]!, Math.abs(rotated[token * g.width + channel]!));
      }
    }
    const { at, by } = worstDifference(rotated, expected);
    judge.check(`rotated, entry ${at}`, by, 1e-5 * largestOf(expected));
    judge.check('maxima of a tile', worstDifference(asFloats(outputs.partial_maxima!), largest).by, 0);
  }
}

/** Rotated values with their channel scales, and the points they stand for in float64. */
function pointSetting(kernels: LoadedKernels, middle: number, kind: Kind) {
  const g = lowRankOf(kernels.geometry);
  const setting = middleSetting(g, middle);
  const rotated = Float32Array.from(numbers({ kind, seed: 10 }, middle, g.width));
  const largest = new Float64Array(g.width).fill(2 ** -23);
  for (const [i, x] of rotated.entries()) largest[i % g.width] = Math.max(largest[i % g.width]!, Math.abs(x));
  const scales = halfValues(halfBits(largest));
  const points: Matrix = {
    rows: (middle * g.width) / g.channels,
    columns: g.channels,
    data: Float64Array.from(rotated, (x, i) => x / scales[i % g.width]!),
  };
  const shared = { sequence: setting.record, rotated, channel_scales: Float32Array.from(scales) };
  return { ...setting, points, shared, middle };
}

const matrixOf = (kernels: LoadedKernels, data: ArrayLike<number>): Matrix => ({
  rows: lowRankOf(kernels.geometry).entries,
  columns: lowRankOf(kernels.geometry).channels,
  data: Float64Array.from(data),
});

/** k-means++ of a sample that holds every point: each is drawn in proportion to its squared distance. */
function seedReference({ rows, columns, data }: Matrix, entries: number, seed: number): Float64Array {
  const centroids = new Float64Array(entries * columns);
  const distances = new Float64Array(rows).fill(Infinity);
  let chosen = Math.min(Math.floor(uniformRandom(seed, 0) * rows), rows - 1);
  for (let entry = 0; entry < entries; entry++) {
    const newest = data.slice(chosen * columns, (chosen + 1) * columns);
    centroids.set(newest, entry * columns);
    let total = 0;
    for (let row = 0; row < rows; row++) {
      const distance = newest.reduce((sum, x, k) => sum + (x - data[row * columns + k]!) ** 2, 0);
      distances[row] = Math.min(distances[row]!, distance);
      total += distances[row]!;
    }
    const target = uniformRandom(seed, entry + 1) * total;
    let before = 0;
    chosen = distances.findIndex((distance) => {
      before += distance;
      return before > target;
    });
  }
  return centroids;
}

async function seeded(kernels: LoadedKernels, setting: ReturnType<typeof pointSetting>): Promise<Float32Array> {
  const { entries, channels } = lowRankOf(kernels.geometry);
  const distances = kernels.device.target === 'wgsl' ? { distances: { bytes: 4096 * 4 } } : {};
  const outputs = await runKernel(
    kernels,
    'codebook_seed',
    { middleTokens: setting.middle },
    { ...setting.shared, centroids: { bytes: entries * channels * 4 }, ...distances },
  );
  return asFloats(outputs.centroids!);
}

export async function driveSeed(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { entries, channels, scheme } = lowRankOf(kernels.geometry);
  // Five warps of sample points.
  const normal = pointSetting(kernels, 200, 'normal');
  const expected = seedReference(normal.points, entries, scheme.values[2].seed);
  const { at, by } = worstDifference(await seeded(kernels, normal), expected);
  judge.check(`drawn points, entry ${Math.floor(at / channels)}`, by, 1e-6);
  // Fewer points than entries, the same point more than once, and none: distinct while there are any, then repeated.
  for (const [middle, kind] of [
    [1, 'normal'],
    [20, 'zeros'],
    [0, 'normal'],
  ] as const) {
    const setting = pointSetting(kernels, middle, kind);
    const centroids = await seeded(kernels, setting);
    const row = (data: ArrayLike<number>, index: number) =>
      Array.from({ length: channels }, (_, k) => Math.fround(data[index * channels + k]!)).join();
    const chosen = new Set(Array.from({ length: entries }, (_, entry) => row(centroids, entry)));
    const distinct = new Set(Array.from({ length: setting.points.rows }, (_, i) => row(setting.points.data, i)));
    const wanted = Math.max(1, Math.min(entries, distinct.size));
    judge.check(`${middle} tokens, ${kind}: distinct points chosen`, Math.abs(chosen.size - wanted), 0);
    judge.check(`${middle} tokens, ${kind}: finite`, largestOf(centroids) < 1e6 ? 0 : 1, 0);
  }
}

export async function driveAssign(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { entries, channels } = lowRankOf(kernels.geometry);
  for (const middle of [180, 7]) {
    const { points, shared } = pointSetting(kernels, middle, 'normal');
    const centroids = Float32Array.from(points.data.subarray(0, entries * channels), (x) => x + 0.01);
    const blocks = Math.ceil(points.rows / POINTS_PER_BLOCK);
    const bytes = blocks * entries * (channels + 1) * 4;
    const outputs = await runKernel(
      kernels,
      'codebook_assign',
      { middleTokens: middle },
      { ...shared, centroids, partial_cells: { bytes } },
    );
    const cells = new Float64Array(bytes / 4);
    for (let row = 0; row < points.rows; row++) {
      const { index } = nearestCentroid(points, row, matrixOf(kernels, centroids));
      const cell = (Math.floor(row / POINTS_PER_BLOCK) * entries + index) * (channels + 1);
      for (let k = 0; k < channels; k++) cells[cell + k]! += points.data[row * channels + k]!;
      cells[cell + channels]!++;
    }
    const { at, by } = worstDifference(asFloats(outputs.partial_cells!), cells);
    judge.check(`${middle} tokens: sums and counts, cell ${Math.floor(at / (channels + 1))}`, by, 1e-4);
  }
}

export async function driveUpdate(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { entries, channels } = lowRankOf(kernels.geometry);
  // More chunks than half a warp has lanes, the last one not full.
  const { record, middle, points } = pointSetting(kernels, 3600, 'normal');
  const blocks = Math.ceil(points.rows / POINTS_PER_BLOCK);
  const cells = Float32Array.from(numbers({ kind: 'normal', seed: 11 }, blocks * entries, channels + 1), (x, i) =>
    i % (channels + 1) < channels ? x : Math.floor(i / (channels + 1)) % entries === 5 ? 0 : 1 + (i % 7),
  );
  const before = Float32Array.from(numbers({ kind: 'normal', seed: 12 }, entries, channels));
  const outputs = await runKernel(
    kernels,
    'codebook_update',
    { middleTokens: middle },
    { sequence: record, partial_cells: cells, centroids: before },
  );
  const expected = Float64Array.from(before, (kept, i) => {
    let [sum, members] = [0, 0];
    for (let block = 0; block < blocks; block++) {
      const cell = (block * entries + Math.floor(i / channels)) * (channels + 1);
      sum += cells[cell + (i % channels)]!;
      members += cells[cell + channels]!;
    }
    return members === 0 ? kept : sum / members;
  });
  const { at, by } = worstDifference(asFloats(outputs.centroids!), expected);
  judge.check(`centroids, entry ${Math.floor(at / channels)}`, by, 1e-5 * largestOf(expected));
}

export async function driveCodes(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { entries, channels } = lowRankOf(kernels.geometry);
  // Words of four codes: a whole block of threads with a second that is not full.
  for (const middle of [50, 1]) {
    const { layout, points, shared, cache } = pointSetting(kernels, middle, 'normal');
    const codebook = halfBits(numbers({ kind: 'normal', seed: 13 }, entries, channels).map((x) => x / 3));
    const part = layout.parts.find(({ name }) => name === 'codebook')!;
    cache.set(new Uint8Array(codebook.buffer), part.offset);
    const outputs = await runKernel(kernels, 'assign_values', { middleTokens: middle }, { ...shared, cache });
    const [codes] = writtenParts(layout, outputs.cache!, ['valueCodes', 'codebook'], judge);
    const stored = matrixOf(kernels, halfValues(codebook));
    const worst = new Worst();
    for (let row = 0; row < points.rows; row++) {
      const { index } = nearestCentroid(points, row, stored);
      worst.add(Math.abs(codes![row]! - index), () => `vector ${row}`);
    }
    judge.check(`codes of ${middle} tokens: ${worst.at}`, worst.error, 0);
  }
}
