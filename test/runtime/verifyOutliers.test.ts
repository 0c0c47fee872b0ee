import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { geometryOf } from '../../dsl/geometry.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { encodeScalar } from '../../runtime/reference/index.js';
import { halfBits, numbers } from '../../runtime/verify/draws.js';
import { verifyScheme } from '../../runtime/verify/index.js';
import { deviceNames, openDevice, targetOf } from '../stages/harness.js';
import { outlierCases } from '../stages/outlierCases.js';
import { codingOfScheme, tensorOf } from './outlierCoding.js';

describe.each(deviceNames)('on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(outlierCases)('$name', ({ scheme, model }) => {
    test('verify passes', async () => {
      const lines: string[] = [];
      const options = { cases: 12, seed: 1, onProgress: (line: string) => lines.push(line) };
      expect(await verifyScheme(device, scheme, model, options)).toMatchObject({ cases: 12, failed: 0, failures: [] });
      expect(lines.join()).toContain('(prefill)');
    }, 120_000);

    test('a cache reports what float64 finds past the caps, of numbers of several kinds', async () => {
      const g = geometryOf(scheme, model);
      const tokens = scheme.sinks + 90 + scheme.window;
      const kernels = await LoadedKernels.load(device, await generate(scheme, model, targetOf(device)));
      const cache = KvCache.open(kernels, { sequences: 2, tokens, generated: 4 });
      let [keys, values] = [0, 0];
      for (const kind of ['normal', 'constant channels', 'loud channel', 'largest halves'] as const) {
        const drawn = (seed: number) => halfBits(numbers({ kind, seed }, g.kvHeads * tokens, g.headDim));
        const prompt = { keys: drawn(1), values: drawn(2), tokens };
        await cache.prefill(1, prompt);
        const exact = { keys: tensorOf(g, prompt.keys), values: tensorOf(g, prompt.values) };
        const { middle } = encodeScalar(exact, model, codingOfScheme(g));
        const counted = await cache.clampedOutliers(1);
        // Float32 may find a number at the end of a range on the other side of it.
        const slack = kind === 'normal' ? 0 : 0.02 * 90 * g.kvHeads;
        expect(Math.abs(counted.keys - middle.clamped!.keys), kind).toBeLessThanOrEqual(slack);
        expect(Math.abs(counted.values - middle.clamped!.values), kind).toBeLessThanOrEqual(slack);
        keys += counted.keys;
        values += counted.values;
      }
      expect(keys).toBeGreaterThan(0);
      expect(values > 0).toBe(g.values.outlierCap > 0);
      const larger = KvCache.open(kernels, { sequences: 2, tokens: tokens + 7, generated: 4 });
      await larger.load(await cache.save());
      expect(await larger.clampedOutliers(1)).toEqual(await cache.clampedOutliers(1));
      expect(await larger.clampedOutliers(0)).toEqual({ keys: 0, values: 0 });
      await larger.release();
      await cache.release();
    }, 120_000);
  });
});
