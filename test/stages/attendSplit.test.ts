import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import type { Target } from '../../dsl/stage.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type AttendDraw, attendDraws, attendSetting, type SequenceDraw } from '../../runtime/verify/attendDraws.js';
import { attendOn } from '../../runtime/verify/attendOn.js';
import { worstError } from '../../runtime/verify/draws.js';
import { type Case, geometry, makeCase } from './harness.js';

const RUNS = 10;
const SEED = 20261201;
const target: Target = { language: 'cuda', arch: 'sm_90a', tensorCores: true };

/** Two sets of query heads and one, d 64 and 128, ranks that fill the steps of a product or leave the last odd, and the limits. */
const splitCases: readonly Case[] = [
  makeCase({ heads: 8, kvHeads: 2, headDim: 128, rank: 96, bits: 4, window: 20, rotaryDim: 64 }),
  makeCase({ heads: 7, kvHeads: 1, headDim: 64, rank: 64, bits: 4, streamBits: 4, sinks: 0, rotaryDim: 32 }),
  makeCase({
    heads: 3,
    kvHeads: 1,
    headDim: 64,
    rank: 32,
    bits: 4,
    entries: 64,
    pairing: 'interleaved',
    rotaryDim: 32,
  }),
  makeCase({ heads: 4, kvHeads: 2, headDim: 64, rank: 64, bits: 4, weight: 'queries', scoreCap: 50, unbiased: true }),
  makeCase({ heads: 16, kvHeads: 2, headDim: 128, rank: 256, bits: 4, entries: 64, rotaryDim: 16 }),
];

const nothing: SequenceDraw = {
  sinks: 0,
  middle: 0,
  stream: 0,
  window: 0,
  windowStart: 0,
  spare: 0,
  splits: 1,
  slidingWindow: 0,
  reach: 1,
  aligned: false,
  magnitude: 1,
};

/** Middles that end about a tile of 128 positions or half of one, and that take several rounds of all warpgroups. */
const tileEdges: readonly [AttendDraw][] = [60, 61, 124, 125, 252, 253, 700].map((middle, i) => [
  { sequences: [{ ...nothing, middle, splits: 1 + (i % 3), reach: i % 2 === 0 ? 40 : 1 }], queries: 1, seed: i },
]);

describe.each(splitCases)('attention that turns queries for slow pairs, $name', (drawnCase) => {
  const g = geometry(drawnCase);
  let device: EmulatorDevice;
  let kernels: LoadedKernels;
  beforeAll(async () => {
    device = await EmulatorDevice.open({ checks: 'full', order: 'shuffled', seed: 5 });
    const generated = await generate(drawnCase.scheme, drawnCase.model, target);
    const attend = generated.manifest.kernels.find(({ entry }) => entry === 'attend');
    expect(attend?.tunables).toMatchObject({ split: 1 });
    kernels = await LoadedKernels.load(device, generated, ['attend']);
  });
  afterAll(() => device?.close());

  test('agrees with float64 attention over the decoded tokens', async () => {
    await fc.assert(
      fc.asyncProperty(attendDraws(g), async (draw) => {
        const setting = attendSetting(g, draw);
        const { output, counters } = await attendOn(kernels, draw, setting);
        const length = draw.queries * g.heads * g.headDim;
        for (let at = 0; at < output.length; at += length) {
          const row = [output.slice(at, at + length), setting.expected.slice(at, at + length)] as const;
          expect(worstError(row[0], row[1], length).by).toBeLessThanOrEqual(2e-3);
        }
        expect([...counters].every((count) => count === 0)).toBe(true);
      }),
      { numRuns: RUNS + tileEdges.length, seed: SEED, examples: [...tileEdges] },
    );
  });
});

test('gives the same bits in every order of blocks and threads', async () => {
  const [drawnCase] = splitCases;
  const g = geometry(drawnCase!);
  const draw: AttendDraw = {
    sequences: [
      { ...nothing, sinks: 2, middle: 300, stream: 5, window: 3, splits: 2 },
      { ...nothing, middle: 140, splits: 3 },
    ],
    queries: 1,
    seed: 9,
  };
  const setting = attendSetting(g, draw);
  const generated = await generate(drawnCase!.scheme, drawnCase!.model, target);
  const outputs: number[][] = [];
  for (const order of ['ascending', 'descending', 'shuffled'] as const) {
    const device = await EmulatorDevice.open({ checks: 'none', order, seed: 3 });
    const kernels = await LoadedKernels.load(device, generated, ['attend']);
    const { output } = await attendOn(kernels, draw, setting);
    outputs.push([...new Uint32Array(output.buffer, output.byteOffset, output.length)]);
    await device.close();
  }
  expect(outputs[1]).toEqual(outputs[0]);
  expect(outputs[2]).toEqual(outputs[0]);
});
