import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { recordBytes } from '../../codegen/plan/layout.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { normalFrom, seededRandom } from '../../runtime/reference/index.js';
import { halfBits } from '../../runtime/verify/draws.js';
import { makeCase, openDevice, targetOf } from '../stages/harness.js';

const tiny = makeCase({
  heads: 2,
  kvHeads: 1,
  headDim: 16,
  rank: 16,
  bits: 4,
  group: 16,
  entries: 16,
  sinks: 2,
  window: 4,
});
const random = seededRandom(3);
const halves = (count: number) => halfBits(Float64Array.from({ length: count }, () => normalFrom(random)));

/** The text of the error that a promise ends with. */
async function faultOf(promise: Promise<unknown>): Promise<string> {
  return promise.then(
    () => 'no error',
    (error: Error) => error.message,
  );
}

describe('KvCache', () => {
  let device: Device;
  let kernels: LoadedKernels;
  beforeAll(async () => {
    device = await openDevice('emulator');
    kernels = await LoadedKernels.load(device, await generate(tiny.scheme, tiny.model, targetOf(device)));
  });
  afterAll(() => device?.close());

  const open = (sequences: number, generated: number) => KvCache.open(kernels, { sequences, tokens: 64, generated });

  it('allocates what the plan says, for every sequence', () => {
    const cache = open(3, 5);
    expect(cache.bytes).toBe(3 * (cache.layout.bytes + recordBytes));
    cache.release();
  });

  it('refuses numbers that are not finite, with their place', async () => {
    const cache = open(1, 0);
    const keys = halves(30 * 16);
    keys[17 * 16 + 5] = 0x7e00;
    expect(await faultOf(cache.prefill(0, keys, halves(30 * 16), 30))).toMatchInlineSnapshot(
      `"keys, KV head 0, token 17, channel 5: expected a finite f16 number, got NaN. Find where the model overflows; nothing was written to the cache."`,
    );
    keys[17 * 16 + 5] = 0xfc00;
    expect(await faultOf(cache.prefill(0, halves(30 * 16), keys, 30))).toMatchInlineSnapshot(
      `"values, KV head 0, token 17, channel 5: expected a finite f16 number, got -Infinity. Find where the model overflows; nothing was written to the cache."`,
    );
    expect(await faultOf(cache.prefill(0, halves(29 * 16), keys, 30))).toMatchInlineSnapshot(
      `"keys: expected 480 f16 numbers (1 KV heads x 30 tokens x 16 channels) as a Uint16Array, got 464. Pass the bits of the f16 tensor, innermost dimension last."`,
    );
    expect(await faultOf(cache.prefill(0, keys, keys, 65))).toMatchInlineSnapshot(
      `"tokens: expected a whole number from 1 to 64 (the capacity), got 65. Open the cache with more tokens."`,
    );
    expect(await faultOf(cache.prefill(1, keys, keys, 30))).toMatchInlineSnapshot(
      `"sequence: expected a whole number from 0 to 0, got 1. Open the cache with more sequences."`,
    );
    expect(await faultOf(cache.attend(halves(7)))).toMatchInlineSnapshot(
      `"query: expected 32 f16 numbers (1 sequences x 2 heads x 16 channels) as a Uint16Array, got 7. Pass the bits of the f16 tensor, innermost dimension last."`,
    );
    expect(await cache.lengths(0)).toMatchObject({ promptTokens: 0, middleTokens: 0 });
    cache.release();
  });

  it('refuses a capacity that is none, or past the model', () => {
    expect(() => open(0, 0)).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: sequences: expected a whole number from 1 to 65535, got 0. Open one cache for the whole batch.]`,
    );
    expect(() =>
      KvCache.open(kernels, { sequences: 1, tokens: 5000, generated: 0 }),
    ).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: tokens: expected at most 4096 tokens, prompt and generated (the positions of 2-1-16-r16), got 5000. Lower the capacity, or give the model its longer context in config.json.]`,
    );
  });

  it('holds nothing after a prompt that failed half-way, and leaks no buffer', async () => {
    const live = new Set<object>();
    const allocate = (label: string, bytes: number) => {
      if (label === 'gram') throw new Error('out of memory');
      const buffer = device.allocate(label, bytes);
      live.add(buffer);
      const release = buffer.release.bind(buffer);
      buffer.release = () => {
        live.delete(buffer);
        release();
      };
      return buffer;
    };
    const failing = new Proxy(device, {
      get(target, name) {
        if (name === 'allocate') return allocate;
        const member: unknown = Reflect.get(target, name);
        return typeof member === 'function' ? member.bind(target) : member;
      },
    });
    const own = await LoadedKernels.load(failing, await generate(tiny.scheme, tiny.model, targetOf(device)));
    const cache = KvCache.open(own, { sequences: 1, tokens: 64, generated: 0 });
    const before = live.size;
    expect(await faultOf(cache.prefill(0, halves(30 * 16), halves(30 * 16), 30))).toBe('out of memory');
    expect(live.size).toBe(before);
    expect(await cache.lengths(0)).toMatchObject({ sinkTokens: 0, middleTokens: 0, windowTokens: 0 });
    expect([...(await cache.attend(halves(2 * 16)))].every((x) => x === 0)).toBe(true);
    cache.release();
  });

  it('appends to every sequence or to none', async () => {
    const cache = open(2, 1);
    await cache.prefill(1, halves(30 * 16), halves(30 * 16), 30);
    const append = () => cache.append(halves(2 * 16), halves(2 * 16));
    await append();
    const before = [await cache.lengths(0), await cache.lengths(1)];
    expect(before[1]).toMatchObject({ streamTokens: 1, windowTokens: 4, windowStart: 1 });
    expect(await faultOf(append())).toMatchInlineSnapshot(
      `"sequence 1: expected at most 1 tokens in the stream, got 2. Open the cache with more generated tokens; nothing was appended to any sequence."`,
    );
    expect([await cache.lengths(0), await cache.lengths(1)]).toEqual(before);
    cache.release();
  });

  it('takes appends in turn, so that none is dropped behind a full stream', async () => {
    const cache = open(1, 2);
    await cache.prefill(0, halves(20 * 16), halves(20 * 16), 20);
    const settled = await Promise.allSettled(Array.from({ length: 5 }, () => cache.append(halves(16), halves(16))));
    expect(settled.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected', 'rejected', 'rejected']);
    expect(await cache.lengths(0)).toMatchObject({ streamTokens: 2, refusedTokens: 0 });
    cache.release();
  });

  it('moves a share between caches, and refuses one of another layout', async () => {
    const [from, to] = [open(1, 2), open(2, 2)];
    await from.prefill(0, halves(40 * 16), halves(40 * 16), 40);
    to.writeShare(1, await from.readShare(0), await from.lengths(0));
    const query = halves(2 * 16);
    const expected = await from.attend(query);
    const both = new Uint16Array(4 * 16);
    both.set(query, 2 * 16);
    const output = await to.attend(both);
    expect(output.subarray(2 * 16)).toEqual(expected);
    expect(() => to.writeShare(0, new Uint8Array(4), { ...emptyRecord })).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: share: expected 1792 bytes (this cache's layout), got 4. Open both caches with the same scheme, model and capacity.]`,
    );
    const [share, lengths] = [await from.readShare(0), await from.lengths(0)];
    const lying = (change: object) => () => to.writeShare(0, share, { ...lengths, ...change });
    expect(lying({ middleTokens: 1e6 })).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: lengths.middleTokens: expected a whole number from 0 to 58, got 1000000. Pass the lengths that the other cache gave.]`,
    );
    expect(lying({ sinkTokens: -1 })).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: lengths.sinkTokens: expected a whole number from 0 to 2, got -1. Pass the lengths that the other cache gave.]`,
    );
    expect(lying({ windowStart: Number.NaN })).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: lengths.windowStart: expected a whole number from 0 to 3, got NaN. Pass the lengths that the other cache gave.]`,
    );
    from.release();
    to.release();
  });
});

const emptyRecord = {
  sinkTokens: 0,
  middleTokens: 0,
  streamTokens: 0,
  windowTokens: 0,
  windowStart: 0,
  promptTokens: 0,
};
