import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { defineScheme } from '../../dsl/scheme.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device, DeviceBuffer } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { halfValues, worstError } from '../../runtime/verify/draws.js';
import { readHeld } from '../../runtime/verify/held.js';
import { attendVisible } from '../../runtime/verify/visible.js';
import { WebGpuDevice } from '../../runtime/webgpu/webgpu.js';
import { targetOf } from '../stages/harness.js';
import { faultOf, generated, halves, model, proxied, scheme } from './cacheCase.js';

const { heads, headDim, width } = model;
const own = defineScheme({ ...scheme, name: 'window-8', window: 8, stream: lloydMax({ bits: 8 }) });

const devices = [
  { name: 'emulator', open: (): Promise<Device> => EmulatorDevice.open({ checks: 'none' }) },
  { name: 'webgpu', open: (): Promise<Device> => WebGpuDevice.open({ adapter: 'software', poison: true }) },
];

/** What `step` takes for so many sequences. */
function tokenFor(sequences: number, seed: number): [Uint16Array, Uint16Array, Uint16Array] {
  const halvesOf = (count: number, salt: number) => halves(sequences * count, 10 * seed + salt);
  return [halvesOf(width, 1), halvesOf(width, 2), halvesOf(heads * headDim, 3)];
}

/** Attention by float64 over what the cache holds, of every sequence. */
async function referenceOf(cache: KvCache, sequences: number, query: Uint16Array): Promise<Float64Array> {
  const expected = new Float64Array(query.length);
  for (let sequence = 0; sequence < sequences; sequence++) {
    const { decoded } = await readHeld(cache, sequence);
    for (let head = 0; head < heads; head++) {
      const at = (sequence * heads + head) * headDim;
      const q = halfValues(query.subarray(at, at + headDim));
      expected.set(attendVisible(cache.geometry, decoded, { query: q, kvHead: 0, after: 0, slidingWindow: 0 }), at);
    }
  }
  return expected;
}

describe.each(devices)('decode steps on $name', ({ open }) => {
  let device: Device;
  let kernels: LoadedKernels;
  beforeAll(async () => {
    device = await open();
    kernels = await LoadedKernels.load(device, await generated(device, own));
  });
  afterAll(() => device?.close());

  const openCache = (sequences: number, generatedTokens: number, on: LoadedKernels = kernels) =>
    KvCache.open(on, { sequences, tokens: 64, generated: generatedTokens });
  const prompt = (tokens: number, seed: number) => ({
    keys: halves(tokens * width, seed),
    values: halves(tokens * width, seed + 1),
    tokens,
  });

  test('a thousand steps give what append and attend give, and what float64 does', async () => {
    const [cache, other] = [openCache(2, 1000), openCache(2, 1000)];
    await cache.prefill(0, prompt(40, 1));
    await other.prefill(0, prompt(40, 1));
    const splits = 3;
    const decoder = await cache.decoder({ splits });
    for (let step = 0; step < 1000; step++) {
      const [keys, values, query] = tokenFor(2, step);
      const output = await decoder.step(keys, values, query);
      await other.append(keys, values);
      const expected = await other.attend(query, { splits });
      // Compared as numbers first: a message of two thousand bits helps nobody.
      if (output.some((x, i) => !Object.is(x, expected[i]))) expect(output, `step ${step}`).toEqual(expected);
      if ([0, 6, 7, 8, 9, 100, 500, 999].includes(step)) {
        const { by } = worstError(output, await referenceOf(cache, 2, query), headDim);
        expect(by, `step ${step}`).toBeLessThan(1e-5);
      }
    }
    expect(await cache.lengths(0)).toMatchObject({ promptTokens: 40, streamTokens: 1000, windowTokens: 8 });
    expect(await cache.lengths(1)).toMatchObject({ promptTokens: 0, streamTokens: 992, windowTokens: 8 });
    expect(await cache.readShare(1)).toEqual(await other.readShare(1));
    await cache.release();
    await other.release();
  });

  test('between steps anything may happen to the cache', async () => {
    const [cache, other] = [openCache(3, 40), openCache(3, 40)];
    const [decoder, second] = [await cache.decoder({ splits: 2 }), await cache.decoder({ splits: 2 })];
    let seed = 0;
    const step = async (by: typeof decoder) => {
      const [keys, values, query] = tokenFor(3, seed++);
      const output = await by.step(keys, values, query);
      await other.append(keys, values);
      expect(output, `token ${seed}`).toEqual(await other.attend(query, { splits: 2 }));
    };
    const changes: readonly ((on: KvCache) => Promise<unknown>)[] = [
      (on) => on.prefill(0, prompt(30, 5)),
      (on) => on.fork(0, 2),
      (on) => on.append(...(tokenFor(3, 900).slice(0, 2) as [Uint16Array, Uint16Array])),
      (on) => on.crop(0, 20),
      (on) => on.reorder([2, 0, 1]),
      (on) => on.prefill(1, prompt(64, 7)),
      (on) => on.crop(2, 0),
      (on) => on.reorder([1, 1, 1]),
      async (on) => on.load(await on.save()),
      (on) => on.lengths(0),
    ];
    for (const change of changes) {
      await step(decoder);
      await change(cache);
      await change(other);
      await step(decoder);
      await step(second);
      await step(decoder);
    }
    await cache.release();
    await other.release();
  });

  test('calls that are not awaited take their turns', async () => {
    const [cache, other] = [openCache(1, 40), openCache(1, 40)];
    const decoder = await cache.decoder({ splits: 1 });
    const [a, b, c] = [tokenFor(1, 1), tokenFor(1, 2), tokenFor(1, 3)];
    const outputs = [
      cache.prefill(0, prompt(30, 3)),
      decoder.step(...a),
      cache.crop(0, 25),
      decoder.step(...b),
      decoder.step(...c),
    ] as const;
    const results = await Promise.all(outputs);
    const follow = async ([keys, values, query]: typeof a) => {
      await other.append(keys, values);
      return other.attend(query, { splits: 1 });
    };
    await other.prefill(0, prompt(30, 3));
    expect(results[1]).toEqual(await follow(a));
    await other.crop(0, 25);
    expect(results[3]).toEqual(await follow(b));
    expect(results[4]).toEqual(await follow(c));
    await cache.release();
    await other.release();
  });

  test('a caller whose numbers are on the device fills the buffers and runs', async () => {
    const [cache, other] = [openCache(1, 20), openCache(1, 20)];
    const [decoder, same] = [await cache.decoder(), await other.decoder()];
    for (let step = 0; step < 12; step++) {
      const [keys, values, query] = tokenFor(1, step);
      for (const [range, bits] of [
        [decoder.buffers.keys, keys],
        [decoder.buffers.values, values],
        [decoder.buffers.query, query],
      ] as const) {
        expect(range.bytes).toBe(bits.byteLength);
        device.write(range.buffer, bits, range.offset);
      }
      await decoder.run();
      const bytes = await device.read(decoder.buffers.output);
      expect(new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4)).toEqual(
        await same.step(keys, values, query),
      );
    }
    await cache.release();
    await other.release();
  });

  test('a full stream is refused before anything changes, and room is noticed when it comes back', async () => {
    const cache = openCache(2, 3);
    await cache.prefill(1, prompt(30, 1));
    const decoder = await cache.decoder();
    const full =
      'sequence 1: expected at most 3 tokens in the stream, got 4. Open the cache with more generated tokens; nothing was appended to any sequence.';
    for (let step = 0; step < 3; step++) await decoder.step(...tokenFor(2, step));
    const before = [await cache.lengths(0), await cache.lengths(1)];
    const share = await cache.readShare(1);
    expect(await faultOf(decoder.step(...tokenFor(2, 3)))).toBe(full);
    expect(await faultOf(decoder.run())).toBe(full);
    expect(await faultOf(decoder.step(...tokenFor(2, 4)))).toBe(full);
    expect([await cache.lengths(0), await cache.lengths(1)]).toEqual(before);
    expect(await cache.readShare(1)).toEqual(share);
    await cache.crop(1, 20);
    await decoder.step(...tokenFor(2, 5));
    expect(await cache.lengths(0)).toMatchObject({ windowTokens: 4, refusedTokens: 0 });
    await cache.release();
  });

  test('more rows than one launch takes become several recordings', async () => {
    const lists: number[] = [];
    const counting = proxied(device, {
      record: (launches) => {
        lists.push(launches.length);
        return device.record(launches);
      },
    });
    const on = await LoadedKernels.load(counting, await generated(device, own));
    // A launch takes 16384 work items, and 17 sequences have more of them.
    const [cache, other] = [openCache(17, 2, on), openCache(17, 2)];
    const decoder = await cache.decoder({ splits: 1024 });
    expect(lists).toEqual(device.target === 'cuda' ? [2, 1] : [3, 2]);
    // A software adapter takes seconds for each.
    for (let step = 0; step < (device.target === 'cuda' ? 2 : 1); step++) {
      const [keys, values, query] = tokenFor(17, step);
      await other.append(keys, values);
      expect(await decoder.step(keys, values, query)).toEqual(await other.attend(query, { splits: 1024 }));
    }
    await cache.release();
    await other.release();
  });

  test('a layer with a sliding window attends to no more than that', async () => {
    const layers = { ...model, kinds: [{ ...model.kinds[0]!, slidingWindow: 5 }] };
    const on = await LoadedKernels.load(device, await generate(own, layers, targetOf(device)));
    const cache = openCache(1, 20, on);
    const decoder = await cache.decoder();
    for (let step = 0; step < 20; step++) {
      const [keys, values, query] = tokenFor(1, step);
      const output = await decoder.step(keys, values, query);
      const { decoded } = await readHeld(cache, 0);
      for (let head = 0; head < heads; head++) {
        const q = halfValues(query.subarray(head * headDim, (head + 1) * headDim));
        const input = { query: q, kvHead: 0, after: 0, slidingWindow: 5 };
        const expected = attendVisible(cache.geometry, decoded, input);
        expect(worstError(output.subarray(head * headDim, (head + 1) * headDim), expected, headDim).by).toBeLessThan(
          1e-5,
        );
      }
    }
    await cache.release();
  });

  test('steps wait for nothing but the output, unless another call came in between', async () => {
    const read: string[] = [];
    const counting = proxied(device, {
      read: (buffer: DeviceBuffer, offset?: number, bytes?: number) => {
        read.push(buffer.label);
        return device.read(buffer, offset, bytes);
      },
    });
    const on = await LoadedKernels.load(counting, await generated(device, own));
    const cache = openCache(1, 40, on);
    const decoder = await cache.decoder();
    const readBy = async (work: () => Promise<unknown>) => {
      read.length = 0;
      await work();
      return [...read];
    };
    expect(await readBy(() => decoder.step(...tokenFor(1, 1)))).toEqual(['sequences', 'output']);
    for (let step = 2; step < 12; step++) {
      expect(await readBy(() => decoder.step(...tokenFor(1, step)))).toEqual(['output']);
    }
    expect(await readBy(() => decoder.run())).toEqual([]);
    // A step that is refused for its numbers is no reason to read either.
    const bad = new Uint16Array(width);
    expect(await faultOf(decoder.step(bad, bad, bad))).toMatch(/^query, layer 0: /);
    expect(await readBy(() => decoder.run())).toEqual([]);
    await cache.append(...(tokenFor(1, 12).slice(0, 2) as [Uint16Array, Uint16Array]));
    expect(await readBy(() => decoder.step(...tokenFor(1, 13)))).toEqual(['sequences', 'output']);
    expect(await readBy(() => decoder.step(...tokenFor(1, 14)))).toEqual(['output']);
    await cache.release();
  });
});
