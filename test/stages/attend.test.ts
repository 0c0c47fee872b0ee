import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { Geometry } from '../../dsl/geometry.js';
import type { Target } from '../../dsl/stage.js';
import { partialWords } from '../../dsl/stages/attend.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type AttendDraw, type AttendSetting, attendDraws, attendSetting } from './attendDraws.js';
import { largestOf, worstDifference } from './draws.js';
import {
  asFloats,
  type Case,
  cases,
  type DeviceName,
  geometry,
  makeCase,
  openDevice,
  runKernel,
  targetOf,
} from './harness.js';

/** Runs for each geometry: with eight geometries every schedule sees more than a hundred draws. */
const RUNS = 16;
const SEED = 20260527;

const allCases: readonly Case[] = [
  ...cases,
  // No grouping, and the widest; a head with three Hadamard blocks; a first group without bits; many exact tokens.
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
  makeCase({ heads: 8, kvHeads: 1, headDim: 256, rank: 144, bits: [4, 4], group: 128, streamBits: 3 }),
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
  /** Largest error of a sequence's output, over its largest magnitude, when scores reach so far. */
  readonly bar: (reach: number) => number;
}

const single = () => 1e-5;
/** A key rounded to f16 moves a score by up to 2^-11 of its terms, and the weight by as much; half of it is typical. */
const half = (reach: number) => 2e-3 + reach * 2 ** -12;

const schedules: readonly Schedule[] = [
  { name: 'CUDA, float32', device: 'emulator', options: {}, bar: single },
  { name: 'CUDA, tensor cores', device: 'emulator', options: { tensorCores: true }, bar: half },
  { name: 'WGSL', device: 'webgpu', options: {}, bar: single },
  { name: 'WGSL, subgroups', device: 'webgpu', options: { subgroups: true }, bar: single },
  { name: 'WGSL, f16', device: 'webgpu', options: { f16: true }, bar: half },
];

/** Software adapters have no f16: then f32 vectors, rounded to f16 when stored, stand for the f16 ones. */
function withoutHalves(generated: GeneratedKernels): GeneratedKernels {
  const files = new Map<string, string>();
  for (const [name, text] of generated.files) {
    const rounded = text
      .replace('enable f16;\n', '')
      .replace('alias tile_quad = vec4<f16>;', 'alias tile_quad = vec4f;')
      .replace(
        'return tile_quad(clamp(quad, vec4f(-65504.0), vec4f(65504.0)));',
        'let c = clamp(quad, vec4f(-65504.0), vec4f(65504.0));\n' +
          '  return vec4f(unpack2x16float(pack2x16float(c.xy)), unpack2x16float(pack2x16float(c.zw)));',
      );
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
  return LoadedKernels.load(device, halves ? withoutHalves(generated) : generated, ['attend', 'attend_merge']);
}

/** Rows in an order of their own, each with the splits of its sequence, side by side. */
function workOf(g: Geometry, { sequences, seed }: AttendDraw): Uint32Array {
  const rows = sequences.flatMap(({ splits }, sequence) =>
    Array.from({ length: g.kvHeads }, (_, kvHead) => ({ sequence, kvHead, splits })),
  );
  const turned = rows.map((_, i) => rows[(i + seed) % rows.length]!);
  return Uint32Array.from(
    turned.flatMap(({ sequence, kvHead, splits }) =>
      Array.from({ length: splits }, (_, split) => [sequence, kvHead, split, splits]).flat(),
    ),
  );
}

interface Attended {
  readonly output: Float32Array;
  readonly counters: Uint32Array;
}

async function attendOn(kernels: LoadedKernels, draw: AttendDraw, setting: AttendSetting): Promise<Attended> {
  const g = kernels.geometry;
  const work = workOf(g, draw);
  const workItems = work.length / 4;
  const counters = new Uint32Array(draw.sequences.length * g.kvHeads);
  const inputs = {
    sequences: setting.records,
    work,
    cache: setting.cache,
    query: setting.query,
    tables: setting.tables,
    partials: { bytes: workItems * partialWords(g) * 4 },
  };
  const output = { bytes: setting.expected.length * 4 };
  if (kernels.device.target === 'cuda') {
    const results = await runKernel(kernels, 'attend', { workItems }, { ...inputs, output, counters });
    return { output: asFloats(results.output!), counters: new Uint32Array(results.counters!.buffer) };
  }
  const { partials } = await runKernel(kernels, 'attend', { workItems }, inputs);
  const merged = await runKernel(kernels, 'attend_merge', { workItems }, { work, partials: partials!, output });
  return { output: asFloats(merged.output!), counters };
}

type Floats = Float32Array | Float64Array;

/** The worst error of every `length` numbers, over their largest magnitude; zeros must be zeros. */
function worstError(output: Floats, expected: Floats, length: number): number {
  let worst = 0;
  for (let start = 0; start < expected.length; start += length) {
    const judge = expected.subarray(start, start + length);
    const { by } = worstDifference(output.subarray(start, start + length), judge);
    const largest = largestOf(judge);
    worst = Math.max(worst, largest > 0 ? by / largest : by === 0 ? 0 : Number.POSITIVE_INFINITY);
  }
  return worst;
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
          reach: 1,
          aligned: false,
        },
      ],
      seed: 0,
    };

    test('agrees with float64 attention over the decoded tokens', async () => {
      await fc.assert(
        fc.asyncProperty(attendDraws(g), async (draw) => {
          const setting = attendSetting(g, draw);
          const { output, counters } = await attendOn(kernels, draw, setting);
          draws++;
          for (const [index, { reach }] of draw.sequences.entries()) {
            const row = (values: Floats) => values.slice(index * rowLength, (index + 1) * rowLength);
            const error = worstError(row(output), row(setting.expected), rowLength);
            worst.set(reach, Math.max(worst.get(reach) ?? 0, error));
            expect(error).toBeLessThanOrEqual(bar(reach));
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
          const reach = Math.max(...draw.sequences.map((sequence) => sequence.reach));
          const again = { ...draw, sequences: draw.sequences.map((sequence) => ({ ...sequence, splits })) };
          const first = await attendOn(kernels, draw, setting);
          const second = await attendOn(kernels, again, setting);
          expect(worstError(second.output, first.output, rowLength)).toBeLessThanOrEqual(bar(reach));
        }),
        { numRuns: 3, seed: SEED },
      );
    });

    test('gives zeros for a sequence without tokens, beside one that has some', async () => {
      const nothing = { sinks: 0, middle: 0, stream: 0, window: 0, windowStart: 0, spare: 1, reach: 1, aligned: false };
      const some = { ...nothing, middle: 5, window: 1, splits: 2 };
      const draw = { sequences: [{ ...nothing, splits: 3 }, some], seed: 1 };
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
