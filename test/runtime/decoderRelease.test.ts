import { afterAll, beforeAll, expect, test } from 'vitest';
import { KvCache } from '../../runtime/cache.js';
import type { Device, DeviceBuffer, Launch } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { faultOf, generated, halves, model, proxied } from './cacheCase.js';

const { heads, headDim, width } = model;
const [bits, query] = [halves(width, 1), halves(heads * headDim, 2)];
let device: Device;
beforeAll(async () => {
  device = await EmulatorDevice.open({ checks: 'none' });
});
afterAll(() => device?.close());

/** Kernels on the device with some members replaced, and what is allocated through it and not yet released. */
async function watched(own: Partial<Device> = {}) {
  const live = new Set<string>();
  const allocate = (label: string, bytes: number): DeviceBuffer => {
    const buffer = device.allocate(label, bytes);
    live.add(label);
    const release = buffer.release.bind(buffer);
    buffer.release = () => {
      live.delete(label);
      release();
    };
    return buffer;
  };
  const on = proxied(device, { allocate, ...own });
  return { kernels: await LoadedKernels.load(on, await generated(device)), live };
}

const capacity = { sequences: 1, tokens: 20, generated: 4 };
const cacheBuffers = ['cache', 'sequences', 'tables'];

test('release frees the buffers in its turn, and later steps are refused', async () => {
  const { kernels, live } = await watched();
  const cache = KvCache.open(kernels, capacity);
  const decoder = await cache.decoder();
  expect([...live].sort()).toEqual([...cacheBuffers, 'counters', 'inputs', 'output', 'partials', 'work'].sort());
  const step = decoder.step(bits, bits, query);
  const release = decoder.release();
  const late = faultOf(decoder.step(bits, bits, query));
  expect((await step).length).toBe(heads * headDim);
  await release;
  await decoder.release();
  expect(await late).toBe(
    'decoder: expected an open decoder, got none, as the decoder was released. Open another one.',
  );
  expect([...live].sort()).toEqual(cacheBuffers);
  expect(await cache.lengths(0)).toMatchObject({ windowTokens: 1 });
  await cache.release();
  expect(live.size).toBe(0);
});

test('the cache takes its decoders with it', async () => {
  const { kernels, live } = await watched();
  const cache = KvCache.open(kernels, capacity);
  const [first, second] = [await cache.decoder(), await cache.decoder()];
  const step = first.step(bits, bits, query);
  const release = cache.release();
  const ended = 'decoder: expected an open decoder, got none, as the cache was released. Open another one.';
  expect(await faultOf(second.step(bits, bits, query))).toBe(ended);
  await step;
  await release;
  expect(live.size).toBe(0);
  expect(await faultOf(first.run())).toBe(ended);
  await first.release();
  expect(await faultOf(cache.decoder())).toBe(
    'cache: expected an open cache, got none, as the cache was released. Open another one.',
  );
});

test('a decoder that cannot be recorded leaves nothing behind', async () => {
  const failing = () => Promise.reject(new Error('no graph'));
  const { kernels, live } = await watched({ record: failing });
  const cache = KvCache.open(kernels, capacity);
  expect(await faultOf(cache.decoder())).toBe('Error no graph');
  expect([...live].sort()).toEqual(cacheBuffers);
  await cache.release();
});

test('a step that fails half-way ends the decoder, and the device says what was appended', async () => {
  let fails = false;
  const record = async (launches: readonly Launch[]) => {
    const recording = await device.record(launches);
    return {
      // The token comes in, and then the device fails.
      run: () => recording.run().then(() => (fails ? Promise.reject(new Error('half-way')) : undefined)),
      release: () => recording.release(),
    };
  };
  const { kernels, live } = await watched({ record });
  const cache = KvCache.open(kernels, { ...capacity, generated: 1 });
  const decoder = await cache.decoder();
  const { window } = cache.geometry.scheme;
  for (let token = 0; token < window; token++) await decoder.step(bits, bits, query);
  fails = true;
  expect(await faultOf(decoder.step(bits, bits, query))).toBe('Error half-way');
  fails = false;
  expect(await faultOf(decoder.step(bits, bits, query))).toBe(
    'decoder: expected an open decoder, got none, as a step failed on the device. Open another one.',
  );
  expect([...live].sort()).toEqual(cacheBuffers);
  expect(await cache.lengths(0)).toMatchObject({ windowTokens: window, streamTokens: 1 });
  expect(await faultOf((await cache.decoder()).step(bits, bits, query))).toBe(
    'sequence 0: expected at most 1 tokens in the stream, got 2. Open the cache with more generated tokens; nothing was appended to any sequence.',
  );
  await cache.release();
});

test('bad numbers and bad splits are refused, and change nothing', async () => {
  const { kernels } = await watched();
  const cache = KvCache.open(kernels, capacity);
  const decoder = await cache.decoder({ splits: 1 });
  const faults = [
    await faultOf(decoder.step(bits.subarray(1), bits, query)),
    await faultOf(decoder.step(bits, bits.with(3, 0x7c00), query)),
    await faultOf(decoder.step(bits, bits, query.with(headDim + 2, 0x7e00))),
    await faultOf(decoder.step([] as unknown as Uint16Array, bits, query)),
    await faultOf(cache.decoder({ splits: 0 })),
    await faultOf(cache.decoder({ splits: 1.5 })),
  ];
  const whole = 'Leave it out for the default.';
  expect(faults).toEqual([
    'keys, layer 0: expected 16 f16 numbers (1 sequences x 1 KV heads x 16 channels) as a Uint16Array, got 15. Pass the bits of the f16 tensor, innermost dimension last.',
    'values, layer 0, sequence 0, KV head 0, channel 3: expected a finite f16 number, got Infinity. Find where the model overflows; nothing was written to the cache.',
    'query, layer 0, sequence 0, head 1, channel 2: expected a finite f16 number, got NaN. Find where the model overflows; nothing was written to the cache.',
    'keys, layer 0: expected 16 f16 numbers (1 sequences x 1 KV heads x 16 channels) as a Uint16Array, got object. Pass the bits of the f16 tensor, innermost dimension last.',
    `splits: expected a whole number from 1 to 1024, got 0. ${whole}`,
    `splits: expected a whole number from 1 to 1024, got 1.5. ${whole}`,
  ]);
  expect(await cache.lengths(0)).toMatchObject({ windowTokens: 0, streamTokens: 0 });
  await cache.release();
});
