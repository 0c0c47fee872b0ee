import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { seededRandom } from '../../runtime/reference/index.js';
import { draws, largestOf, lengths, numbers, worstDifference } from '../../runtime/verify/draws.js';
import { asFloats, cases, deviceNames, geometry, load, openDevice, promptSetting, runKernel } from './harness.js';

const RUNS = 16;
const TILE = 16;

describe.each(deviceNames)('second moments on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(cases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    let kernels: LoadedKernels;
    beforeAll(async () => {
      const finish = device.target === 'cuda' ? ['gram_finish'] : [];
      kernels = await load(device, drawnCase, ['gram_keys', ...finish]);
    });

    test('the matrix is the weighted second moment about the mean, symmetric to the bit', async () => {
      // Wide matrices are slow on a CPU, and tell no more about long prompts than narrow ones.
      const most = g.width > 100 ? 40 : 200;
      await fc.assert(
        fc.asyncProperty(draws(lengths(TILE, most)), async ({ tokens: middle, kind, seed }) => {
          const { record } = promptSetting(g, g.scheme.sinks + middle + g.scheme.window);
          const plain = Float32Array.from(numbers({ kind, seed }, middle, g.width));
          const mean = new Float32Array(g.width);
          for (let at = 0; at < plain.length; at++) mean[at % g.width]! += plain[at]! / middle;
          const random = seededRandom(seed);
          const weights = Float32Array.from({ length: g.width }, () => (g.weighted ? 10 ** (-3 * random()) : 1));
          const tokenWeights = Float32Array.from({ length: middle }, () => (g.weighted ? 0.2 + 3 * random() : 1));
          const square = g.width * g.width * 4;
          const dimensions = { middleTokens: middle };
          const contents = {
            ...{ sequence: record, plain, mean },
            ...(g.weighted ? { weights, token_weights: tokenWeights } : {}),
          };
          const gramOf = async () => {
            if (!kernels.has('gram_finish')) {
              return runKernel(kernels, 'gram_keys', dimensions, { ...contents, gram: { bytes: square } });
            }
            const slices = kernels.launch('gram_keys', dimensions, {}).grid[2];
            const partial = { partial_gram: { bytes: slices * square } };
            const outputs = await runKernel(kernels, 'gram_keys', dimensions, { ...contents, ...partial });
            const finished = { sequence: record, partial_gram: outputs.partial_gram!, gram: { bytes: square } };
            return runKernel(kernels, 'gram_finish', dimensions, finished);
          };
          const outputs = await gramOf();
          const gram = asFloats(outputs.gram!);

          const expected = new Float64Array(g.width * g.width);
          const centred = Float64Array.from(plain, (x, at) => weights[at % g.width]! * (x - mean[at % g.width]!));
          for (let token = 0; token < middle; token++) {
            const row = centred.subarray(token * g.width, (token + 1) * g.width);
            for (let i = 0; i < g.width; i++) {
              for (let j = 0; j < g.width; j++)
                expected[i * g.width + j]! += (tokenWeights[token]! * row[i]! * row[j]!) / middle;
            }
          }
          expect(worstDifference(gram, expected).by).toBeLessThanOrEqual(1e-5 * largestOf(expected));
          const transposed = gram.map((_, at) => gram[(at % g.width) * g.width + Math.floor(at / g.width)]!);
          expect(worstDifference(gram, transposed).by).toBe(0);
        }),
        { numRuns: RUNS },
      );
    });
  });
});
