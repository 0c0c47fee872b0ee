import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { recordBytes } from '../../codegen/plan/layout.js';
import { KvforgeError } from '../../dsl/errors.js';
import { planReorder } from '../../runtime/cache/reorder.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device, Launch } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { normalFrom, seededRandom } from '../../runtime/reference/index.js';
import { halfBits } from '../../runtime/verify/draws.js';
import { makeCase, openDevice, targetOf } from '../stages/harness.js';
import { faultOf, generated as generatedNarrow, proxied } from './cacheCase.js';

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

describe('KvCache', () => {
  let device: Device;
  let kernels: LoadedKernels;
  beforeAll(async () => {
    device = await openDevice('emulator');
    kernels = await LoadedKernels.load(device, await generate(tiny.scheme, tiny.model, targetOf(device)));
  });
  afterAll(() => device?.close());

  const open = (sequences: number, generated: number) => KvCache.open(kernels, { sequences, tokens: 64, generated });

  it('allocates what the plan says, for every sequence', async () => {
    const cache = open(3, 5);
    expect(cache.bytes).toBe(3 * (cache.layout.bytes + recordBytes));
    await cache.release();
  });

  it('refuses numbers that are not finite, with their place', async () => {
    const cache = open(1, 0);
    const keys = halves(30 * 16);
    keys[17 * 16 + 5] = 0x7e00;
    expect(await faultOf(cache.prefill(0, { keys: keys, values: halves(30 * 16), tokens: 30 }))).toMatchInlineSnapshot(
      `"keys, layer 0, KV head 0, token 17, channel 5: expected a finite f16 number, got NaN. Find where the model overflows; nothing was written to the cache."`,
    );
    keys[17 * 16 + 5] = 0xfc00;
    expect(await faultOf(cache.prefill(0, { keys: halves(30 * 16), values: keys, tokens: 30 }))).toMatchInlineSnapshot(
      `"values, layer 0, KV head 0, token 17, channel 5: expected a finite f16 number, got -Infinity. Find where the model overflows; nothing was written to the cache."`,
    );
    expect(await faultOf(cache.prefill(0, { keys: halves(29 * 16), values: keys, tokens: 30 }))).toMatchInlineSnapshot(
      `"keys, layer 0: expected 480 f16 numbers (1 KV heads x 30 tokens x 16 channels) as a Uint16Array, got 464. Pass the bits of the f16 tensor, innermost dimension last."`,
    );
    expect(await faultOf(cache.prefill(0, { keys: keys, values: keys, tokens: 65 }))).toMatchInlineSnapshot(
      `"tokens: expected a whole number from 1 to 64 (the capacity), got 65. Open the cache with more tokens."`,
    );
    expect(await faultOf(cache.prefill(1, { keys: keys, values: keys, tokens: 30 }))).toMatchInlineSnapshot(
      `"sequence: expected a whole number from 0 to 0, got 1. Open the cache with more sequences."`,
    );
    expect(await faultOf(cache.attend(halves(7)))).toMatchInlineSnapshot(
      `"query, layer 0: expected 32 f16 numbers (1 sequences x 1 query tokens x 2 heads x 16 channels) as a Uint16Array, got 7. Pass the bits of the f16 tensor, innermost dimension last."`,
    );
    expect(await cache.lengths(0)).toMatchObject({ promptTokens: 0, middleTokens: 0 });
    await cache.release();
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
    const failing = proxied(device, { allocate });
    const own = await LoadedKernels.load(failing, await generate(tiny.scheme, tiny.model, targetOf(device)));
    const cache = KvCache.open(own, { sequences: 1, tokens: 64, generated: 0 });
    const before = live.size;
    expect(await faultOf(cache.prefill(0, { keys: halves(30 * 16), values: halves(30 * 16), tokens: 30 }))).toBe(
      'Error out of memory',
    );
    expect(live.size).toBe(before);
    expect(await cache.lengths(0)).toMatchObject({ sinkTokens: 0, middleTokens: 0, windowTokens: 0 });
    expect([...(await cache.attend(halves(2 * 16)))].every((x) => x === 0)).toBe(true);
    await cache.release();
  });

  it('appends to every sequence or to none', async () => {
    const cache = open(2, 1);
    await cache.prefill(1, { keys: halves(30 * 16), values: halves(30 * 16), tokens: 30 });
    const append = () => cache.append(halves(2 * 16), halves(2 * 16));
    await append();
    const before = [await cache.lengths(0), await cache.lengths(1)];
    expect(before[1]).toMatchObject({ streamTokens: 1, windowTokens: 4, windowStart: 1 });
    expect(await faultOf(append())).toMatchInlineSnapshot(
      `"sequence 1: expected at most 1 tokens in the stream, got 2. Open the cache with more generated tokens; nothing was appended to any sequence."`,
    );
    expect([await cache.lengths(0), await cache.lengths(1)]).toEqual(before);
    await cache.release();
  });

  it('takes appends in turn, so that none is dropped behind a full stream', async () => {
    const cache = open(1, 2);
    await cache.prefill(0, { keys: halves(20 * 16), values: halves(20 * 16), tokens: 20 });
    const settled = await Promise.allSettled(Array.from({ length: 5 }, () => cache.append(halves(16), halves(16))));
    expect(settled.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected', 'rejected', 'rejected']);
    expect(await cache.lengths(0)).toMatchObject({ streamTokens: 2, refusedTokens: 0 });
    await cache.release();
  });

  it('moves a share between caches, and refuses one of another layout', async () => {
    const [from, to] = [open(1, 2), open(2, 2)];
    await from.prefill(0, { keys: halves(40 * 16), values: halves(40 * 16), tokens: 40 });
    await to.writeShare(1, await from.readShare(0), await from.lengths(0));
    const query = halves(2 * 16);
    const expected = await from.attend(query);
    const both = new Uint16Array(4 * 16);
    both.set(query, 2 * 16);
    const output = await to.attend(both);
    expect(output.subarray(2 * 16)).toEqual(expected);
    expect(await faultOf(to.writeShare(0, new Uint8Array(4), { ...emptyRecord }))).toMatchInlineSnapshot(
      `"share: expected 1792 bytes (this cache's layout), got 4. Open both caches with the same scheme, model and capacity."`,
    );
    const [share, lengths] = [await from.readShare(0), await from.lengths(0)];
    const lying = (change: object) => faultOf(to.writeShare(0, share, { ...lengths, ...change }));
    expect(await lying({ middleTokens: 1e6 })).toMatchInlineSnapshot(
      `"lengths.middleTokens: expected a whole number from 0 to 58, got 1000000. Pass the lengths that the other cache gave."`,
    );
    expect(await lying({ sinkTokens: -1 })).toMatchInlineSnapshot(
      `"lengths.sinkTokens: expected a whole number from 0 to 2, got -1. Pass the lengths that the other cache gave."`,
    );
    expect(await lying({ windowStart: Number.NaN })).toMatchInlineSnapshot(
      `"lengths.windowStart: expected a whole number from 0 to 3, got NaN. Pass the lengths that the other cache gave."`,
    );
    await from.release();
    await to.release();
  });

  it('names the layer, the head, the token and the channel of what is not finite', async () => {
    const narrow = await LoadedKernels.load(device, await generatedNarrow(device), []);
    const cache = KvCache.open(narrow, { sequences: 2, tokens: 20, generated: 4, layer: 3 });
    const bits = halves(2 * 3 * 16);
    const broken = bits.map((half, i) => (i === (1 * 3 + 2) * 16 + 5 ? 0x7c00 : half));
    expect(await faultOf(cache.append(bits, broken, { tokens: 3 }))).toMatchInlineSnapshot(
      `"values, layer 3, sequence 1, token 2, KV head 0, channel 5: expected a finite f16 number, got Infinity. Find where the model overflows; nothing was written to the cache."`,
    );
    const query = halves(2 * 2 * 2 * 16).map((half, i) => (i === 127 ? 0xfe00 : half));
    expect(await faultOf(cache.attend(query, { queries: 2 }))).toMatchInlineSnapshot(
      `"query, layer 3, sequence 1, query token 1, head 1, channel 15: expected a finite f16 number, got NaN. Find where the model overflows; nothing was written to the cache."`,
    );
    const prompt = halves(9 * 16).map((half, i) => (i === 17 ? 0x7e00 : half));
    expect(await faultOf(cache.prefill(1, { keys: prompt, values: prompt, tokens: 9 }))).toMatchInlineSnapshot(
      `"keys, layer 3, KV head 0, token 1, channel 1: expected a finite f16 number, got NaN. Find where the model overflows; nothing was written to the cache."`,
    );
    expect(await cache.lengths(1)).toMatchObject({ windowTokens: 0, promptTokens: 0 });
    await cache.release();
  });

  it('refuses what plain JavaScript may leave out or mistake', async () => {
    const cache = open(2, 4);
    // What types would refuse.
    const any = cache as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>;
    const opened = async (...args: unknown[]) => (KvCache.open as (...args: unknown[]) => KvCache)(...args);
    const unloaded = await generatedNarrow(device);
    const bits = halves(2 * 16);
    const calls: readonly (() => Promise<unknown>)[] = [
      () => opened(),
      () => opened({}),
      () => opened(unloaded, { sequences: 1, tokens: 8, generated: 0 }),
      () => opened(Promise.resolve(kernels), { sequences: 1, tokens: 8, generated: 0 }),
      () => opened(kernels),
      () => opened(kernels, { sequences: '3', tokens: 8, generated: 0 }),
      () => opened(kernels, { sequences: 1, tokens: 8 }),
      () => opened(kernels, { sequences: 1, tokens: 8, generated: 0, layer: 1 }),
      () => any.prefill!(),
      () => any.prefill!(0),
      () => any.prefill!('0', {}),
      () => any.prefill!(0, { tokens: 3 }),
      () => any.prefill!(0, { tokens: 2, keys: [...bits], values: bits }),
      () => any.append!(),
      () => any.append!(bits),
      () => any.append!(bits, bits, { tokens: 0.5 }),
      () => any.attend!(),
      () => any.attend!(bits, { queries: 0 }),
      () => any.attend!(halves(4 * 16), { splits: 2000 }),
      () => any.decompress!(),
      () => any.lengths!(2),
      () => any.crop!(0),
      () => any.crop!(0, -1),
      () => any.fork!(0),
      () => any.reorder!(),
      () => any.reorder!([0]),
      () => any.reorder!([0, '1']),
      () => any.load!(),
      () => any.load!('cache.safetensors'),
      () => any.writeShare!(0),
    ];
    const faults: string[] = [];
    for (const call of calls) {
      const fault = await call().then(
        () => 'no error',
        (error: unknown) => (error instanceof KvforgeError ? `${error.code}: ${error.message}` : String(error)),
      );
      faults.push(fault);
    }
    expect(faults.filter((fault) => !fault.startsWith('wrong-use: '))).toEqual([]);
    expect(faults).toMatchInlineSnapshot(`
      [
        "wrong-use: kernels: expected kernels that LoadedKernels.load gave, got undefined. Pass what await LoadedKernels.load(device, generated) gives.",
        "wrong-use: kernels: expected kernels that LoadedKernels.load gave, got an object. Pass what await LoadedKernels.load(device, generated) gives.",
        "wrong-use: kernels: expected kernels that LoadedKernels.load gave, got generated ones, which no device has loaded. Load them first: await LoadedKernels.load(device, kernels).",
        "wrong-use: kernels: expected kernels that LoadedKernels.load gave, got a promise, which was not awaited. Pass what await LoadedKernels.load(device, generated) gives.",
        "wrong-use: capacity: expected { sequences, tokens, generated }, got undefined. Pass it as the types say.",
        "wrong-use: sequences: expected a whole number from 1 to 65535, got "3". Open one cache for the whole batch.",
        "wrong-use: generated: expected a whole number from 0 to 16777216, got undefined. Give the tokens of one sequence.",
        "wrong-use: layer: expected a whole number from 0 to 0, got 1. 2-1-16-r16 has 1 layers.",
        "wrong-use: sequence: expected a whole number from 0 to 1, got undefined. Open the cache with more sequences.",
        "wrong-use: prompt: expected { keys, values, tokens }, got undefined. Pass it as the types say.",
        "wrong-use: sequence: expected a whole number from 0 to 1, got "0". Open the cache with more sequences.",
        "wrong-use: keys, layer 0: expected 48 f16 numbers (1 KV heads x 3 tokens x 16 channels) as a Uint16Array, got undefined. Pass the bits of the f16 tensor, innermost dimension last.",
        "wrong-use: keys, layer 0: expected 32 f16 numbers (1 KV heads x 2 tokens x 16 channels) as a Uint16Array, got object. Pass the bits of the f16 tensor, innermost dimension last.",
        "wrong-use: keys, layer 0: expected 32 f16 numbers (2 sequences x 1 tokens x 1 KV heads x 16 channels) as a Uint16Array, got undefined. Pass the bits of the f16 tensor, innermost dimension last.",
        "wrong-use: values, layer 0: expected 32 f16 numbers (2 sequences x 1 tokens x 1 KV heads x 16 channels) as a Uint16Array, got undefined. Pass the bits of the f16 tensor, innermost dimension last.",
        "wrong-use: tokens: expected a whole number from 1 to 16777216, got 0.5. Leave it out for one token a sequence.",
        "wrong-use: query, layer 0: expected 64 f16 numbers (2 sequences x 1 query tokens x 2 heads x 16 channels) as a Uint16Array, got undefined. Pass the bits of the f16 tensor, innermost dimension last.",
        "wrong-use: queries: expected a whole number from 1 to 65535, got 0. Leave it out for one query token a sequence.",
        "wrong-use: splits: expected a whole number from 1 to 1024, got 2000. Leave it out for the default.",
        "wrong-use: sequence: expected a whole number from 0 to 1, got undefined. Open the cache with more sequences.",
        "wrong-use: sequence: expected a whole number from 0 to 1, got 2. Open the cache with more sequences.",
        "wrong-use: tokens: expected a whole number from 0 to 0 (what sequence 0 holds), got undefined. Give the number of tokens to keep.",
        "wrong-use: tokens: expected a whole number from 0 to 0 (what sequence 0 holds), got -1. Give the number of tokens to keep.",
        "wrong-use: sequence: expected a whole number from 0 to 1, got undefined. Open the cache with more sequences.",
        "wrong-use: sources: expected a list of 2 sequences, got undefined. Name a source for every sequence; its own number leaves it as it is.",
        "wrong-use: sources: expected a list of 2 sequences, got one of 1. Name a source for every sequence; its own number leaves it as it is.",
        "wrong-use: sources[1]: expected a whole number from 0 to 1, got "1". Name a sequence of the cache.",
        "wrong-use: cache file: expected the bytes of a file, as a Uint8Array, got undefined. Pass it as it was given.",
        "wrong-use: cache file: expected the bytes of a file, as a Uint8Array, got "cache.safetensors". Pass it as it was given.",
        "wrong-use: share: expected the bytes that readShare gave, as a Uint8Array, got undefined. Pass it as it was given.",
      ]
    `);
    await cache.release();
  });

  it('appends several tokens as it appends them one by one', async () => {
    const [one, many] = [open(3, 8), open(3, 8)];
    const prompt = { keys: halves(30 * 16), values: halves(30 * 16), tokens: 30 };
    for (const cache of [one, many]) await cache.prefill(1, prompt);
    const [keys, values] = [halves(3 * 7 * 16), halves(3 * 7 * 16)];
    for (let token = 0; token < 7; token++) {
      const step = (bits: Uint16Array) =>
        Uint16Array.from(
          [0, 1, 2].flatMap((row) => [...bits.slice((row * 7 + token) * 16, (row * 7 + token + 1) * 16)]),
        );
      await one.append(step(keys), step(values));
    }
    await many.append(keys, values, { tokens: 7 });
    expect(await many.save()).toEqual(await one.save());
    for (const cache of [one, many]) await cache.release();
  });

  it('lets calls take effect in the order in which they were made', async () => {
    const [awaited, thrown] = [open(2, 8), open(2, 8)];
    const prompt = { keys: halves(30 * 16), values: halves(30 * 16), tokens: 30 };
    const [keys, values, query] = [halves(2 * 3 * 16), halves(2 * 3 * 16), halves(4 * 16)];
    const calls: readonly ((cache: KvCache) => Promise<unknown>)[] = [
      (cache) => cache.prefill(0, prompt),
      (cache) => cache.append(keys, values, { tokens: 3 }),
      (cache) => cache.fork(0, 1),
      (cache) => cache.decompress(1),
      (cache) => cache.crop(1, 17),
      (cache) => cache.attend(query),
      (cache) => cache.append(keys, values, { tokens: 3 }),
      (cache) => cache.reorder([1, 0]),
      (cache) => cache.lengths(0),
      (cache) => cache.save(),
      (cache) => cache.prefill(1, prompt),
      (cache) => cache.attend(query),
    ];
    const expected: unknown[] = [];
    for (const call of calls) expected.push(await call(awaited));
    expect(await Promise.all(calls.map((call) => call(thrown)))).toEqual(expected);
    for (const cache of [awaited, thrown]) await cache.release();
  });

  it('attends in several launches where one takes too few rows', async () => {
    const calls: number[] = [];
    const small = proxied(device, {
      limits: { ...device.limits, blocksPerDimension: 7 },
      run: (launches: readonly Launch[]) => {
        calls.push(...launches.map(({ grid }) => grid[0]));
        return device.run(launches);
      },
    });
    const own = await LoadedKernels.load(small, await generate(tiny.scheme, tiny.model, targetOf(device)));
    const query = halves(3 * 5 * 2 * 16);
    const outputs: Float32Array[] = [];
    const first = open(3, 0);
    await first.prefill(1, { keys: halves(40 * 16), values: halves(40 * 16), tokens: 40 });
    const file = await first.save();
    await first.release();
    for (const kernelsOfOne of [kernels, own]) {
      const cache = KvCache.open(kernelsOfOne, { sequences: 3, tokens: 64, generated: 0 });
      await cache.load(file);
      outputs.push(await cache.attend(query, { queries: 5, splits: 2 }));
      if (kernelsOfOne === own) {
        // 15 rows, of which 3 with 2 splits each fit into 7 blocks.
        expect(calls).toEqual([6, 6, 6, 6, 6]);
        expect(await faultOf(cache.attend(query, { queries: 5, splits: 8 }))).toMatchInlineSnapshot(
          `"splits: expected at most 7 (what one launch of this device takes), got 8. Leave it out for the default."`,
        );
      }
      await cache.release();
    }
    expect(outputs[1]).toEqual(outputs[0]);
  });

  it('copies no more than it must to put sequences in order, and loses none where that fails', async () => {
    const copied: number[] = [];
    let broken = false;
    const watched = proxied(device, {
      run: (launches: readonly Launch[]) => {
        const copies = launches.filter(({ kernel }) => kernel.descriptor.entry === 'copy_words');
        copied.push(copies.reduce((sum, { grid }) => sum + grid[1], 0));
        if (broken) throw new Error('unplugged');
        return device.run(launches);
      },
    });
    const own = await LoadedKernels.load(watched, await generate(tiny.scheme, tiny.model, targetOf(device)));
    const cache = KvCache.open(own, { sequences: 3, tokens: 64, generated: 0 });
    for (const sequence of [0, 1]) {
      await cache.prefill(sequence, { keys: halves(40 * 16), values: halves(40 * 16), tokens: 40 });
    }
    const before = [await cache.decompress(0), await cache.decompress(1)];
    await cache.reorder([1, 2, 0]);
    expect(copied.at(-1)).toBe(0);
    expect([await cache.decompress(2), await cache.decompress(0)]).toEqual(before);
    await cache.reorder([0, 2, 2]);
    // Twelve parts hold something; none of the stream does.
    expect(copied.at(-1)).toBe(12);
    expect([await cache.decompress(1), await cache.decompress(0)]).toEqual(before);
    broken = true;
    expect(await faultOf(cache.fork(0, 2))).toBe('Error unplugged');
    broken = false;
    expect(await cache.lengths(2)).toMatchObject({ sinkTokens: 0, middleTokens: 0, windowTokens: 0 });
    expect([await cache.decompress(1), await cache.decompress(0)]).toEqual(before);
    await cache.release();
  });

  it('plans as few copies as there are sequences without a share of their own', () => {
    const plan = fc.integer({ min: 1, max: 9 }).chain((count) =>
      fc.record({
        shares: fc.shuffledSubarray([...Array(count).keys()], { minLength: count }),
        sources: fc.array(fc.nat(count - 1), { minLength: count, maxLength: count }),
      }),
    );
    fc.assert(
      fc.property(plan, ({ shares, sources }) => {
        const { shares: after, copies } = planReorder(shares, sources);
        expect([...after].sort()).toEqual([...shares].sort());
        expect(copies.length).toBe(sources.length - new Set(sources).size);
        const held = shares.map((_, share) => shares.indexOf(share));
        for (const { from, to, source } of copies) {
          expect(held[from]).toBe(source);
          expect(sources).not.toContain(held[to]);
        }
        for (const { from, to } of copies) held[to] = held[from]!;
        expect(after.map((share) => held[share])).toEqual(sources);
      }),
    );
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
