import type { LoadedKernels } from '../../../runtime/kernels.js';
import { halfValues, type Kind, largestOf, numbers, worstDifference } from '../../../runtime/verify/draws.js';
import { clampToHalf, halfRounding, type Judge, Worst } from '../../../runtime/verify/judge.js';
import { asFloats, asHalfBits, type Contents, runKernel } from '../../../runtime/verify/run.js';
import { middleSetting, writtenParts } from './setting.js';

/** Sixteen tokens are staged at a time: less than that, several times with a tail (in every slice), none. */
const gramCases: readonly (readonly [number, Kind])[] = [
  [3, 'normal'],
  [300, 'normal'],
  [0, 'zeros'],
];

async function gramOf(
  kernels: LoadedKernels,
  middle: number,
  contents: { readonly sequence: Contents; readonly plain: Contents; readonly mean: Contents },
): Promise<Uint8Array> {
  const square = kernels.geometry.width ** 2 * 4;
  const dimensions = { middleTokens: middle };
  const run = (entry: string, more: Readonly<Record<string, Contents>>) => runKernel(kernels, entry, dimensions, more);
  if (!kernels.has('gram_finish')) return (await run('gram_keys', { ...contents, gram: { bytes: square } })).gram!;
  const slices = kernels.launch('gram_keys', dimensions, {}).grid[2];
  const partial = (await run('gram_keys', { ...contents, partial_gram: { bytes: slices * square } })).partial_gram!;
  const finished = { sequence: contents.sequence, partial_gram: partial, gram: { bytes: square } };
  return (await run('gram_finish', finished)).gram!;
}

export async function driveGram(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { width } = kernels.geometry;
  for (const [middle, kind] of gramCases) {
    const { record } = middleSetting(kernels.geometry, middle);
    const plain = Float32Array.from(numbers({ kind, seed: 3 }, middle, width));
    const mean = Float32Array.from(numbers({ kind: 'normal', seed: 4 }, 1, width));
    const gram = asFloats(await gramOf(kernels, middle, { sequence: record, plain, mean }));
    const expected = new Float64Array(width * width);
    for (let token = 0; token < middle; token++) {
      const row = plain.subarray(token * width, (token + 1) * width);
      for (let i = 0; i < width; i++) {
        for (let j = 0; j < width; j++) {
          expected[i * width + j]! += ((row[i]! - mean[i]!) * (row[j]! - mean[j]!)) / middle;
        }
      }
    }
    const { at, by } = worstDifference(gram, expected);
    judge.check(`gram of ${middle} tokens, entry ${at}`, by, 1e-5 * largestOf(expected));
    const transposed = gram.map((_, place) => gram[(place % width) * width + Math.floor(place / width)]!);
    judge.check(`gram of ${middle} tokens, symmetry`, worstDifference(gram, transposed).by, 0);
  }
}

/** The third makes sums beyond what f16 holds. */
const meanCases = [
  [40, 1],
  [1, 1],
  [33, 1e6],
  [0, 1],
] as const;

export async function driveMean(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { width } = kernels.geometry;
  for (const [middle, factor] of meanCases) {
    const { record, layout, cache } = middleSetting(kernels.geometry, middle);
    const tiles = Math.ceil(middle / 32);
    const sums = Float32Array.from(numbers({ kind: 'normal', seed: 5 }, tiles, width), (x) => x * 32 * factor);
    const outputs = await runKernel(
      kernels,
      'mean_keys',
      { middleTokens: middle },
      { sequence: record, partial_sums: sums, cache, mean: { bytes: width * 4 } },
    );
    const mean = asFloats(outputs.mean!);
    const [stored] = writtenParts(layout, outputs.cache!, ['keyMean'], judge);
    judge.check('mean, as stored', worstDifference(mean, halfValues(asHalfBits(stored!))).by, 0);
    const worst = new Worst();
    for (let channel = 0; channel < width; channel++) {
      let sum = 0;
      for (let tile = 0; tile < tiles; tile++) sum += sums[tile * width + channel]!;
      const exact = clampToHalf(sum / Math.max(middle, 1));
      worst.add(Math.abs(mean[channel]! - exact) / (1.01 * halfRounding(exact)), () => `channel ${channel}`);
    }
    judge.check(`mean of ${middle} tokens, over its rounding: ${worst.at}`, worst.error, 1);
  }
}
