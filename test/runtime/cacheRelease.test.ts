import { afterAll, beforeAll, expect, test } from 'vitest';
import { KvforgeError } from '../../dsl/errors.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { faultOf, generated, halves, model } from './cacheCase.js';

const released = 'cache: expected an open cache, got none, as the cache was released. Open another one.';
const bits = halves(9 * model.width, 1);
let device: Device;
let kernels: LoadedKernels;
beforeAll(async () => {
  device = await EmulatorDevice.open({ checks: 'none' });
  kernels = await LoadedKernels.load(device, await generated(device));
});
afterAll(() => device?.close());

const open = () => KvCache.open(kernels, { sequences: 1, tokens: 20, generated: 4 });

test('release takes its turn: what was called before still takes effect', async () => {
  const cache = open();
  const calls = [
    cache.prefill(0, { keys: bits, values: bits, tokens: 9 }),
    cache.append(bits.slice(0, model.width), bits.slice(0, model.width)),
    cache.lengths(0),
  ] as const;
  const release = cache.release();
  const late = faultOf(cache.lengths(0));
  const [, , lengths] = await Promise.all(calls);
  expect(lengths).toMatchObject({ promptTokens: 9, streamTokens: 1 });
  expect(await late).toBe(released);
  expect(await release).toBeUndefined();
});

test('every call after it is refused, and a second release does nothing', async () => {
  const cache = open();
  await cache.release();
  await cache.release();
  const calls: readonly (() => Promise<unknown>)[] = [
    () => cache.prefill(0, { keys: bits, values: bits, tokens: 9 }),
    () => cache.append(bits.slice(0, model.width), bits.slice(0, model.width)),
    () => cache.attend(bits.slice(0, model.heads * model.headDim)),
    () => cache.decompress(0),
    () => cache.crop(0, 0),
    () => cache.fork(0, 0),
    () => cache.reorder([0]),
    () => cache.lengths(0),
    () => cache.save(),
    () => cache.load(bits as unknown as Uint8Array),
    () => cache.readShare(0),
  ];
  for (const call of calls) {
    const fault = await call().catch((error: unknown) => error);
    expect(fault).toBeInstanceOf(KvforgeError);
    expect(fault).toMatchObject({ code: 'wrong-use', message: released });
  }
  expect(cache.bytes).toBeGreaterThan(0);
});
