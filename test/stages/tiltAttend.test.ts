import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { geometryOf } from '../../dsl/geometry.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { attendDraws } from '../../runtime/verify/attendDraws.js';
import { attendCase, decompressCase } from '../../runtime/verify/codeCases.js';
import { Judge } from '../../runtime/verify/judge.js';
import { deviceNames, openDevice, targetOf } from './harness.js';
import { tiltCases } from './tiltCases.js';

const SEED = 20261201;
/** Largest error of a sequence's output, over its largest magnitude: all is in float32. */
const bar = 1e-5;

describe.each(deviceNames)('tile-rotated keys on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(tiltCases)('$name', ({ scheme, model }) => {
    const g = geometryOf(scheme, model);
    let kernels: LoadedKernels;
    beforeAll(async () => {
      const entries = ['attend', 'decompress', ...(device.target === 'wgsl' ? ['attend_merge'] : [])];
      kernels = await LoadedKernels.load(device, await generate(scheme, model, targetOf(device)), entries);
    });

    test('are attended as float64 does on the same codes', async () => {
      await fc.assert(
        fc.asyncProperty(attendDraws(g), async (draw) => {
          const judge = new Judge();
          await attendCase(kernels, draw, { judge, bar, halves: false });
          expect(judge.failures).toEqual([]);
        }),
        { numRuns: 14, seed: SEED },
      );
    });

    test('decompress to every token in order', async () => {
      await fc.assert(
        fc.asyncProperty(attendDraws(g), async (draw) => {
          const judge = new Judge();
          await decompressCase(kernels, draw, { judge, bar, halves: false });
          expect(judge.failures).toEqual([]);
        }),
        { numRuns: 8, seed: SEED },
      );
    });
  });
});
