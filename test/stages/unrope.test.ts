import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { seededRandom, unrotate } from '../../runtime/reference/index.js';
import {
  type Draw,
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
const TILE = 32;

describe.each(deviceNames)('keys before RoPE on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(cases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['unrope_keys', 'mean_keys']);
    });

    async function unrope({ tokens: middle, kind, seed }: Draw) {
      const random = seededRandom(seed);
      const tokenWeights = Float32Array.from({ length: middle }, () => (g.weighted ? 0.2 + 3 * random() : 1));
      const tokens = g.scheme.sinks + middle + g.scheme.window;
      const { layout, record, tables } = promptSetting(g, tokens);
      const keys = halfBits(numbers({ kind, seed }, g.kvHeads * tokens, g.headDim));
      const tiles = Math.ceil(middle / TILE);
      const outputs = await runKernel(
        kernels,
        'unrope_keys',
        { middleTokens: middle },
        {
          sequence: record,
          keys,
          tables,
          ...(g.weighted ? { token_weights: tokenWeights } : {}),
          plain: { bytes: middle * g.width * 4 },
          partial_sums: { bytes: tiles * g.width * 4 },
        },
      );
      const plain = asFloats(outputs.plain!).subarray(0, middle * g.width);
      const sums = asFloats(outputs.partial_sums!).subarray(0, tiles * g.width);
      return { layout, record, keys, tokens, middle, tiles, tokenWeights, plain, sums };
    }

    /** The middle keys turned back, [middle][width], from the definition. */
    function plainKeys(keys: Float64Array, tokens: number, middle: number): Float64Array {
      const plain = new Float64Array(middle * g.width);
      for (let token = 0; token < middle; token++) {
        const position = g.scheme.sinks + token;
        for (let head = 0; head < g.kvHeads; head++) {
          const source = (head * tokens + position) * g.headDim;
          const target = token * g.width + head * g.headDim;
          plain.set(unrotate(keys.subarray(source, source + g.headDim), position, g.model.rope), target);
        }
      }
      return plain;
    }

    test('every middle key is turned back by its position, and its tile summed by weight', async () => {
      await fc.assert(
        fc.asyncProperty(draws(lengths(TILE, 200)), async (draw) => {
          const { keys, tokens, middle, tiles, tokenWeights, plain, sums } = await unrope(draw);
          const expected = plainKeys(halfValues(keys), tokens, middle);
          const tolerance = 1e-5 * largestOf(expected);
          expect(worstDifference(plain, expected).by).toBeLessThanOrEqual(tolerance);
          const expectedSums = new Float64Array(tiles * g.width);
          for (let at = 0; at < expected.length; at++) {
            const token = Math.floor(at / g.width);
            const sum = Math.floor(token / TILE) * g.width + (at % g.width);
            expectedSums[sum]! += tokenWeights[token]! * expected[at]!;
          }
          expect(worstDifference(sums, expectedSums).by).toBeLessThanOrEqual(TILE * 3.2 * tolerance);
        }),
        { numRuns: RUNS },
      );
    });

    test('the mean that is stored is the mean that later stages subtract', async () => {
      await fc.assert(
        fc.asyncProperty(draws(lengths(TILE, 200)), async (draw) => {
          const { layout, record, middle, tiles, sums } = await unrope(draw);
          const outputs = await runKernel(
            kernels,
            'mean_keys',
            { middleTokens: middle },
            {
              sequence: record,
              partial_sums: sums.slice(),
              cache: new Uint8Array(layout.bytes).fill(untouched),
              mean: { bytes: g.width * 4 },
            },
          );
          const mean = asFloats(outputs.mean!);
          const cache = outputs.cache!;
          expect(halfValues(asHalfBits(partBytes(layout, cache, 'keyMean')))).toEqual(Float64Array.from(mean));
          expect(strayWrites(cache, [layout.parts.find(({ name }) => name === 'keyMean')!])).toEqual([]);
          for (let channel = 0; channel < g.width; channel++) {
            let sum = 0;
            let magnitude = 0;
            for (let tile = 0; tile < tiles; tile++) {
              sum += sums[tile * g.width + channel]!;
              magnitude += Math.abs(sums[tile * g.width + channel]!);
            }
            const count = Math.max(1, middle);
            const exact = Math.min(Math.max(sum / count, -65504), 65504);
            // Half a step of f16 at this size, and what float32 sums may lose.
            const step = 2 ** Math.max(-24, Math.floor(Math.log2(Math.abs(exact) || 1e-9)) - 10);
            expect(Math.abs(mean[channel]! - exact)).toBeLessThanOrEqual(step * 0.501 + (1e-6 * magnitude) / count);
          }
        }),
        { numRuns: RUNS },
      );
    });
  });
});
