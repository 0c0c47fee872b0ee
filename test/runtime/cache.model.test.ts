import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type DeviceName, openDevice } from '../stages/harness.js';
import { generated, scheme } from './cacheCase.js';
import { commands, empty, type Model, type Real } from './cacheModel.js';

const devices: readonly { readonly name: DeviceName; readonly schedule: string; readonly runs: number }[] = [
  { name: 'emulator', schedule: 'in float32', runs: 40 },
  { name: 'emulator', schedule: 'on tensor cores', runs: 20 },
  { name: 'webgpu', schedule: 'in float32', runs: 30 },
];

describe.each(devices)('a cache on $name, $schedule', ({ name, schedule, runs }) => {
  let device: Device;
  let kernels: LoadedKernels;
  beforeAll(async () => {
    device = await openDevice(name);
    kernels = await LoadedKernels.load(device, await generated(device, scheme, schedule === 'on tensor cores'));
  });
  afterAll(() => device?.close());

  test('is what plain arrays of tokens are, whatever is done to it', async () => {
    const done = new Set<string>();
    await fc.assert(
      fc.asyncProperty(fc.commands([...commands], { size: '+1', maxCommands: 20 }), async (list) => {
        const open = (sequences: number, tokens: number, generatedTokens: number) =>
          KvCache.open(kernels, { sequences, tokens, generated: generatedTokens });
        const model: Model = { sequences: [empty, empty, empty], tokens: 24, generated: 12, unit: 0 };
        const real: Real = { cache: open(3, model.tokens, model.generated), open, kernels };
        try {
          await fc.asyncModelRun(() => ({ model, real }), list);
        } finally {
          await real.cache.release();
        }
        for (const command of list) done.add(/^[a-z ]+/.exec(String(command))![0]);
      }),
      { numRuns: runs },
    );
    expect([...done].sort()).toEqual([
      'append',
      'attend',
      'crop',
      'fork',
      'keep',
      'prefill',
      'refused',
      'reorder',
      'save and load',
      'step',
    ]);
  });
});
