import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SequenceLayout } from '../../codegen/plan/layout.js';
import type { LowRankGeometry } from '../../dsl/geometry.js';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { normalFrom, readField, seededRandom } from '../../runtime/reference/index.js';
import {
  draws,
  halfBits,
  halfValues,
  largestOf,
  lengths,
  numbers,
  strayWrites,
  untouched,
  worstDifference,
} from '../../runtime/verify/draws.js';
import { halfRounding } from '../../runtime/verify/judge.js';
import {
  asFloats,
  asHalfBits,
  cases,
  type DeviceName,
  deviceNames,
  geometry,
  load,
  openDevice,
  partBytes,
  promptSetting,
  runKernel,
} from './harness.js';

const RUNS = 16;
/** Tokens of a tile. */
const tileOf = (deviceName: DeviceName) => (deviceName === 'emulator' ? 64 : 16);

interface Widths {
  readonly groups: readonly {
    readonly bits: number;
    readonly firstComponent: number;
    readonly components: number;
    readonly firstBit: number;
    /** Bits after the group that belong to none. */
    readonly spare: number;
  }[];
  readonly bitsOf: (component: number) => number;
  /** Of a row that groups take. */
  readonly bits: number;
  /** The part `keyWidths`; empty where widths are the scheme's. */
  readonly words: Uint32Array;
}

/** The scheme's widths, or a table that an allocation could have written, the budget kept. */
function drawWidths(g: LowRankGeometry, seed: number): Widths {
  if (g.allocatedGroups === 0) {
    const groups = g.keyGroups.map(({ firstWord, words, ...group }) => ({
      ...group,
      firstBit: firstWord * 32,
      spare: words * 32 - group.components * group.bits,
    }));
    const bitsOf = (component: number) => groups[Math.floor(component / groups[0]!.components)]!.bits;
    return { groups, bitsOf, bits: g.keyRowWords * 32, words: new Uint32Array(0) };
  }
  const random = seededRandom(seed);
  let left = g.keyRowWords * 2;
  let firstBit = 0;
  const groups = Array.from({ length: g.allocatedGroups }, (_, group) => {
    const fitting = [0, 1, 2, 3, 4, 5, 6, 8].filter((bits) => bits <= left);
    const bits = fitting[Math.floor(random() * fitting.length)]!;
    const placed = { bits, firstComponent: group * 16, components: 16, firstBit, spare: 0 };
    left -= bits;
    firstBit += bits * 16;
    return placed;
  });
  const words = Uint32Array.from(groups, (group) => group.firstBit * 16 + group.bits);
  return { groups, bitsOf: (component) => groups[Math.floor(component / 16)]!.bits, bits: firstBit, words };
}

/** A share in which nothing is written but the widths. */
function withWidths(layout: SequenceLayout, { words }: Widths): Uint8Array {
  const share = new Uint8Array(layout.bytes).fill(untouched);
  const part = layout.parts.find(({ name }) => name === 'keyWidths');
  if (part) share.set(new Uint8Array(words.buffer), part.offset);
  return share;
}

describe.each(deviceNames)('coefficients on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(cases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const allocated = g.allocatedGroups > 0;
    const TILE = tileOf(deviceName);
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['project_keys', 'scale_keys', 'pack_keys']);
    });

    test('coefficients are the centred keys times the columns, and the magnitudes those of their tile', async () => {
      const most = g.width > 100 ? 40 : 200;
      await fc.assert(
        fc.asyncProperty(draws(lengths(TILE, most)), async ({ tokens: middle, kind, seed }) => {
          const { record } = promptSetting(g, g.scheme.sinks + middle + g.scheme.window);
          const random = seededRandom(seed);
          const plain = Float32Array.from(numbers({ kind, seed }, middle, g.width));
          const mean = new Float32Array(g.width);
          for (let at = 0; at < plain.length; at++) mean[at % g.width]! += plain[at]! / middle;
          const columns = Float32Array.from(
            { length: g.width * g.rank },
            () => normalFrom(random) / Math.sqrt(g.width),
          );
          const weights = Float32Array.from({ length: g.width }, () => (g.weighted ? 10 ** (-3 * random()) : 1));
          const tiles = Math.ceil(middle / TILE);
          const outputs = await runKernel(
            kernels,
            'project_keys',
            { middleTokens: middle },
            {
              sequence: record,
              plain,
              mean,
              columns,
              coefficients: { bytes: middle * g.rank * 4 },
              partial_maxima: { bytes: tiles * g.rank * 4 },
              ...(g.weighted ? { weights } : {}),
              ...(allocated ? { partial_magnitudes: { bytes: tiles * g.rank * 4 } } : {}),
            },
          );
          const coefficients = asFloats(outputs.coefficients!).subarray(0, middle * g.rank);
          const maxima = asFloats(outputs.partial_maxima!).subarray(0, tiles * g.rank);

          const expected = new Float64Array(middle * g.rank);
          const largest = new Float64Array(tiles * g.rank);
          const sums = new Float64Array(tiles * g.rank);
          for (let token = 0; token < middle; token++) {
            for (let r = 0; r < g.rank; r++) {
              let sum = 0;
              for (let i = 0; i < g.width; i++) {
                sum += weights[i]! * (plain[token * g.width + i]! - mean[i]!) * columns[i * g.rank + r]!;
              }
              expected[token * g.rank + r] = sum;
              const at = Math.floor(token / TILE) * g.rank + r;
              largest[at] = Math.max(largest[at]!, Math.abs(coefficients[token * g.rank + r]!));
              sums[at]! += Math.abs(coefficients[token * g.rank + r]!);
            }
          }
          // One loud channel may cancel in the sum: the error is relative to what was added.
          const scale = largestOf(plain) * largestOf(columns);
          const tolerance = Math.max(1e-5 * largestOf(expected), 1e-6 * scale);
          expect(worstDifference(coefficients, expected).by).toBeLessThanOrEqual(tolerance);
          expect(worstDifference(maxima, largest)).toEqual({ at: -1, by: 0 });
          if (!allocated) return;
          for (const [at, sum] of asFloats(outputs.partial_magnitudes!).subarray(0, sums.length).entries()) {
            expect(Math.abs(sum - sums[at]!)).toBeLessThanOrEqual(2e-6 * sums[at]!);
          }
        }),
        { numRuns: RUNS },
      );
    });

    test('scales map the largest magnitude to the largest code, as finite f16', async () => {
      await fc.assert(
        fc.asyncProperty(draws(lengths(TILE, 100)), async ({ tokens: middle, kind, seed }) => {
          const { layout, record } = promptSetting(g, g.scheme.sinks + middle + g.scheme.window);
          const tiles = Math.ceil(middle / TILE);
          const maxima = Float32Array.from(numbers({ kind, seed }, tiles, g.rank), Math.abs);
          const magnitudes = Float32Array.from(
            numbers({ kind, seed: seed + 1 }, tiles, g.rank),
            (x) => 8 * Math.abs(x),
          );
          const widths = drawWidths(g, seed);
          const outputs = await runKernel(
            kernels,
            'scale_keys',
            { middleTokens: middle },
            {
              sequence: record,
              partial_maxima: maxima,
              ...(allocated ? { partial_magnitudes: magnitudes } : {}),
              cache: withWidths(layout, widths),
              scales: { bytes: g.rank * 4 },
            },
          );
          const scales = asFloats(outputs.scales!);
          const cache = outputs.cache!;
          expect(halfValues(asHalfBits(partBytes(layout, cache, 'keyScales'))).slice(0, g.rank)).toEqual(
            Float64Array.from(scales),
          );
          const written = layout.parts.filter(({ name }) => name === 'keyScales' || name === 'keyWidths');
          expect(strayWrites(cache, written)).toEqual([]);
          for (let r = 0; r < g.rank; r++) {
            const bits = widths.bitsOf(r);
            const largest = largestOf(Array.from({ length: tiles }, (_, tile) => maxima[tile * g.rank + r]!));
            if (allocated) {
              let sum = 0;
              for (let tile = 0; tile < tiles; tile++) sum += magnitudes[tile * g.rank + r]!;
              const wide = bits === 1 ? (2 * sum) / Math.max(1, middle) : (2 * largest) / 2 ** bits;
              const step = bits === 0 ? 0 : Math.min(wide, 65504);
              // Devices may round subnormal halves as they like.
              expect(Math.abs(scales[r]! - step)).toBeLessThanOrEqual(
                bits === 0 ? 0 : halfRounding(step) + 1e-6 * step,
              );
              continue;
            }
            const exact = bits === 0 ? 0 : Math.min(largest / (2 ** (bits - 1) - 1), 65504);
            // The quotient may be rounded to float32 before it is rounded to f16.
            const candidates = [1 - 2 ** -23, 1, 1 + 2 ** -23].map(
              (factor) => halfValues(halfBits([exact * factor]))[0],
            );
            expect(candidates).toContain(scales[r]);
          }
        }),
        { numRuns: RUNS },
      );
    });

    test('fields are the rounded quotients, packed without a gap', async () => {
      await fc.assert(
        fc.asyncProperty(draws(lengths(TILE, 60)), fc.boolean(), async ({ tokens: middle, kind, seed }, exceeds) => {
          const { layout, record } = promptSetting(g, g.scheme.sinks + middle + g.scheme.window);
          const coefficients = Float32Array.from(numbers({ kind, seed }, middle, g.rank));
          const widths = drawWidths(g, seed);
          // A scale rounded down, or from other data, must clamp and not wrap around.
          const scales = Float32Array.from({ length: g.rank }, (_, r) => {
            const column = Array.from({ length: middle }, (_, token) => coefficients[token * g.rank + r]!);
            const bits = widths.bitsOf(r);
            const limit = allocated ? 2 ** (bits - 1) : Math.max(1, 2 ** (bits - 1) - 1);
            return halfValues(halfBits([Math.min(65504, largestOf(column) / limit / (exceeds ? 3 : 1))]))[0]!;
          });
          const outputs = await runKernel(
            kernels,
            'pack_keys',
            { middleTokens: middle },
            { sequence: record, coefficients, scales, cache: withWidths(layout, widths) },
          );
          const cache = outputs.cache!;
          const written = layout.parts.filter(({ name }) => name === 'keyCodes' || name === 'keyWidths');
          expect(strayWrites(cache, written)).toEqual([]);
          const rows = partBytes(layout, cache, 'keyCodes');
          for (let token = 0; token < middle; token++) {
            for (const { bits, firstComponent, components, firstBit, spare } of widths.groups) {
              if (bits === 0) continue;
              const start = token * g.keyRowWords * 32 + firstBit;
              const limit = allocated ? 2 ** (bits - 1) : 2 ** (bits - 1) - 1;
              for (let i = 0; i < components; i++) {
                const code = readField(rows, { offset: start + i * bits, width: bits }) - 2 ** (bits - 1);
                const scale = scales[firstComponent + i]!;
                const quotient = scale > 0 ? coefficients[token * g.rank + firstComponent + i]! / scale : 0;
                const exact = Math.min(Math.max(quotient, -limit), limit);
                // Another level than the nearest only where the quotient lies on a tie.
                expect(Math.abs(code + (allocated ? 0.5 : 0) - exact)).toBeLessThanOrEqual(0.5 + 1e-4);
              }
              if (spare > 0) expect(readField(rows, { offset: start + components * bits, width: spare })).toBe(0);
            }
            for (let bit = widths.bits; bit < g.keyRowWords * 32; bit++) {
              expect(readField(rows, { offset: token * g.keyRowWords * 32 + bit, width: 1 })).toBe(0);
            }
          }
        }),
        { numRuns: RUNS },
      );
    });
  });
});
