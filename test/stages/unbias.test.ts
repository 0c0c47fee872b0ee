import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { assign, seededRandom, unbiasedGain } from '../../runtime/reference/index.js';
import { draws, halfBits, halfValues, lengths, numbers, strayWrites, untouched } from '../../runtime/verify/draws.js';
import { halfRounding } from '../../runtime/verify/judge.js';
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

const TILE = 32;
const floor = 2 ** -23;
const unbiased = cases.filter(({ scheme }) => scheme.values[2].unbiased);
/** A hundred draws a backend, however many of the cases are unbiased. */
const RUNS = Math.ceil(100 / unbiased.length);

describe.each(deviceNames)('gains of values on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  }, 60_000);
  afterAll(() => device?.close());

  describe.each(unbiased)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['value_products', 'unbias_values']);
    }, 60_000);

    test('take back what the codes shrink, and keep scales finite and above zero', async () => {
      const drawn = draws(lengths(TILE, 80));
      await fc.assert(
        fc.asyncProperty(drawn, fc.boolean(), async ({ tokens: middle, kind, seed }, nearest) => {
          const { layout, record } = promptSetting(g, g.scheme.sinks + middle + g.scheme.window);
          const random = seededRandom(seed);
          const rotated = Float32Array.from(numbers({ kind, seed }, middle, g.width));
          const largest = new Float64Array(g.width).fill(floor);
          for (const [i, x] of rotated.entries()) largest[i % g.width] = Math.max(largest[i % g.width]!, Math.abs(x));
          const scales = Float32Array.from(halfValues(halfBits(largest.map((x) => Math.min(x, 65504)))));
          const codebookBits = halfBits(Float64Array.from({ length: g.entries * g.channels }, () => 2 * random() - 1));
          const codebook = halfValues(codebookBits);
          const points = {
            rows: rotated.length / g.channels,
            columns: g.channels,
            data: Float64Array.from(rotated, (x, i) => x / scales[i % g.width]!),
          };
          // Codes that have nothing to do with the values give products of any sign.
          const codes = nearest
            ? assign(points, { rows: g.entries, columns: g.channels, data: codebook })
            : Uint16Array.from({ length: points.rows }, () => Math.floor(random() * g.entries));

          const share = new Uint8Array(layout.bytes).fill(untouched);
          const part = (name: string) => layout.parts.find((candidate) => candidate.name === name)!;
          share.set(Uint8Array.from(codes), part('valueCodes').offset);
          share.set(new Uint8Array(codebookBits.buffer), part('codebook').offset);
          const tiles = Math.ceil(middle / TILE);
          const summed = await runKernel(
            kernels,
            'value_products',
            { middleTokens: middle },
            {
              sequence: record,
              rotated,
              channel_scales: scales,
              cache: share,
              partial_products: { bytes: tiles * 2 * g.width * 4 },
            },
          );
          const partial = asFloats(summed.partial_products!).subarray(0, tiles * 2 * g.width);
          const { cache } = await runKernel(
            kernels,
            'unbias_values',
            {},
            { sequence: record, partial_products: partial, channel_scales: scales, cache: share },
          );

          const expected = new Float64Array(partial.length);
          const sizes = new Float64Array(partial.length);
          for (let at = 0; at < rotated.length; at++) {
            const [token, channel] = [Math.floor(at / g.width), at % g.width];
            const coded =
              scales[channel]! * codebook[codes[Math.floor(at / g.channels)]! * g.channels + (at % g.channels)]!;
            const row = Math.floor(token / TILE) * 2 * g.width + channel;
            for (const [place, product] of [rotated[at]! ** 2, rotated[at]! * coded].entries()) {
              expected[row + place * g.width]! += product;
              sizes[row + place * g.width]! += Math.abs(product);
            }
          }
          for (const [at, sum] of partial.entries()) {
            expect(Math.abs(sum - expected[at]!)).toBeLessThanOrEqual(1e-5 * sizes[at]! + 1e-30);
          }
          const stored = halfValues(asHalfBits(partBytes(layout, cache!, 'channelMax')));
          for (let channel = 0; channel < g.width; channel++) {
            let [squares, products, size] = [0, 0, 0];
            for (let tile = 0; tile < tiles; tile++) {
              squares += partial[tile * 2 * g.width + channel]!;
              products += partial[(tile * 2 + 1) * g.width + channel]!;
              size += Math.abs(partial[(tile * 2 + 1) * g.width + channel]!);
            }
            expect(stored[channel]).toBeGreaterThan(0);
            expect(stored[channel]).toBeLessThanOrEqual(65504);
            // Next to nothing is left of what cancels: its sign is that of a rounding.
            if (Math.abs(products) < 1e-5 * size) continue;
            const wanted = Math.min(65504, Math.max(floor, scales[channel]! * unbiasedGain(squares, products)));
            const lost = (1e-6 * size) / Math.max(Math.abs(products), 1e-300) + 1e-6;
            expect(Math.abs(stored[channel]! - wanted)).toBeLessThanOrEqual(halfRounding(wanted) + lost * wanted);
          }
          expect(strayWrites(cache!, ['valueCodes', 'codebook', 'channelMax'].map(part))).toEqual([]);
        }),
        { numRuns: RUNS },
      );
    });
  });
});
