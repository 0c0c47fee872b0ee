import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { allocationError, bestWidths, errorBound, seededRandom } from '../../runtime/reference/index.js';
import { strayWrites, untouched } from '../../runtime/verify/draws.js';
import {
  asWords,
  deviceNames,
  geometry,
  load,
  makeCase,
  openDevice,
  partBytes,
  promptSetting,
  runKernel,
} from './harness.js';

const RUNS = 30;

/** One group and two units; a usual model's sizes; more units than threads; all groups at 8 bits and to spare. */
const cases = [
  makeCase({ heads: 1, kvHeads: 1, headDim: 16, rank: 16, bits: { budget: 32 } }),
  makeCase({ heads: 9, kvHeads: 3, headDim: 64, rank: 64, bits: { budget: 96 } }),
  makeCase({ heads: 32, kvHeads: 8, headDim: 128, rank: 256, bits: { budget: 768 } }),
  makeCase({ heads: 32, kvHeads: 8, headDim: 128, rank: 1024, bits: { budget: 8192 } }),
];

const spectra = ['decaying', 'steep', 'flat', 'zeros', 'one component', 'rounding below zero', 'random'] as const;

/** Eigenvalues as Jacobi rotations leave them: descending, of any size, some a little below zero. */
function eigenvalues(kind: (typeof spectra)[number], rank: number, seed: number): Float32Array {
  const random = seededRandom(seed);
  const size = 10 ** (60 * random() - 30);
  const rate = random();
  const values = Float32Array.from({ length: rank }, (_, r) => {
    switch (kind) {
      case 'decaying':
        return size * (1 + r) ** (-3 * rate);
      case 'steep':
        return size * Math.exp(-r * rate);
      case 'flat':
        return size;
      case 'zeros':
        return 0;
      case 'one component':
        return r === 0 ? size : 0;
      case 'rounding below zero':
        return r < rank / 2 ? size * (1 - r / rank) : -1e-7 * size * random();
      case 'random':
        return size * random();
    }
  });
  return values.sort((a, b) => b - a);
}

describe.each(deviceNames)('allocated widths on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  }, 60_000);
  afterAll(() => device?.close());

  describe.each(cases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const units = g.keyRowWords * 2;
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['allocate_bits']);
    }, 60_000);

    test('have the least expected error that the budget allows, place after place, the same every time', async () => {
      const drawn = fc.record({ kind: fc.constantFrom(...spectra), seed: fc.nat({ max: 0xffff }) });
      await fc.assert(
        fc.asyncProperty(drawn, async ({ kind, seed }) => {
          const { layout, record } = promptSetting(g, g.scheme.sinks + 1 + g.scheme.window);
          const values = eigenvalues(kind, g.rank, seed);
          const run = () =>
            runKernel(
              kernels,
              'allocate_bits',
              {},
              {
                sequence: record,
                values,
                choices: { bytes: g.allocatedGroups * (units + 1) * 4 },
                cache: new Uint8Array(layout.bytes).fill(untouched),
              },
            );
          const { cache } = await run();
          const words = asWords(partBytes(layout, cache!, 'keyWidths'));
          expect(strayWrites(cache!, [layout.parts.find(({ name }) => name === 'keyWidths')!])).toEqual([]);
          expect(asWords(partBytes(layout, (await run()).cache!, 'keyWidths'))).toEqual(words);

          const bits = Array.from(words, (word) => word % 16);
          let first = 0;
          for (const [group, word] of words.entries()) {
            expect(Math.floor(word / 16)).toBe(first);
            first += bits[group]! * 16;
          }
          expect(first).toBeLessThanOrEqual(g.keyRowWords * 32);

          const variances = Array.from({ length: g.allocatedGroups }, (_, group) =>
            values.slice(group * 16, (group + 1) * 16).reduce((sum, value) => sum + Math.max(0, value), 0),
          );
          const error = allocationError(variances, bits);
          expect(error).toBeLessThanOrEqual(bestWidths(variances, units).error * (1 + 1e-6));
          expect(error).toBeGreaterThanOrEqual(errorBound(variances, units) * (1 - 1e-9));
          // Where bits buy nothing, none are spent.
          for (const [group, variance] of variances.entries()) if (variance === 0) expect(bits[group]).toBe(0);
        }),
        { numRuns: RUNS },
      );
    });
  });
});
