import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { Target } from '../../dsl/stage.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type AttendDraw, attendDraws, attendSetting } from '../../runtime/verify/attendDraws.js';
import { attendOn } from '../../runtime/verify/attendOn.js';
import { type Floats, largestOf, worstError } from '../../runtime/verify/draws.js';
import { type Case, cases, type DeviceName, geometry, makeCase, openDevice, targetOf } from './harness.js';

/** Runs for each geometry: with eleven geometries both CUDA schedules together see three hundred draws, and the WGSL ones more. */
const RUNS = 14;
const SEED = 20260527;

const allCases: readonly Case[] = [
  ...cases,
  // No grouping, and the widest; heads with three Hadamard blocks; a first group without bits; many exact tokens; the
  // largest heads, one with a rotary part that ends inside a matrix tile.
  makeCase({
    heads: 2,
    kvHeads: 2,
    headDim: 96,
    rank: 48,
    bits: [0, 8, 4],
    group: 16,
    channels: 2,
    streamBits: 4,
    window: 40,
  }),
  makeCase({
    heads: 16,
    kvHeads: 1,
    headDim: 64,
    rank: 32,
    bits: [2, 6],
    group: 16,
    entries: 32,
    streamBits: 8,
    sinks: 20,
  }),
  makeCase({
    heads: 8,
    kvHeads: 1,
    headDim: 256,
    rank: 144,
    bits: [4, 4],
    group: 128,
    streamBits: 3,
    scoreCap: 50,
    scoreScale: 1 / 12,
  }),
  makeCase({
    heads: 6,
    kvHeads: 2,
    headDim: 192,
    rank: 64,
    bits: { budget: 160 },
    rotaryDim: 72,
    weight: 'queries',
    streamBits: 4,
  }),
];

/** Tokens of a tile where the schedule has a choice; the default elsewhere. */
const tileTokens: Readonly<Record<string, number>> = {
  [allCases[1]!.name]: 8,
  [allCases[2]!.name]: 4,
  [allCases[3]!.name]: 8,
};

interface Schedule {
  readonly name: string;
  readonly device: DeviceName;
  readonly options: { readonly tensorCores?: boolean; readonly f16?: boolean; readonly subgroups?: boolean };
  /** Largest error of a sequence's output, over its largest magnitude. */
  readonly bar: number;
}

const single = 1e-5;
const half = 2e-3;

const schedules: readonly Schedule[] = [
  { name: 'CUDA, float32', device: 'emulator', options: {}, bar: single },
  { name: 'CUDA, tensor cores', device: 'emulator', options: { tensorCores: true }, bar: half },
  { name: 'WGSL', device: 'webgpu', options: {}, bar: single },
  { name: 'WGSL, subgroups', device: 'webgpu', options: { subgroups: true }, bar: single },
  { name: 'WGSL, f16', device: 'webgpu', options: { f16: true }, bar: half },
];

const halfTexts = [
  ['enable f16;\n', ''],
  ['alias tile_quad = vec4<f16>;', 'alias tile_quad = vec4f;'],
  [
    'return tile_quad(clamp(quad, vec4f(-65504.0), vec4f(65504.0)));',
    'let c = clamp(quad, vec4f(-65504.0), vec4f(65504.0));\n' +
      '  return vec4f(unpack2x16float(pack2x16float(c.xy)), unpack2x16float(pack2x16float(c.zw)));',
  ],
] as const;

/** A replacement that meets nothing would leave float32 under test, and the test passing. */
function replaced(name: string, text: string): string {
  const attend = name === 'attend.wgsl';
  return halfTexts.reduce((result, [half, single]) => {
    if (attend) expect(result, `${name} no longer holds what stands for f16`).toContain(half);
    return result.replace(half, single);
  }, text);
}

/** Software adapters have no f16: then f32 vectors, rounded to f16 when stored, stand for the f16 ones. */
function withoutHalves(generated: GeneratedKernels): GeneratedKernels {
  const files = new Map<string, string>();
  for (const [name, text] of generated.files) {
    const rounded = replaced(name, text);
    files.set(name, rounded);
  }
  const kernels = generated.manifest.kernels.map((kernel) => ({
    ...kernel,
    requires: kernel.requires.filter((feature) => feature !== 'shader-f16'),
  }));
  return { ...generated, files, manifest: { ...generated.manifest, kernels } };
}

async function loadAttend(device: Device, { name, scheme, model }: Case, target: Target): Promise<LoadedKernels> {
  const tile = tileTokens[name];
  const tensor = target.language === 'cuda' && target.tensorCores;
  const choice = tile === undefined || tensor ? {} : { attend: { tileTokens: tile } };
  const generated = await generate(scheme, model, target, choice);
  const halves = target.language === 'wgsl' && target.f16 && !device.features.has('shader-f16');
  const entries = target.language === 'wgsl' ? ['attend', 'attend_merge'] : ['attend'];
  return LoadedKernels.load(device, halves ? withoutHalves(generated) : generated, entries);
}

describe.each(schedules)('attention by $name', ({ name, device: deviceName, options, bar }) => {
  let device: Device;
  /** By reach. */
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
    console.info(`attend, ${name}: ${draws} draws, worst errors by largest score: ${errors.join(', ')}`);
  });

  describe.each(allCases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const rowLength = g.heads * g.headDim;
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await loadAttend(device, drawnCase, targetOf(device, options));
    });

    // The angle tables end with row 63, the last tile of the middle with position 64: no kernel may look that far.
    const pastTheTables: AttendDraw = {
      sequences: [
        {
          sinks: Math.min(1, g.scheme.sinks),
          middle: 49,
          stream: 0,
          window: 0,
          windowStart: 0,
          spare: 0,
          splits: 1,
          slidingWindow: 0,
          reach: 1,
          aligned: false,
          magnitude: 1,
        },
      ],
      queries: 1,
      seed: 0,
    };

    test('agrees with float64 attention over the decoded tokens', async () => {
      await fc.assert(
        fc.asyncProperty(attendDraws(g), async (draw) => {
          const setting = attendSetting(g, draw);
          const { output, counters } = await attendOn(kernels, draw, setting);
          draws++;
          for (const [index, { reach }] of draw.sequences.entries()) {
            const length = draw.queries * rowLength;
            const row = (values: Floats) => values.slice(index * length, (index + 1) * length);
            const error = worstError(row(output), row(setting.expected), length).by;
            worst.set(reach, Math.max(worst.get(reach) ?? 0, error));
            expect(error).toBeLessThanOrEqual(bar);
          }
          expect([...counters].every((count) => count === 0)).toBe(true);
        }),
        { numRuns: RUNS, seed: SEED, examples: [[pastTheTables]] },
      );
    });

    test('does not depend on the number of splits', async () => {
      await fc.assert(
        fc.asyncProperty(attendDraws(g), fc.integer({ min: 1, max: 8 }), async (draw, splits) => {
          const setting = attendSetting(g, draw);
          const again = { ...draw, sequences: draw.sequences.map((sequence) => ({ ...sequence, splits })) };
          const first = await attendOn(kernels, draw, setting);
          const second = await attendOn(kernels, again, setting);
          expect(worstError(second.output, first.output, rowLength).by).toBeLessThanOrEqual(bar);
        }),
        { numRuns: 3, seed: SEED },
      );
    });

    // More splits than a merge takes in a round, all but the first of them empty.
    test('merges more splits than a block has threads', async () => {
      const few = { ...pastTheTables.sequences[0]!, middle: 0, window: 1, slidingWindow: 0 };
      const draw = { sequences: [{ ...few, splits: 300 }], queries: 1, seed: 2 };
      const setting = attendSetting(g, draw);
      const { output } = await attendOn(kernels, draw, setting);
      expect(worstError(output, setting.expected, output.length).by).toBeLessThanOrEqual(bar);
    });

    test('gives zeros for a sequence without tokens, beside one that has some', async () => {
      const nothing = {
        sinks: 0,
        middle: 0,
        stream: 0,
        window: 0,
        windowStart: 0,
        spare: 1,
        slidingWindow: 0,
        reach: 1,
        aligned: false,
        magnitude: 1,
      };
      const some = { ...nothing, middle: 5, window: 1, splits: 2 };
      const draw = { sequences: [{ ...nothing, splits: 3 }, some], queries: 1, seed: 1 };
      const { output } = await attendOn(kernels, draw, attendSetting(g, draw));
      expect([...output.subarray(0, rowLength)].every((x) => x === 0)).toBe(true);
      expect(largestOf(output.subarray(rowLength))).toBeGreaterThan(0);
    });
  });
});

describe.each([false, true])('CUDA with tensor cores %s', (tensorCores) => {
  const drawnCase = cases[3]!;
  const g = geometry(drawnCase);
  const orders = ['ascending', 'descending', 'shuffled'] as const;
  const devices: EmulatorDevice[] = [];
  const kernels: LoadedKernels[] = [];
  beforeAll(async () => {
    for (const order of orders) {
      const device = await EmulatorDevice.open({ checks: 'none', order, seed: 3 });
      devices.push(device);
      kernels.push(await loadAttend(device, drawnCase, targetOf(device, { tensorCores })));
    }
  });
  afterAll(() => Promise.all(devices.map((device) => device.close())));

  test('gives the same bits in every order of blocks and threads', async () => {
    await fc.assert(
      fc.asyncProperty(attendDraws(g), async (draw) => {
        const setting = attendSetting(g, draw);
        const bits: number[][] = [];
        for (const loaded of kernels) {
          const { output } = await attendOn(loaded, draw, setting);
          bits.push([...new Uint32Array(output.buffer, output.byteOffset, output.length)]);
        }
        expect(bits[1]).toEqual(bits[0]);
        expect(bits[2]).toEqual(bits[0]);
      }),
      { numRuns: RUNS, seed: SEED },
    );
  });
});
