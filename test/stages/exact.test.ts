import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { draws, halfBits, lengths, numbers, strayWrites, untouched } from '../../runtime/verify/draws.js';
import { asHalfBits, cases, deviceNames, geometry, load, openDevice, promptSetting, runKernel } from './harness.js';

describe.each(deviceNames)('exact on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  }, 60_000);
  afterAll(() => device?.close());

  describe.each(cases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const { sinks, window } = g.scheme;
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['copy_exact']);
    }, 60_000);

    test('copies sinks and window, token by token, and nothing else', async () => {
      // Prompts shorter than sinks and window together, too.
      const tokenCounts = fc.oneof(
        fc.integer({ min: 1, max: sinks + window + 1 }),
        lengths(32, 100).map((n) => n + 1),
      );
      await fc.assert(
        fc.asyncProperty(draws(tokenCounts), async ({ tokens, kind, seed }) => {
          const setting = promptSetting(g, tokens);
          const input = {
            Keys: halfBits(numbers({ kind, seed }, g.kvHeads * tokens, g.headDim)),
            Values: halfBits(numbers({ kind, seed: seed + 1 }, g.kvHeads * tokens, g.headDim)),
          };
          const outputs = await runKernel(
            kernels,
            'copy_exact',
            {},
            {
              sequence: setting.record,
              keys: input.Keys,
              values: input.Values,
              cache: new Uint8Array(setting.layout.bytes).fill(untouched),
            },
          );
          const cache = outputs.cache!;
          const written: { offset: number; bytes: number }[] = [];
          for (const [tensor, bits] of Object.entries(input)) {
            for (const [part, first, count] of [
              [`sink${tensor}`, 0, setting.sinks],
              [`window${tensor}`, tokens - setting.window, setting.window],
            ] as const) {
              const { offset } = setting.layout.parts.find(({ name }) => name === part)!;
              const expected = new Uint16Array(count * g.width);
              for (let token = 0; token < count; token++) {
                for (let head = 0; head < g.kvHeads; head++) {
                  const start = (head * tokens + first + token) * g.headDim;
                  expected.set(bits.subarray(start, start + g.headDim), token * g.width + head * g.headDim);
                }
              }
              const range = { offset, bytes: expected.byteLength };
              written.push(range);
              expect(asHalfBits(cache.slice(range.offset, range.offset + range.bytes))).toEqual(expected);
            }
          }
          expect(strayWrites(cache, written)).toEqual([]);
        }),
        { numRuns: 16 },
      );
    });
  });
});
