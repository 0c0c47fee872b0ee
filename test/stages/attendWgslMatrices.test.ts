import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { presetModel } from '../../dsl/model.js';
import { shard } from '../../dsl/schemes/shard.js';
import type { Target } from '../../dsl/stage.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type AttendDraw, attendDraws, attendSetting } from '../../runtime/verify/attendDraws.js';
import { attendOn } from '../../runtime/verify/attendOn.js';
import { type Floats, worstError } from '../../runtime/verify/draws.js';
import { withEmulatedMatrices } from './emulatedMatrices.js';
import { type Case, geometry, makeCase, openDevice } from './harness.js';

// No software adapter multiplies subgroup matrices. The schedule runs here with its products written out (see
// emulatedMatrices.ts), so that all of it but the devices' own products is held to float64; Dawn checks the text as it is.

const target: Target = { language: 'wgsl', f16: true, subgroups: true, subgroupMatrices: true, workgroupBytes: 49152 };
const RUNS = 8;
const SEED = 20260601;
/** Largest error of a sequence's output, over its largest magnitude: `splitError` at scores of 40, all operands being two halves. */
const BAR = 5e-4;

/** More of them take more threads than software adapters have, except of heads with few columns. */
const stepTokens = (drawnCase: Case) => (geometry(drawnCase).headDim <= 32 ? 64 : 32);

const drawnCases: readonly Case[] = [
  makeCase({ heads: 9, kvHeads: 3, headDim: 64, rank: 32, bits: 4, streamBits: 8 }),
  makeCase({ heads: 8, kvHeads: 2, headDim: 32, rank: 32, bits: 4, streamBits: 8, rotaryDim: 16 }),
  // Two tiles of queries; a group without bits, and one that is no nibbles; a rotary part; lanes without channels.
  makeCase({
    heads: 10,
    kvHeads: 2,
    headDim: 80,
    rank: 64,
    bits: [6, 0],
    group: 32,
    entries: 64,
    streamBits: 3,
    sinks: 0,
    rotaryDim: 40,
    pairing: 'interleaved',
  }),
  makeCase({
    heads: 4,
    kvHeads: 2,
    headDim: 128,
    rank: 48,
    bits: { budget: 192 },
    streamBits: 4,
    window: 40,
    weight: 'queries',
    scoreCap: 50,
    scoreScale: 1 / 8,
  }),
  makeCase({ heads: 2, kvHeads: 2, headDim: 96, rank: 80, bits: [8, 4, 2], group: 32, streamBits: 4, sinks: 20 }),
];

/** Several tiles of positions, and splits that begin within one. */
const long: AttendDraw = {
  sequences: [
    {
      sinks: 0,
      middle: 300,
      stream: 40,
      window: 1,
      windowStart: 0,
      spare: 1,
      splits: 3,
      slidingWindow: 0,
      reach: 40,
      aligned: true,
      magnitude: 1,
    },
  ],
  queries: 2,
  seed: 5,
};

function emulated(generated: GeneratedKernels): GeneratedKernels {
  const files = new Map([...generated.files].map(([name, text]) => [name, withEmulatedMatrices(text)]));
  // What is emulated needs room of its own, and none of the features.
  const kernels = generated.manifest.kernels.map((kernel) => ({
    ...kernel,
    requires: [],
    sharedBytes: { fixed: 16384, dynamic: 0 },
  }));
  return { ...generated, files, manifest: { ...generated.manifest, kernels } };
}

describe('attention by emulated subgroup matrices', () => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice('webgpu');
  });
  afterAll(() => device?.close());

  test.each(drawnCases)('$name agrees with float64 attention over the decoded tokens', async (drawnCase) => {
    const g = geometry(drawnCase);
    const attend = { matrices: 1, stepTokens: stepTokens(drawnCase) };
    const generated = await generate(drawnCase.scheme, drawnCase.model, target, { attend });
    const kernels = await LoadedKernels.load(device, emulated(generated), ['attend', 'attend_merge']);
    await fc.assert(
      fc.asyncProperty(attendDraws(g), async (draw) => {
        const setting = attendSetting(g, draw);
        const { output } = await attendOn(kernels, draw, setting);
        const length = draw.queries * g.heads * g.headDim;
        for (const index of draw.sequences.keys()) {
          const row = (values: Floats) => values.slice(index * length, (index + 1) * length);
          expect(worstError(row(output), row(setting.expected), length).by).toBeLessThanOrEqual(BAR);
        }
      }),
      { numRuns: RUNS, seed: SEED, examples: [[long]] },
    );
  });
});

/** Dawn's backend without a device checks texts with every feature there is; it lives as long as what was made from it. */
let checking: GPU | undefined;

test.each(['llama-3.1-8b', 'smollm2-135m', 'qwen2.5-7b'] as const)('Dawn accepts the text for %s', async (model) => {
  const { create } = await import('webgpu');
  checking ??= create(['enable-dawn-features=allow_unsafe_apis', 'backend=null']);
  const adapter = (await checking.requestAdapter())!;
  const features = ['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'];
  const device = await adapter.requestDevice({ requiredFeatures: features as GPUFeatureName[] });
  const { files } = await generate(shard, presetModel(model), target, { attend: { matrices: 1 } });
  const code = files.get('attend.wgsl')!;
  expect(code).toContain('enable chromium_experimental_subgroup_matrix;');
  const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
  expect(messages.map(({ message }) => message)).toEqual([]);
});

describe('the choice of subgroup matrices', () => {
  const attendOf = ({ manifest }: GeneratedKernels) => manifest.kernels.find(({ entry }) => entry === 'attend')!;

  test('is made where a model fits, and asks for the feature there alone', async () => {
    const { manifest } = await generate(shard, presetModel('llama-3.1-8b'), target);
    const asking = manifest.kernels.filter(({ requires }) =>
      requires.includes('chromium-experimental-subgroup-matrix'),
    );
    expect(asking.map(({ entry }) => entry)).toEqual(['attend']);
    expect(attendOf({ manifest } as GeneratedKernels).tunables).toEqual({
      matrices: 1,
      stepTokens: 64,
      tileTokens: 16,
    });
  });

  test('leaves the plain schedule to models that do not fit', async () => {
    const plain = attendOf(await generate(shard, presetModel('gemma-2-9b'), target));
    expect(plain.tunables).toEqual({ matrices: 0, stepTokens: 64, tileTokens: 16 });
    expect(plain.requires).toEqual(['shader-f16', 'subgroups']);
  });

  test.each([
    [
      { matrices: 1 },
      'gemma-2-9b',
      'attend: expected a schedule that fits gemma-2-9b on wgsl, got needs heads of at most 128 channels for subgroup matrices, the model has 256. Change the scheme, the tunables or the target.',
    ],
    [
      { matrices: 1, tileTokens: 8 },
      'llama-3.1-8b',
      'attend: expected a schedule that fits llama-3.1-8b on wgsl, got tileTokens = 8 is for the other schedule (matrices = 0). Change the scheme, the tunables or the target.',
    ],
    [
      { matrices: 0, stepTokens: 32 },
      'llama-3.1-8b',
      'attend: expected a schedule that fits llama-3.1-8b on wgsl, got stepTokens = 32 is for the other schedule (matrices = 1). Change the scheme, the tunables or the target.',
    ],
  ] as const)('%j for %s is refused with the reason', async (attend, model, message) => {
    await expect(generate(shard, presetModel(model), target, { attend })).rejects.toThrow(message);
  });

  test('is refused without f16 and subgroups', async () => {
    const bare: Target = { ...target, language: 'wgsl', f16: false } as Target;
    await expect(generate(shard, presetModel('llama-3.1-8b'), bare)).rejects.toThrow(
      'target.subgroupMatrices: expected true only with f16 and subgroups, got true. See the type Target.',
    );
  });

  test('is refused by a device without them', async () => {
    const device = await openDevice('webgpu');
    try {
      const generated = await generate(shard, presetModel('smollm2-135m'), target);
      const texts = generated.manifest.kernels.map((kernel) =>
        kernel.entry === 'attend' ? { ...kernel, requires: ['chromium-experimental-subgroup-matrix'] } : kernel,
      );
      const asked = { ...generated, manifest: { ...generated.manifest, kernels: texts } };
      await expect(LoadedKernels.load(device, asked, ['attend'])).rejects.toThrow(
        'attend.wgsl: attend: expected a device with chromium-experimental-subgroup-matrix, got one with subgroups, timestamp-query. Generate the kernel without it, or open a device that has it.',
      );
    } finally {
      await device.close();
    }
  });
});
