import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generateFp16 } from '../../codegen/generateFp16.js';
import type { HeadGeometry } from '../../dsl/headGeometry.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import type { Target } from '../../dsl/stage.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type Floats, worstError } from '../../runtime/verify/draws.js';
import { attendFp16On, type Fp16Draw, fp16Draws, fp16Setting } from '../../runtime/verify/fp16Draws.js';
import { type DeviceName, openDevice, targetOf } from './harness.js';

/** Runs for each of eight models: with the fixed draws, more than a hundred on each backend. */
const RUNS = 14;
const SEED = 20261201;

interface Parts {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly scoreScale?: number;
  readonly scoreCap?: number;
  /** Of the CUDA schedule. */
  readonly choice?: Readonly<Record<string, number>>;
}

function modelOf({ heads, kvHeads, headDim, scoreScale, scoreCap }: Parts): ModelShape {
  const config = {
    model_type: 'llama',
    hidden_size: heads * headDim,
    num_hidden_layers: 1,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    rope_theta: 10000,
    max_position_embeddings: 4096,
  };
  const plain = modelFrom(config, `${heads}-${kvHeads}-${headDim}${scoreCap ? '-capped' : ''}`);
  return {
    ...plain,
    scoreScale: scoreScale ?? plain.scoreScale,
    ...(scoreCap === undefined ? {} : { scoreCap }),
  };
}

/** Every number of query heads around the edges of a matrix tile; the smallest and the largest heads, and odd ones. */
const shapes: readonly Parts[] = [
  { heads: 2, kvHeads: 2, headDim: 16 },
  { heads: 8, kvHeads: 2, headDim: 128 },
  { heads: 5, kvHeads: 1, headDim: 96, choice: { warps: 2, tileTokens: 32 } },
  { heads: 14, kvHeads: 2, headDim: 64, choice: { stages: 2, tileTokens: 32 } },
  { heads: 8, kvHeads: 1, headDim: 256, scoreCap: 50, scoreScale: 1 / 12 },
  { heads: 16, kvHeads: 1, headDim: 80, choice: { warps: 1, stages: 5 } },
  { heads: 16, kvHeads: 1, headDim: 256 },
  { heads: 9, kvHeads: 3, headDim: 48, scoreCap: 5, choice: { warps: 4, stages: 4 } },
];

interface Schedule {
  readonly name: string;
  readonly device: DeviceName;
  /** Largest error of a sequence's output, over its largest magnitude. */
  readonly bar: number;
}

const schedules: readonly Schedule[] = [
  { name: 'CUDA, tensor cores', device: 'emulator', bar: 2e-3 },
  { name: 'WGSL', device: 'webgpu', bar: 1e-5 },
];

const one = { tokens: 0, splits: 1, slidingWindow: 0, reach: 1, aligned: false };

/** Nothing beside something, more splits than tokens, and uneven lengths. */
const fixedDraws: readonly Fp16Draw[] = [
  {
    sequences: [
      { ...one, splits: 3 },
      { ...one, tokens: 5, splits: 8 },
    ],
    spare: 1,
    queries: 1,

    seed: 1,
  },
  {
    sequences: [
      { ...one, tokens: 300 },
      { ...one, tokens: 1 },
    ],
    spare: 0,
    queries: 1,

    seed: 2,
  },
];

async function loadFp16(device: Device, shape: Parts, target: Target): Promise<LoadedKernels<HeadGeometry>> {
  const choice = target.language === 'cuda' ? (shape.choice ?? {}) : {};
  return LoadedKernels.load(device, await generateFp16(modelOf(shape), target, choice));
}

describe.each(schedules)('uncompressed attention by $name', ({ name, device: deviceName, bar }) => {
  let device: Device;
  const worst = new Map<number, number>();
  let draws = 0;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(async () => {
    await device?.close();
    const errors = [...worst]
      .sort(([a], [b]) => a - b)
      .map(([reach, error]) => `${error.toExponential(1)} at ${reach}`);
    console.info(`attendFp16, ${name}: ${draws} draws, worst errors by largest score: ${errors.join(', ')}`);
  });

  describe.each(shapes.map((shape) => [modelOf(shape).name, shape] as const))('%s', (_, shape) => {
    let kernels: LoadedKernels<HeadGeometry>;
    beforeAll(async () => {
      kernels = await loadFp16(device, shape, targetOf(device, { tensorCores: true }));
    });

    test('agrees with float64 attention', async () => {
      const { geometry: g } = kernels;
      await fc.assert(
        fc.asyncProperty(fp16Draws(), async (draw) => {
          const setting = fp16Setting(g, draw);
          const { output, counters } = await attendFp16On(kernels, setting);
          draws++;
          const length = draw.queries * g.heads * g.headDim;
          for (const [index, { reach }] of draw.sequences.entries()) {
            const row = (values: Floats) => values.slice(index * length, (index + 1) * length);
            const error = worstError(row(output), row(setting.expected), length).by;
            worst.set(reach, Math.max(worst.get(reach) ?? 0, error));
            expect(error).toBeLessThanOrEqual(bar);
          }
          expect([...counters].every((count) => count === 0)).toBe(true);
        }),
        { numRuns: RUNS, seed: SEED, examples: fixedDraws.map((draw) => [draw]) },
      );
    });
  });
});

describe('uncompressed attention on the emulator', () => {
  const shape = shapes[1]!;
  const orders = ['ascending', 'descending', 'shuffled'] as const;
  const devices: EmulatorDevice[] = [];
  const kernels: LoadedKernels<HeadGeometry>[] = [];
  beforeAll(async () => {
    for (const order of orders) {
      const device = await EmulatorDevice.open({ checks: 'none', order, seed: 3 });
      devices.push(device);
      kernels.push(await loadFp16(device, shape, targetOf(device, { tensorCores: true })));
    }
  });
  afterAll(() => Promise.all(devices.map((device) => device.close())));

  test('gives the same bits in every order of blocks and threads', async () => {
    await fc.assert(
      fc.asyncProperty(fp16Draws(), async (draw) => {
        const setting = fp16Setting(kernels[0]!.geometry, draw);
        const bits: number[][] = [];
        for (const loaded of kernels) {
          const { output } = await attendFp16On(loaded, setting);
          bits.push([...new Uint32Array(output.buffer, output.byteOffset, output.length)]);
        }
        expect(bits[1]).toEqual(bits[0]);
        expect(bits[2]).toEqual(bits[0]);
      }),
      { numRuns: RUNS, seed: SEED },
    );
  });
});
