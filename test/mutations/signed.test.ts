import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import type { PrefillDraw } from '../../runtime/verify/caseDraws.js';
import type { Judge } from '../../runtime/verify/judge.js';
import { prefillCase } from '../../runtime/verify/prefillCase.js';
import { promptTaps, Tap } from '../../runtime/verify/tap.js';
import { type DeviceName, deviceNames, openDevice, targetOf } from '../stages/harness.js';
import { signedCases } from '../stages/signedCases.js';
import { changed, without } from './cuda/text.js';
import { driveAttend } from './drivers/attend.js';
import { driveDecompress } from './drivers/decompress.js';
import { type Mutant, plant, reporters, reportOf } from './mutant.js';

const prompt: Omit<PrefillDraw, 'tokens'> = {
  keys: 'normal',
  values: 'normal',
  seed: 7,
  query: { queries: 1, splits: 2, reach: 1, aligned: false },
};

type Drive = (kernels: LoadedKernels, judge: Judge) => Promise<void>;

async function drivePrompt(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { sinks, window } = kernels.geometry.scheme;
  const tap = new Tap(kernels.device, { bindings: promptTaps, apart: false });
  await prefillCase(kernels, tap, { ...prompt, tokens: sinks + 37 + window }, { judge, bar: 1e-5, halves: false });
}

interface Suspect {
  readonly entry: string;
  readonly drive: Drive;
  readonly mutants: readonly Mutant[];
}

const suspects: Readonly<Record<DeviceName, readonly Suspect[]>> = {
  emulator: [
    {
      entry: 'sign_keys',
      drive: drivePrompt,
      mutants: [
        without('the squares are summed up, and the channels have been read'),
        changed('no random signs', 'residual * tables[PROJECTION_SIGNS + channel]', 'residual'),
        changed('signs of keys', ' - key_channel(keys, tables, token, head, channel)', ''),
        changed('the other signs', 'x < 0.0f ? 0u : 1u', 'x < 0.0f ? 1u : 0u'),
        changed(
          'lengths without the scale of the transform',
          'channels[channel * 32 + i] * HADAMARD_SCALE',
          'channels[channel * 32 + i]',
        ),
        changed('the length of 32 channels', 'i < HEAD_DIM / 32; ++i) square', 'i < 1; ++i) square'),
        changed(
          "lengths in each other's places",
          'pack_half2(lengths[0], lengths[1])',
          'pack_half2(lengths[1], lengths[0])',
        ),
      ],
    },
    {
      entry: 'attend',
      drive: driveAttend(1e-5),
      mutants: [
        without('every token of the tile is transformed'),
        without('the tile is filled, or the previous stride is complete'),
        changed('the signs of the first word', 'signs[channel / 32]', 'signs[0]'),
        changed('the length of the first head', 'token * NORM_WORDS, head)', 'token * NORM_WORDS, 0)'),
        changed('no random signs', 'side = tables[PROJECTION_SIGNS + channel]', 'side = 1.0f'),
        changed(
          'one stride fewer',
          'stride *= 2) {\n    __syncthreads();  // the tile is filled',
          'stride *= 4) {\n    __syncthreads();  // the tile is filled',
        ),
      ],
    },
    {
      entry: 'decompress',
      drive: driveDecompress,
      mutants: [
        changed('codes without what they leave', 'row, head, channel) + residual', 'row, head, channel)'),
        changed(
          'the signs of another token',
          'residual_sign(sequence, cache, row,',
          'residual_sign(sequence, cache, 0,',
        ),
      ],
    },
  ],
  webgpu: [
    {
      entry: 'sign_keys',
      drive: drivePrompt,
      mutants: [
        changed('signs of keys', ' - middle_key(token, head, thread)', ''),
        changed('the other signs', 'select(1u, 0u, x < 0.0)', 'select(0u, 1u, x < 0.0)'),
        changed('the length of 32 channels', 'i < HEAD_DIM / 32u; i++', 'i < 1u; i++'),
      ],
    },
    {
      entry: 'attend',
      drive: driveAttend(1e-5),
      mutants: [
        changed('the signs of the first word', 'channel / 32u];', '0u];'),
        changed('codes without what they leave', 'coded_a[n] + ', 'coded_a[n] + 0.0 * '),
        changed(
          'one stride fewer',
          'span = 1u; span < HADAMARD_BLOCK; span *= 2u) {\n    workgroupBarrier();  // the tile',
          'span = 2u; span < HADAMARD_BLOCK; span *= 2u) {\n    workgroupBarrier();  // the tile',
        ),
      ],
    },
    {
      entry: 'decompress',
      drive: driveDecompress,
      mutants: [changed('codes without what they leave', 'head, thread) + residual', 'head, thread)')],
    },
  ],
};

describe.each(deviceNames)('planted faults in signs of what codes leave on %s', (deviceName) => {
  let device: Device;
  let generated: GeneratedKernels;
  const { scheme, model } = signedCases[1]!;
  beforeAll(async () => {
    device = await openDevice(deviceName);
    generated = await generate(scheme, model, targetOf(device));
  });
  afterAll(() => device?.close());

  const run = ({ entry, drive }: Suspect, mutant?: Mutant) => {
    const kernels = mutant ? plant(generated, entry, mutant) : generated;
    return reportOf(() => LoadedKernels.load(device, kernels), drive);
  };

  describe.each(suspects[deviceName].map((suspect) => [suspect.entry, suspect] as const))('%s', (_, suspect) => {
    test.concurrent('without a fault', async () => {
      expect(await run(suspect)).toBe('nothing');
    });

    test.concurrent.each(suspect.mutants.map((mutant) => [mutant.name, mutant] as const))('%s', async (_, mutant) => {
      expect(await run(suspect, mutant)).toMatch(reporters[mutant.by]);
    });
  });
});
