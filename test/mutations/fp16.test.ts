import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Fp16Kernels, generateFp16 } from '../../codegen/generateFp16.js';
import type { HeadGeometry } from '../../dsl/headGeometry.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice, type EmulatorOptions } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { worstError } from '../../runtime/verify/draws.js';
import { attendFp16On, type Fp16Draw, fp16Setting } from '../../runtime/verify/fp16Draws.js';
import type { Judge } from '../../runtime/verify/judge.js';
import { makeCase, openDevice, targetOf } from '../stages/harness.js';
import { changed, without } from './cuda/text.js';
import { type Mutant, plant, reporters, reportOf } from './mutant.js';

const { model } = makeCase({ heads: 6, kvHeads: 3, headDim: 32, rank: 16, bits: 4, group: 16 });

const one = { tokens: 0, splits: 1, slidingWindow: 0, reach: 10, aligned: false };

/** More tiles than a ring holds, the last one not full; blocks that share a row; two queries that see different tokens. */
const draws: readonly Fp16Draw[] = [
  { sequences: [{ ...one, tokens: 219 }], spare: 0, queries: 1, seed: 1 },
  {
    sequences: [
      { ...one, tokens: 70, splits: 3 },
      { ...one, tokens: 5, splits: 2 },
    ],
    spare: 1,
    queries: 1,

    seed: 2,
  },
  { sequences: [{ ...one, tokens: 90, splits: 2, slidingWindow: 37 }], spare: 2, queries: 2, seed: 3 },
];

/** @param bar largest error of a sequence's output, over its largest magnitude */
const driveFp16 = (bar: number) => async (kernels: LoadedKernels<HeadGeometry>, judge: Judge) => {
  const { geometry: g } = kernels;
  for (const [index, draw] of draws.entries()) {
    const setting = fp16Setting(g, draw);
    const { output, counters } = await attendFp16On(kernels, setting);
    const { at, by } = worstError(output, setting.expected, draw.queries * g.heads * g.headDim);
    judge.check(`draw ${index}, output ${at}`, by, bar);
    judge.check(`draw ${index}, counters left at zero`, counters.filter((count) => count !== 0).length, 0);
  }
};

const syncwarp = (comment: string): Mutant => ({
  name: `no __syncwarp: ${comment}`,
  text: `__syncwarp();  // ${comment}\n`,
  instead: '\n',
  by: 'race or unwritten',
});

const barrier = (comment: string): Mutant => ({
  name: `no barrier: ${comment}`,
  text: `workgroupBarrier();  // ${comment}\n`,
  instead: '\n',
  by: 'reference',
});

/** Two warps, so that the draws fill their rings more than once. */
const cudaChoice = { warps: 2, stages: 3, tileTokens: 16 };

const cudaMutants: readonly Mutant[] = [
  syncwarp('what every lane asked for of this tile is there'),
  syncwarp('every lane has read the tile: another one may take its place'),
  without('no warp needs its ring any more: the results of the warps take the place'),
  without('the results of all warps are there'),
  without('all slices of every sum are there'),
  {
    ...without('the partial result is complete before the block is counted'),
    by: 'block race',
  },
  without('all know whether the other blocks of the row are done'),
  changed('a tile that is not waited for', 'cp_async_wait<STAGES - 1>();', 'cp_async_wait<STAGES>();', 'unwritten'),
  changed('no fence before the count', '__threadfence();\n    u32* counter', 'u32* counter', 'block race'),
  changed('a count that stays', 'if (last) *counter = 0u;', ''),
  changed('a token too many', 'score = token < count ?', 'score = token <= count ?'),
  changed('rows past the end left as they were', '= uint4{0u, 0u, 0u, 0u};', ';', 'unwritten'),
  changed('an output that never shrinks', '__any_sync(0xffffffffu, risen)', '__any_sync(0xffffffffu, false)'),
  changed('the factor of the neighbouring head', 'lane_id() % 4 * 8 + 4)};', 'lane_id() % 4 * 8)};'),
  changed('half the lanes of a weight sum', 'weight += __shfl_xor_sync(0xffffffffu, weight, 2);', ''),
  changed('values as keys', 'ldmatrix_x4_trans(columns', 'ldmatrix_x4(columns'),
  changed('a maximum of half the tokens', 'largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));', ''),
  changed('a merge that forgets the maximum', 'sum.largest = largest;', ''),
  changed('a part too many', 'first + k * SLICES < count', 'first + k * SLICES <= count', 'unwritten'),
  changed('the room of a sequence taken for its length', 'record[AT_ROOM] * ', 'record[AT_TOKENS] * '),
];

const wgslMutants: readonly Mutant[] = [
  barrier('query and keys are complete, and the scores of the tile before have been read'),
  barrier('scores are complete, and the keys have been read'),
  changed(
    'a token too few',
    'let count = min(TILE_TOKENS, share.end - first);',
    'let count = min(TILE_TOKENS - 1u, share.end - first);',
  ),
  changed(
    'the room of a sequence taken for its length',
    'sequences[record + AT_ROOM]',
    'sequences[record + AT_TOKENS]',
  ),
  changed('an output that never shrinks', 'var sum = accumulated[h] * shrink;', 'var sum = accumulated[h];'),
  changed('the channels of a word swapped', 'low[t / 4u][t % 4u] = two.x;', 'low[t / 4u][t % 4u] = two.y;'),
];

describe.each([
  ['CUDA', 'emulator', cudaChoice, cudaMutants, 2e-3],
  ['WGSL', 'webgpu', {}, wgslMutants, 1e-5],
] as const)('planted faults in uncompressed attention, %s', (_name, deviceName, choice, mutants, bar) => {
  let device: Device;
  let kernels: Fp16Kernels;
  beforeAll(async () => {
    device = await openDevice(deviceName);
    kernels = await generateFp16(model, targetOf(device, { tensorCores: true }), choice);
  });
  afterAll(() => device?.close());

  test('without a fault', async () => {
    expect(await reportOf(() => LoadedKernels.load(device, kernels), driveFp16(bar))).toBe('nothing');
  });

  test.each(mutants.map((mutant) => [mutant.name, mutant] as const))('%s', async (_, mutant) => {
    const planted = plant(kernels, 'attend_fp16', mutant);
    const report = await reportOf(() => LoadedKernels.load(device, planted), driveFp16(bar));
    expect(report).toMatch(reporters[mutant.by]);
  });
});

/** Orders beside the shuffled one of the other tests; even seeds hold a block after its atomic, odd ones before it. */
const orders: readonly (readonly [string, EmulatorOptions])[] = [
  ['descending', { order: 'descending' }],
  ['block 0 and thread 0 starved', { order: 'starved', seed: 0 }],
  ['block 1 and thread 3 starved', { order: 'starved', seed: 3 }],
  ['block 2 starved, threads descending', { order: { blocks: 'starved', threads: 'descending' }, seed: 4 }],
];

test.each(orders)('uncompressed attention is right and has no race, %s', async (_, options) => {
  const device = await EmulatorDevice.open(options);
  try {
    const kernels = await generateFp16(model, targetOf(device, { tensorCores: true }), cudaChoice);
    expect(await reportOf(() => LoadedKernels.load(device, kernels), driveFp16(2e-3))).toBe('nothing');
  } finally {
    await device.close();
  }
});
