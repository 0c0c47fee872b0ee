import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
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
import {
  asFloats,
  asHalfBits,
  cases,
  deviceNames,
  geometry,
  load,
  openDevice,
  partBytes,
  promptSetting,
  runKernel,
} from './harness.js';

const RUNS = 16;
const TILE = 16;

describe.each(deviceNames)('coefficients on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(cases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const bitsOf = (component: number) => g.keyGroups[Math.floor(component / g.keyGroups[0]!.components)]!.bits;
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['project_keys', 'scale_keys', 'pack_keys']);
    });

    test('coefficients are the centred keys times the columns, and the maxima those of their tile', async () => {
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
            },
          );
          const coefficients = asFloats(outputs.coefficients!).subarray(0, middle * g.rank);
          const maxima = asFloats(outputs.partial_maxima!).subarray(0, tiles * g.rank);

          const expected = new Float64Array(middle * g.rank);
          const largest = new Float64Array(tiles * g.rank);
          for (let token = 0; token < middle; token++) {
            for (let r = 0; r < g.rank; r++) {
              let sum = 0;
              for (let i = 0; i < g.width; i++) {
                sum += (plain[token * g.width + i]! - mean[i]!) * columns[i * g.rank + r]!;
              }
              expected[token * g.rank + r] = sum;
              const at = Math.floor(token / TILE) * g.rank + r;
              largest[at] = Math.max(largest[at]!, Math.abs(coefficients[token * g.rank + r]!));
            }
          }
          // One loud channel may cancel in the sum: the error is relative to what was added.
          const scale = largestOf(plain) * largestOf(columns);
          const tolerance = Math.max(1e-5 * largestOf(expected), 1e-6 * scale);
          expect(worstDifference(coefficients, expected).by).toBeLessThanOrEqual(tolerance);
          expect(worstDifference(maxima, largest)).toEqual({ at: -1, by: 0 });
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
          const outputs = await runKernel(
            kernels,
            'scale_keys',
            { middleTokens: middle },
            {
              sequence: record,
              partial_maxima: maxima,
              cache: new Uint8Array(layout.bytes).fill(untouched),
              scales: { bytes: g.rank * 4 },
            },
          );
          const scales = asFloats(outputs.scales!);
          const cache = outputs.cache!;
          expect(halfValues(asHalfBits(partBytes(layout, cache, 'keyScales'))).slice(0, g.rank)).toEqual(
            Float64Array.from(scales),
          );
          expect(strayWrites(cache, [layout.parts.find(({ name }) => name === 'keyScales')!])).toEqual([]);
          for (let r = 0; r < g.rank; r++) {
            const bits = bitsOf(r);
            const largest = largestOf(Array.from({ length: tiles }, (_, tile) => maxima[tile * g.rank + r]!));
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
          // A scale rounded down, or from other data, must clamp and not wrap around.
          const scales = Float32Array.from({ length: g.rank }, (_, r) => {
            const column = Array.from({ length: middle }, (_, token) => coefficients[token * g.rank + r]!);
            const limit = Math.max(1, 2 ** (bitsOf(r) - 1) - 1);
            return halfValues(halfBits([Math.min(65504, largestOf(column) / limit / (exceeds ? 3 : 1))]))[0]!;
          });
          const outputs = await runKernel(
            kernels,
            'pack_keys',
            { middleTokens: middle },
            { sequence: record, coefficients, scales, cache: new Uint8Array(layout.bytes).fill(untouched) },
          );
          const cache = outputs.cache!;
          expect(strayWrites(cache, [layout.parts.find(({ name }) => name === 'keyCodes')!])).toEqual([]);
          const rows = partBytes(layout, cache, 'keyCodes');
          for (let token = 0; token < middle; token++) {
            for (const { bits, firstComponent, components, firstWord, words } of g.keyGroups) {
              if (bits === 0) continue;
              const start = (token * g.keyRowWords + firstWord) * 32;
              const limit = 2 ** (bits - 1) - 1;
              for (let i = 0; i < components; i++) {
                const code = readField(rows, { offset: start + i * bits, width: bits }) - 2 ** (bits - 1);
                const scale = scales[firstComponent + i]!;
                const quotient = scale > 0 ? coefficients[token * g.rank + firstComponent + i]! / scale : 0;
                const exact = Math.min(Math.max(quotient, -limit), limit);
                // Another integer than the nearest only where the quotient lies on a tie.
                expect(Math.abs(code - exact)).toBeLessThanOrEqual(0.5 + 1e-4);
              }
              const spare = words * 32 - components * bits;
              if (spare > 0) expect(readField(rows, { offset: start + components * bits, width: spare })).toBe(0);
            }
          }
        }),
        { numRuns: RUNS },
      );
    });
  });
});
