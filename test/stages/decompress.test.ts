import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { layoutSequence } from '../../codegen/plan/layout.js';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { writeRecord } from '../../runtime/record.js';
import {
  decodeShard,
  emptyTensor,
  type HeadTensor,
  readField,
  readSignedField,
  type ShardParts,
  seededRandom,
  vectorAt,
} from '../../runtime/reference/index.js';
import { buildTables } from '../../runtime/tables.js';
import { halfBits, halfValues, type Kind, kinds, largestOf, lengths, numbers } from '../../runtime/verify/draws.js';
import { asHalfBits, cases, deviceNames, geometry, load, openDevice, partBytes, runKernel } from './harness.js';

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
        if (name === 'valueCodes') for (let i = 0; i < bytes; i++) share[offset + i]! %= g.entries;
      }
      return share;
    }

    function partsIn(
      share: Uint8Array,
      layout: ReturnType<typeof layoutSequence>,
      count: { sinks: number; middle: number; stream: number; window: number; start: number },
    ): ShardParts {
      const bytes = (name: string) => partBytes(layout, share, name);
      const halves = (name: string) => halfValues(asHalfBits(bytes(name)));
      const exact = (name: string, tokens: number, rowOf: (token: number) => number): HeadTensor => {
        const tensor = emptyTensor(g.kvHeads, tokens, g.headDim);
        const data = halves(name);
        for (let token = 0; token < tokens; token++) {
          for (let head = 0; head < g.kvHeads; head++) {
            const at = rowOf(token) * g.width + head * g.headDim;
            vectorAt(tensor, head, token).set(data.subarray(at, at + g.headDim));
          }
        }
        return tensor;
      };
      const coefficientCodes = new Int32Array(count.middle * g.rank);
      const keyCodes = bytes('keyCodes');
      for (let token = 0; token < count.middle; token++) {
        for (const group of g.keyGroups) {
          for (let i = 0; i < group.components && group.bits > 0; i++) {
            const offset = (token * g.keyRowWords + group.firstWord) * 32 + i * group.bits;
            const field = readField(keyCodes, { offset, width: group.bits });
            coefficientCodes[token * g.rank + group.firstComponent + i] = field - 2 ** (group.bits - 1);
          }
        }
      }
      const keyBasis = bytes('keyBasis');
      const streamCodes = (name: string) => {
        const data = bytes(name);
        return Uint16Array.from({ length: count.stream * g.width }, (_, i) => {
          const vector = Math.floor(i / g.headDim);
          const offset = vector * g.streamWords * 32 + (i % g.headDim) * g.streamBits;
          return readField(data, { offset, width: g.streamBits });
        });
      };
      const streamNorms = (name: string) => {
        const data = halves(name);
        return Float64Array.from(
          { length: count.stream * g.kvHeads },
          (_, i) => data[Math.floor(i / g.kvHeads) * g.normWords * 2 + (i % g.kvHeads)]!,
        );
      };
      const ring = (token: number) => (count.start + token) % g.scheme.window;
      return {
        kvHeads: g.kvHeads,
        headDim: g.headDim,
        invFreq: g.model.rope.invFreq,
        sinks: {
          keys: exact('sinkKeys', count.sinks, (token) => token),
          values: exact('sinkValues', count.sinks, (token) => token),
        },
        middle: {
          tokens: count.middle,
          firstPosition: count.sinks,
          rank: g.rank,
          coefficientCodes,
          coefficientScales: halves('keyScales').subarray(0, g.rank),
          basisCodes: Int8Array.from({ length: g.width * g.rank }, (_, i) => {
            const byte = Math.floor(i / g.rank) * g.rankWords * 4 + (i % g.rank);
            return readSignedField(keyBasis, { offset: byte * 8, width: 8 });
          }),
          basisScales: halves('keyBasisScales').subarray(0, g.rank),
          mean: halves('keyMean'),
          channels: g.channels,
          valueCodes: Uint16Array.from(bytes('valueCodes')),
          codebook: halves('codebook'),
          channelMax: halves('channelMax'),
        },
        stream: {
          tokens: count.stream,
          keyCodes: streamCodes('streamKeyCodes'),
          valueCodes: streamCodes('streamValueCodes'),
          keyNorms: streamNorms('streamKeyNorms'),
          valueNorms: streamNorms('streamValueNorms'),
          levels: Float64Array.from(g.scheme.stream.levels(g.headDim), Math.fround),
        },
        window: {
          keys: exact('windowKeys', count.window, ring),
          values: exact('windowValues', count.window, ring),
        },
      };
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
          const record = writeRecord(layout, 0, {
            sinkTokens: count.sinks,
            middleTokens: count.middle,
            streamTokens: count.stream,
            windowTokens: count.window,
            windowStart: count.start,
            promptTokens: 0,
          });
          const bytes = tokens * g.width * 2;
          const outputs = await runKernel(
            kernels,
            'decompress',
            { tokens },
            { sequence: record, cache: share, tables: buildTables(g, tokens), keys: { bytes }, values: { bytes } },
          );
          const expected = decodeShard(partsIn(share, layout, count));
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
