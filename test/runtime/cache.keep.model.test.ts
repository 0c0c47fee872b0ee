import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hadamard } from '../../dsl/codecs/hadamard.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { perChannel, perHead, perToken } from '../../dsl/codecs/quantize.js';
import { asymmetric, symmetric } from '../../dsl/codecs/uniform.js';
import { defineScheme } from '../../dsl/scheme.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { deviceNames, openDevice } from '../stages/harness.js';
import { generated, scheme } from './cacheCase.js';
import { commands, empty, type Model, type Real } from './cacheModel.js';

const ends = { sinks: scheme.sinks, window: scheme.window, stream: lloydMax({ bits: 8 }) };

/** A row of scales a token, for several tokens in two lengths, and one for the prompt. */
const schemes = [
  {
    unit: 1,
    scheme: defineScheme({
      name: 'by-token',
      keys: [hadamard(), perToken(symmetric({ bits: 8 }))],
      values: [perToken(asymmetric({ bits: 8 }), { channels: 16 })],
      ...ends,
    }),
  },
  {
    unit: 32,
    scheme: defineScheme({
      name: 'by-block',
      keys: [perChannel(asymmetric({ bits: 8 }), { tokens: 16 })],
      values: [perChannel(asymmetric({ bits: 8 }), { tokens: 32 })],
      ...ends,
    }),
  },
  {
    unit: 1,
    scheme: defineScheme({
      name: 'by-head',
      keys: [perHead(asymmetric({ bits: 8 }))],
      values: [hadamard(), perHead(symmetric({ bits: 8 }))],
      ...ends,
    }),
  },
];

describe.each(deviceNames)('keeping some tokens on %s', (name) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(name);
  });
  afterAll(() => device?.close());

  test.each(schemes)('leaves the others as they are, coded $scheme.name', async ({ scheme: own, unit }) => {
    const kernels = await LoadedKernels.load(device, await generated(device, own));
    const done = new Set<string>();
    await fc.assert(
      fc.asyncProperty(fc.commands([...commands], { size: '+1', maxCommands: 20 }), async (list) => {
        const open = (sequences: number, tokens: number, generatedTokens: number) =>
          KvCache.open(kernels, { sequences, tokens, generated: generatedTokens });
        const model: Model = { sequences: [empty, empty, empty], tokens: 90, generated: 12, unit };
        const real: Real = { cache: open(3, model.tokens, model.generated), open, kernels };
        try {
          await fc.asyncModelRun(() => ({ model, real }), list);
        } finally {
          await real.cache.release();
        }
        for (const command of list) done.add(/^[a-z ]+/.exec(String(command))![0]);
      }),
      { numRuns: 20 },
    );
    for (const command of ['append', 'attend', 'crop', 'fork', 'keep', 'prefill', 'save and load', 'step']) {
      expect(done).toContain(command);
    }
  });
});
