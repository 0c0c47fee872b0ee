import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { layoutSequence } from '../../codegen/plan/layout.js';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { writeRecord } from '../../runtime/record.js';
import { decodeShard, pairChannels, seededRandom } from '../../runtime/reference/index.js';
import { unpackShare } from '../../runtime/reference/unpackShare.js';
import { buildTables } from '../../runtime/tables.js';
import { codeValues } from '../../runtime/verify/codeValues.js';
import { halfBits, halfValues, type Kind, kinds, largestOf, lengths, numbers } from '../../runtime/verify/draws.js';
import { asHalfBits, cases, deviceNames, geometry, load, openDevice, runKernel } from './harness.js';

describe.each(deviceNames)('decompress on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  }, 60_000);
  afterAll(() => device?.close());

  describe.each(cases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['decompress']);
    }, 60_000);

    const counts = fc.record({
      sinks: fc.oneof(fc.constant(g.scheme.sinks), fc.nat({ max: g.scheme.sinks })),
      middle: lengths(8, 40),
      stream: fc.oneof(fc.constant(0), fc.nat({ max: 12 })),
      window: fc.oneof(fc.constant(g.scheme.window), fc.nat({ max: g.scheme.window })),
      start: fc.nat({ max: g.scheme.window - 1 }),
    });

    /** Any widths that fill the row at most. */
    function drawnWidths(random: () => number): Uint8Array {
      const words = new Uint32Array(g.allocatedGroups);
      let firstBit = 0;
      for (let group = 0; group < words.length; group++) {
        const bits = [0, 1, 2, 3, 4, 5, 6, 8][Math.floor(random() * 8)]!;
        const stored = firstBit + 16 * bits <= g.keyRowWords * 32 ? bits : 0;
        words[group] = firstBit * 16 + stored;
        firstBit += 16 * stored;
      }
      return new Uint8Array(words.buffer);
    }

    /** The same for both channels of a rotary pair. */
    function weights(random: () => number): Float64Array {
      const drawn = Float64Array.from({ length: g.width }, () => 0.1 + random());
      for (let pair = 0; pair < g.kvHeads * g.rotaryPairs; pair++) {
        const head = Math.floor(pair / g.rotaryPairs) * g.headDim;
        const [a, b] = pairChannels(g.model.rope, pair % g.rotaryPairs);
        drawn[head + b] = drawn[head + a]!;
      }
      return drawn;
    }

    /** A cache share with random codes, and scales and exact tokens of the drawn kind. */
    function drawShare(layout: ReturnType<typeof layoutSequence>, kind: Kind, seed: number): Uint8Array {
      const random = seededRandom(seed);
      const share = Uint8Array.from({ length: layout.bytes }, () => Math.floor(random() * 256));
      for (const { name, offset, bytes } of layout.parts) {
        const isExact = /^(sink|window)|Mean|Norms|channelMax|codebook/.test(name);
        const isScale = name === 'keyScales' || name === 'keyBasisScales';
        if (isExact || isScale) {
          const drawn = numbers({ kind: isScale ? 'normal' : kind, seed: seed + offset }, 1, bytes / 2);
          const sized = drawn.map((x) => (isScale ? Math.abs(x) / 64 : name === 'codebook' ? x / 65504 : x));
          share.set(new Uint8Array(halfBits(sized).buffer), offset);
        }
        if (name === 'keyWidths') share.set(drawnWidths(random), offset);
        if (name === 'keyWeights') share.set(new Uint8Array(halfBits(weights(random)).buffer), offset);
        if (name === 'valueCodes') for (let i = 0; i < bytes; i++) share[offset + i]! %= g.entries;
      }
      return share;
    }

    test('rebuilds every segment in the order of the tokens', async () => {
      await fc.assert(
        fc.asyncProperty(counts, fc.constantFrom(...kinds), fc.nat({ max: 0xffff }), async (count, kind, seed) => {
          const tokens = count.sinks + count.middle + count.stream + count.window;
          if (tokens === 0) return;
          const layout = layoutSequence(g, {
            tokens: g.scheme.sinks + count.middle + g.scheme.window,
            generated: count.stream + 1,
          });
          const share = drawShare(layout, kind, seed);
          const lengths = {
            sinkTokens: count.sinks,
            middleTokens: count.middle,
            streamTokens: count.stream,
            windowTokens: count.window,
            windowStart: count.start,
            promptTokens: 0,
          };
          const record = writeRecord(layout, 0, lengths);
          const bytes = tokens * g.width * 2;
          const outputs = await runKernel(
            kernels,
            'decompress',
            { tokens },
            {
              sequence: record,
              cache: share,
              tables: buildTables(g, tokens, g.model.rope.invFreq),
              keys: { bytes },
              values: { bytes },
            },
          );
          const expected = decodeShard(unpackShare(g, layout, share, lengths, codeValues(g)));
          for (const name of ['keys', 'values'] as const) {
            const actual = halfValues(asHalfBits(outputs[name]!));
            const exact = expected[name].data;
            const absolute = 1e-5 * largestOf(exact);
            for (let i = 0; i < exact.length; i++) {
              const token = Math.floor(i / g.headDim) % tokens;
              const isExact = token < count.sinks || token >= tokens - count.window;
              const clamped = Math.min(Math.max(exact[i]!, -65504), 65504);
              // Half a step of f16 on top of the float32 error; none where tokens are only copied.
              const slack = isExact ? 0 : absolute + Math.abs(clamped) * 2 ** -11 + 2 ** -24;
              if (!(Math.abs(actual[i]! - clamped) <= slack)) {
                expect.fail(`${name}[${i}] (token ${token}): ${actual[i]}, expected ${clamped} within ${slack}`);
              }
            }
          }
        }),
        { numRuns: 16 },
      );
    });
  });
});
