import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { seededRandom } from '../../runtime/reference/index.js';
import { asWords, cases, deviceNames, load, openDevice, runKernel } from './harness.js';

/** Ranges to copy from, and for every move which of them it copies. */
const draws = fc.record({
  sources: fc.array(fc.oneof(fc.constantFrom(0, 1, 255, 256, 257, 1023, 1024, 1025, 2048), fc.nat(5000)), {
    minLength: 1,
    maxLength: 4,
  }),
  moves: fc.array(fc.nat(100), { minLength: 1, maxLength: 8 }),
  seed: fc.nat(0xffff),
});

describe.each(deviceNames)('copy on %s', (deviceName) => {
  let device: Device;
  let kernels: LoadedKernels;
  beforeAll(async () => {
    device = await openDevice(deviceName);
    // The kernel knows nothing of the geometry.
    kernels = await load(device, cases[0]!, ['copy_words']);
  }, 60_000);
  afterAll(() => device?.close());

  test('copies every range to its place, and writes nothing else', async () => {
    await fc.assert(
      fc.asyncProperty(draws, async ({ sources, moves, seed }) => {
        const random = seededRandom(seed);
        // Ranges of sources and of targets in any order, with a few words between them.
        const lengths = [...sources, ...moves.map((pick) => sources[pick % sources.length]!)];
        const order = lengths.map((_, range) => ({ range, key: random() })).sort((a, b) => a.key - b.key);
        const starts: number[] = [];
        let end = Math.floor(random() * 3);
        for (const { range } of order) {
          starts[range] = end;
          end += lengths[range]! + Math.floor(random() * 3);
        }
        const before = Uint32Array.from({ length: end + 1 }, () => random() * 2 ** 32);
        const after = before.slice();
        const list = moves.map((pick, move) => {
          const source = pick % sources.length;
          const [from, to, words] = [starts[source]!, starts[sources.length + move]!, sources[source]!];
          after.set(before.subarray(from, from + words), to);
          return [from, to, words];
        });
        const words = Math.max(...list.map((move) => move[2]!));
        const outputs = await runKernel(
          kernels,
          'copy_words',
          { moves: list.length, words },
          { moves: Uint32Array.from(list.flat()), cache: before },
        );
        expect(asWords(outputs.cache!)).toEqual(after);
      }),
      { numRuns: 30 },
    );
  });
});
