import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import type { PrefillDraw } from '../../runtime/verify/caseDraws.js';
import type { Judge } from '../../runtime/verify/judge.js';
import { prefillCase } from '../../runtime/verify/prefillCase.js';
import { promptTaps, Tap } from '../../runtime/verify/tap.js';
import { type DeviceName, deviceNames, openDevice, targetOf } from '../stages/harness.js';
import { polarCases } from '../stages/polarCases.js';
import { changed } from './cuda/text.js';
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
      entry: 'turn_keys',
      drive: drivePrompt,
      mutants: [
        changed('angles of the upper half alone', 'b < 0.0f ? -angle : angle', 'angle'),
        changed('angles of the right half alone', '    angle = 1.0f - angle;\n', ''),
        changed('angles of an eighth alone', '    angle = 0.5f - angle;\n', ''),
        changed('an arctangent to 4 digits', 'sum = sum * square + 0.31830988f', 'sum = sum * square + 0.3182f'),
        changed('the square of a radius', 'sqrtf(a * a + b * b)', 'a * a + b * b'),
        changed('angles in place of radii', 'row[first_channel] = coded.x', 'row[first_channel] = coded.y'),
        changed('the first token of the prompt', 'position = sinks + token', 'position = token'),
      ],
    },
    {
      entry: 'attend',
      drive: driveAttend(1e-5),
      mutants: [
        changed('a radius below zero that points the other way', 'fmaxf(radius, 0.0f)', 'radius'),
        changed('two quarters of a turn', 'side >= 2u', 'side == 2u'),
        changed('a quarter of a turn to the other side', 'side == 1u ||', ''),
        changed('sines as cosines', '? sine : cosine', '? cosine : sine'),
        changed('a sine to 4 digits', '+ 3.14159264f', '+ 3.141f'),
        changed('a cosine to 4 digits', '- 4.934802f', '- 4.9341f'),
        changed('the angle of the next pair', 'kv_head, second_channel)', 'kv_head, first_channel)'),
      ],
    },
    {
      entry: 'decompress',
      drive: driveDecompress,
      mutants: [
        changed(
          'one channel of a pair for both',
          'channels[second_channel] = pair.y',
          'channels[second_channel] = pair.x',
        ),
        changed('the radius of another channel', 'row, head, first_channel)', 'row, head, second_channel)'),
      ],
    },
  ],
  webgpu: [
    {
      entry: 'turn_keys',
      drive: drivePrompt,
      mutants: [
        changed('angles of the upper half alone', 'select(angle, -angle, b < 0.0)', 'angle'),
        changed('an arctangent to 4 digits', 'sum = sum * square + 0.31830988', 'sum = sum * square + 0.3182'),
        changed('angles in place of radii', 'head + a] = pair.x', 'head + a] = pair.y'),
        changed('the first token of the prompt', 'head_row + token', 'head_row + token - 1u'),
      ],
    },
    {
      entry: 'attend',
      drive: driveAttend(1e-5),
      mutants: [
        changed('a radius below zero that points the other way', 'max(radius, 0.0)', 'radius'),
        changed('two quarters of a turn', 'side >= 2u', 'side == 2u'),
        changed('sines as cosines', 'select(cosine, sine, is_odd)', 'select(sine, cosine, is_odd)'),
        changed('a cosine to 4 digits', '- 4.934802', '- 4.9341'),
        changed('radii as they are stored', 'key_a[n][k] = pair.x', 'key_b[n][k] = pair.x'),
      ],
    },
    {
      entry: 'decompress',
      drive: driveDecompress,
      mutants: [
        changed('one channel of a pair for both', 'vector[b] = pair.y', 'vector[b] = pair.x'),
        changed(
          'channels that lie side by side',
          'middle_key(token - sinks_end, head, b)',
          'middle_key(token - sinks_end, head, a + 1u)',
        ),
      ],
    },
  ],
};

describe.each(deviceNames)('planted faults in keys as radius and angle on %s', (deviceName) => {
  let device: Device;
  let generated: GeneratedKernels;
  const { scheme, model } = polarCases[1]!;
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
