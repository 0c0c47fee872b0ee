import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { halfValues, worstError } from '../../runtime/verify/draws.js';
import { attendVisible } from '../../runtime/verify/visible.js';
import { WebGpuDevice } from '../../runtime/webgpu/webgpu.js';
import { generated, halves, model, scheme, tokenOf } from './cacheCase.js';

const devices = [
  { name: 'emulator', longest: 4096, open: (): Promise<Device> => EmulatorDevice.open({ checks: 'none' }) },
  { name: 'webgpu', longest: 512, open: (): Promise<Device> => WebGpuDevice.open({ adapter: 'software' }) },
];

/** Around the sinks and the window of Shard, which are 4 and 64. */
const mixed = [0, 1, 3, 67, 68, 69];
const own = { ...scheme, name: 'quick-64', sinks: 4, window: 64 };

describe.each(devices)('batches on $name', ({ longest, open }) => {
  let device: Device;
  let kernels: LoadedKernels;
  beforeAll(async () => {
    device = await open();
    kernels = await LoadedKernels.load(device, await generated(device, own));
  });
  afterAll(() => device?.close());

  test.each([
    { sequences: 1, first: 69, tokens: 69 },
    { sequences: 7, first: 0, tokens: 69 },
    { sequences: 64, first: longest, tokens: longest },
  ])('$sequences sequences of mixed lengths, at most $tokens tokens', async ({ sequences, first, tokens }) => {
    const cache = KvCache.open(kernels, { sequences, tokens, generated: 2 });
    const lengths = Array.from({ length: sequences }, (_, i) => (i === 0 ? first : mixed[i % mixed.length]!));
    for (const [sequence, count] of lengths.entries()) {
      if (count === 0) continue;
      const [keys, values] = [halves(count * model.width, sequence), halves(count * model.width, 100 + sequence)];
      await cache.prefill(sequence, { keys, values, tokens: count });
    }
    const check = async (queries: number, splits?: number) => {
      const query = halves(sequences * queries * model.heads * model.headDim, 7);
      const expected = new Float64Array(query.length);
      for (let sequence = 0; sequence < sequences; sequence++) {
        const held = await cache.decompress(sequence);
        const tensor = (bits: Uint16Array) => {
          return { heads: model.kvHeads, tokens: held.tokens, channels: model.headDim, data: halfValues(bits) };
        };
        const decoded = { keys: tensor(held.keys), values: tensor(held.values) };
        for (let row = 0; row < queries * model.heads; row++) {
          const at = (sequence * queries * model.heads + row) * model.headDim;
          const q = halfValues(query.subarray(at, at + model.headDim));
          const after = queries - 1 - Math.floor(row / model.heads);
          expected.set(attendVisible(cache.geometry, decoded, { query: q, kvHead: 0, after, slidingWindow: 0 }), at);
        }
      }
      const output = await cache.attend(query, { queries, ...(splits === undefined ? {} : { splits }) });
      expect(worstError(output, expected, model.headDim).by).toBeLessThan(5e-3);
    };
    await check(1);
    const count = sequences * 2 * model.width;
    await cache.append(halves(count, 8), halves(count, 9), { tokens: 2 });
    for (const [sequence, before] of lengths.entries()) {
      const { sinkTokens, middleTokens, streamTokens, windowTokens } = await cache.lengths(sequence);
      expect(sinkTokens + middleTokens + streamTokens + windowTokens).toBe(before + 2);
    }
    await check(2);
    // A chunk of a prompt; of 64 sequences it has more work items than one launch takes.
    await check(40, 8);
    await cache.release();
  });
});

describe('a long generation', () => {
  test('does not drift: 10 000 streamed tokens decode as well at the end as at the start', async () => {
    const device = await EmulatorDevice.open({ checks: 'none' });
    const kernels = await LoadedKernels.load(device, await generated(device));
    const count = 10_000;
    const exact = scheme.sinks + scheme.window;
    const cache = KvCache.open(kernels, { sequences: 1, tokens: exact, generated: count });
    const row = model.width;
    const [keys, values] = [halves((exact + count) * row, 1), halves((exact + count) * row, 2)];
    await cache.prefill(0, { keys: keys.slice(0, exact * row), values: values.slice(0, exact * row), tokens: exact });
    for (let token = exact; token < exact + count; token += 1000) {
      const part = (bits: Uint16Array) => bits.slice(token * row, (token + 1000) * row);
      await cache.append(part(keys), part(values), { tokens: 1000 });
    }
    expect(await cache.lengths(0)).toMatchObject({ streamTokens: count, windowTokens: scheme.window });
    const decoded = await cache.decompress(0);
    /** Error over energy of keys and values of stream tokens. */
    const errorOf = (first: number, tokens: number) => {
      let [error, energy] = [0, 0];
      for (let token = scheme.sinks + first; token < scheme.sinks + first + tokens; token++) {
        for (const [given, all] of [
          [keys, decoded.keys],
          [values, decoded.values],
        ] as const) {
          const wanted = halfValues(given.subarray(token * row, (token + 1) * row));
          const found = halfValues(tokenOf(decoded, all, token));
          error += wanted.reduce((sum, x, i) => sum + (x - found[i]!) ** 2, 0);
          energy += wanted.reduce((sum, x) => sum + x ** 2, 0);
        }
      }
      return Math.sqrt(error / energy);
    };
    const [start, end] = [errorOf(0, 500), errorOf(count - 500, 500)];
    expect(start).toBeGreaterThan(1e-3);
    expect(start).toBeLessThan(2e-2);
    expect(Math.abs(end / start - 1)).toBeLessThan(0.1);
    await device.close();
  });
});
