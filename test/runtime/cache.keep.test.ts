import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { geometryOf } from '../../dsl/geometry.js';
import { int8, kivi4, kvquant3, presetModel, type Scheme, shard } from '../../dsl/index.js';
import { evictionBlocks, evictionUnit, KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { emptyTensor, observedScores, tokenMasses, vectorAt } from '../../runtime/reference/index.js';
import { halfValues, worstDifference } from '../../runtime/verify/draws.js';
import { deviceNames, openDevice, targetOf } from '../stages/harness.js';
import { faultOf, generated, halves, model, proxied, scheme as quick, tokenOf } from './cacheCase.js';

const short = (scheme: Scheme, window = 4): Scheme => ({ ...scheme, sinks: 2, window });

describe.each(deviceNames)('evicting tokens on %s', (name) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(name);
  });
  afterAll(() => device?.close());

  const kernelsOf = async (scheme: Scheme) => LoadedKernels.load(device, await generated(device, scheme));

  /** A sequence with a middle of 40 tokens, five in the stream, and four in the window. */
  async function filled(scheme: Scheme): Promise<KvCache> {
    const cache = KvCache.open(await kernelsOf(scheme), { sequences: 2, tokens: 64, generated: 8 });
    const tokens = 46;
    const [keys, values] = [halves(tokens * model.width, 1), halves(tokens * model.width, 2)];
    await cache.prefill(0, { keys, values, tokens });
    await cache.append(halves(10 * model.width, 3), halves(10 * model.width, 4), { tokens: 5 });
    return cache;
  }

  test('tells what query tokens make of every token that is held', async () => {
    const cache = await filled(short(int8));
    await cache.keep(0, [2, 3, 9, 10, 30, 43, 44]);
    for (const queries of [1, 3, 20]) {
      const bits = halves(queries * model.heads * model.headDim, 5 + queries);
      const { weights, tokens } = await cache.tokenWeights(0, bits, { queries });
      const decoded = await cache.decompress(0);
      expect(tokens).toBe(13);
      const keys = { ...emptyTensor(1, tokens, model.headDim), data: halfValues(decoded.keys) };
      const query = emptyTensor(model.heads, queries, model.headDim);
      const given = halfValues(bits);
      for (let row = 0; row < queries * model.heads; row++) {
        const own = given.subarray(row * model.headDim, (row + 1) * model.headDim);
        vectorAt(query, row % model.heads, Math.floor(row / model.heads)).set(own);
      }
      const scores = observedScores({ keys, queries: query }, { scale: model.scoreScale });
      const wanted = tokenMasses(scores, { kvHeads: 1, queries, after: 0, slidingWindow: 0 });
      expect(worstDifference(weights, wanted).by).toBeLessThan(1e-5 * queries);
    }
    expect(await cache.tokenWeights(1, halves(32, 1))).toMatchObject({ tokens: 5 });
    await cache.crop(1, 0);
    expect(await cache.tokenWeights(1, halves(32, 1))).toEqual({ weights: new Float32Array(0), tokens: 0 });
    await cache.release();
  });

  test('frees the stream, and by way of a file the bytes', async () => {
    const cache = await filled(short(int8));
    const kept = [5, 20, 41, 42, 46];
    const before = await cache.decompress(0);
    await cache.keep(0, kept);
    expect(await cache.lengths(0)).toMatchObject({
      sinkTokens: 2,
      middleTokens: 3,
      streamTokens: 2,
      windowTokens: 4,
      promptTokens: 6,
      evictedTokens: 40,
    });
    expect(await cache.lengths(1)).toMatchObject({ streamTokens: 1, evictedTokens: 0 });
    // Six more than there was room for.
    await cache.append(halves(12 * model.width, 6), halves(12 * model.width, 7), { tokens: 6 });
    const file = await cache.save();
    const smaller = KvCache.open(await kernelsOf(short(int8)), { sequences: 2, tokens: 9, generated: 8 });
    await smaller.load(file);
    expect(await smaller.lengths(0)).toMatchObject({ middleTokens: 3, streamTokens: 8, evictedTokens: 40 });
    const after = await smaller.decompress(0);
    for (const [index, token] of [0, 1, ...kept].entries()) {
      expect(tokenOf(after, after.keys, index)).toEqual(tokenOf(before, before.keys, token));
      expect(tokenOf(after, after.values, index)).toEqual(tokenOf(before, before.values, token));
    }
    await cache.release();
    await smaller.release();
  });

  test('is refused what is no token, with the text that says why', async () => {
    const cache = await filled(short(int8));
    const refused = (tokens: unknown) => faultOf(cache.keep(0, tokens as never));
    const hint = 'Name them as decompress orders them; sinks and window stay without being named.';
    const range = 'expected a whole number from 2 to 46 (the middle and the stream of sequence 0), got';
    expect(await refused([1])).toBe(`tokens[0]: ${range} 1. ${hint}`);
    expect(await refused([3, 47])).toBe(`tokens[1]: ${range} 47. ${hint}`);
    expect(await refused([3, Number.NaN])).toBe(`tokens[1]: ${range} NaN. ${hint}`);
    expect(await refused([3.5])).toBe(`tokens[0]: ${range} 3.5. ${hint}`);
    expect(await refused(['3'])).toBe(`tokens[0]: ${range} "3". ${hint}`);
    expect(await refused([3, 3])).toBe(`tokens[1]: expected more than 3 (the token before it), got 3. ${hint}`);
    expect(await refused([9, 4])).toBe(`tokens[1]: expected more than 9 (the token before it), got 4. ${hint}`);
    expect(await refused(undefined)).toBe(
      `tokens: expected a list of tokens to keep, ascending, got undefined. ${hint}`,
    );
    expect(await refused(new DataView(new ArrayBuffer(4)))).toBe(
      `tokens: expected a list of tokens to keep, ascending, got an object. ${hint}`,
    );
    expect(await refused(() => [99])).toBe(`tokens[0]: ${range} 99. ${hint}`);
    await cache.crop(1, 0);
    expect(await faultOf(cache.keep(1, [2]))).toBe(
      `tokens: expected no token, as the middle and the stream of sequence 1 are empty, got 1. ${hint}`,
    );
    expect(await faultOf(cache.keep(2, []))).toBe(
      'sequence: expected a whole number from 0 to 1, got 2. Open the cache with more sequences.',
    );
    expect(await faultOf(cache.tokenWeights(0, halves(32, 1), { queries: 0 }))).toBe(
      'queries: expected a whole number from 1 to 65535, got 0. Leave it out for one query token.',
    );
    expect(await faultOf(cache.tokenWeights(0, halves(32, 1).fill(0x7e00, 17, 18)))).toBe(
      'query, layer 0, query token 0, head 1, channel 1: expected a finite f16 number, got NaN. Find where the model overflows; nothing was written to the cache.',
    );
    expect(await cache.lengths(0)).toMatchObject({ middleTokens: 40, streamTokens: 5, evictedTokens: 0 });
    await cache.release();
  });

  test('takes whole blocks where tokens share a row of scales', async () => {
    const cache = await filled(short({ ...kivi4, values: int8.values } as Scheme));
    expect(evictionUnit(cache.geometry)).toBe(32);
    const middle = Array.from({ length: 40 }, (_, token) => 2 + token);
    const text = (tokens: string, held: number) =>
      `tokens: expected all or none of tokens ${tokens} of sequence 0, which share a row of scales, got ${held} of them. Keep whole blocks of evictionUnit(geometry) tokens, 32, counted from the first of the middle.`;
    expect(await faultOf(cache.keep(0, middle.slice(1, 32)))).toBe(text('2 to 33', 31));
    expect(await faultOf(cache.keep(0, middle.slice(33)))).toBe(text('34 to 41', 7));
    const before = await cache.decompress(0);
    await cache.keep(0, [...middle.slice(32), 42]);
    const after = await cache.decompress(0);
    for (const [index, token] of [...middle.slice(32), 42].entries()) {
      expect(tokenOf(after, after.keys, 2 + index)).toEqual(tokenOf(before, before.keys, token));
    }
    // Its first tokens alone, as crop leaves them.
    await cache.keep(0, [2, 3, 10]);
    expect(await cache.lengths(0)).toMatchObject({ middleTokens: 2, streamTokens: 1, evictedTokens: 42 });
    const last = await cache.decompress(0);
    expect(tokenOf(last, last.keys, 3)).toEqual(tokenOf(after, after.keys, 3));
    await cache.release();
  });

  test.each([quick, short(kvquant3)])('keeps the order of keys that are coded before RoPE, $name', async (own) => {
    const cache = await filled(own);
    const text = (found: string) =>
      `tokens: expected the first tokens of the middle, or none of it: keys of ${own.name} are coded before RoPE and take their position from their place, got ${found}. Take a scheme that codes keys after RoPE, or evict from the stream alone.`;
    expect(await faultOf(cache.keep(0, [2, 3, 5]))).toBe(text('5 after 3'));
    expect(await faultOf(cache.keep(0, [3]))).toBe(text('3 after the sinks'));
    const before = await cache.decompress(0);
    await cache.keep(0, [2, 3, 4, 43]);
    const after = await cache.decompress(0);
    for (const [index, token] of [2, 3, 4, 43].entries()) {
      expect(tokenOf(after, after.keys, 2 + index)).toEqual(tokenOf(before, before.keys, token));
    }
    await cache.keep(0, []);
    expect(await cache.lengths(0)).toMatchObject({ middleTokens: 0, streamTokens: 0, evictedTokens: 45 });
    await cache.release();
  });

  test('refuses layers with a sliding window, which counts tokens back', async () => {
    const sliding = { ...model, kinds: [{ ...model.kinds[0]!, slidingWindow: 16 }] };
    const kernels = await LoadedKernels.load(device, await generate(short(int8), sliding, targetOf(device)));
    const cache = KvCache.open(kernels, { sequences: 1, tokens: 32, generated: 0 });
    await cache.prefill(0, { keys: halves(512, 1), values: halves(512, 2), tokens: 32 });
    expect(await faultOf(cache.keep(0, [4]))).toBe(
      "tokens: expected all 26 of sequence 0: the layer's sliding window counts tokens back, got 1. Evict from layers that see all tokens.",
    );
    await cache.keep(
      0,
      Array.from({ length: 26 }, (_, token) => 2 + token),
    );
    const { weights } = await cache.tokenWeights(0, halves(32, 3));
    expect(weights.findIndex((weight) => weight > 0)).toBe(16);
    await cache.release();
  });

  test('moves more rows than a launch takes', async () => {
    const narrow = proxied(device, { limits: { ...device.limits, blocksPerDimension: 4 } });
    const kernels = await LoadedKernels.load(narrow, await generated(device, short(int8)));
    const cache = KvCache.open(kernels, { sequences: 1, tokens: 64, generated: 0 });
    await cache.prefill(0, { keys: halves(1024, 1), values: halves(1024, 2), tokens: 64 });
    const before = await cache.decompress(0);
    // Every third: a run for each of the 19 in each of four parts.
    const kept = Array.from({ length: 19 }, (_, index) => 3 + 3 * index);
    await cache.keep(0, kept);
    const after = await cache.decompress(0);
    for (const [index, token] of kept.entries()) {
      expect(tokenOf(after, after.keys, 2 + index)).toEqual(tokenOf(before, before.keys, token));
      expect(tokenOf(after, after.values, 2 + index)).toEqual(tokenOf(before, before.values, token));
    }
    await cache.release();
  });

  test('is counted by who writes a share, within what a record counts', async () => {
    const cache = await filled(short(int8));
    const [share, lengths] = [await cache.readShare(0), await cache.lengths(0)];
    const count = (evictedTokens: unknown) =>
      faultOf(cache.writeShare(1, share, { ...lengths, evictedTokens: evictedTokens as number }));
    const text = (received: string) =>
      `lengths.evictedTokens: expected a whole number from 0 to 2147483648, got ${received}. Pass the lengths that the other cache gave.`;
    expect(await count(-1)).toBe(text('-1'));
    expect(await count(2 ** 31 + 1)).toBe(text('2147483649'));
    expect(await count(Number.NaN)).toBe(text('NaN'));
    expect(await count('7')).toBe(text('"7"'));
    expect(await count(2 ** 31)).toBe('no error');
    expect(await cache.lengths(1)).toMatchObject({ evictedTokens: 2 ** 31 });
    await cache.reorder([1, 0]);
    expect(await cache.lengths(0)).toMatchObject({ evictedTokens: 2 ** 31 });
    // A prompt starts anew.
    await cache.prefill(0, { keys: halves(160, 1), values: halves(160, 2), tokens: 10 });
    expect(await cache.lengths(0)).toMatchObject({ evictedTokens: 0 });
    await cache.release();
  });

  test('leaves the sequence empty when the device fails half-way, and no other', async () => {
    let fails = false;
    const failing = proxied(device, {
      run: (launches) => (fails ? Promise.reject(new Error('lost')) : device.run(launches)),
    });
    const kernels = await LoadedKernels.load(failing, await generated(device, short(int8)));
    const cache = KvCache.open(kernels, { sequences: 2, tokens: 64, generated: 8 });
    for (const sequence of [0, 1]) {
      await cache.prefill(sequence, { keys: halves(640, 1), values: halves(640, 2), tokens: 40 });
    }
    fails = true;
    expect(await faultOf(cache.keep(0, [20]))).toBe('Error lost');
    expect(await cache.lengths(0)).toMatchObject({ sinkTokens: 0, middleTokens: 0, windowTokens: 0 });
    // What only shortens moves nothing.
    await cache.keep(1, [2, 3, 4]);
    expect(await cache.lengths(1)).toMatchObject({ middleTokens: 3, evictedTokens: 31 });
    await cache.release();
  });
});

test('weighs more queries than fit at once', async () => {
  const device = await EmulatorDevice.open({ checks: 'none' });
  let launches = 0;
  const counting = proxied(device, {
    run: (list) => {
      launches += list.filter(({ kernel }) => kernel.descriptor.entry === 'mass_scores').length;
      return device.run(list);
    },
  });
  const kernels = await LoadedKernels.load(counting, await generated(device, short(int8)));
  const tokens = 4096;
  const queries = 2049;
  const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0 });
  await cache.prefill(0, { keys: halves(tokens * 16, 1), values: halves(tokens * 16, 2), tokens });
  const bits = halves(queries * 32, 3);
  const { weights } = await cache.tokenWeights(0, bits, { queries });
  expect(launches).toBe(2);
  const sum = weights.reduce((total, weight) => total + weight, 0);
  expect(sum / (queries * model.heads)).toBeCloseTo(1, 4);
  // The last query alone sees the last token.
  const last = await cache.tokenWeights(0, bits.subarray((queries - 1) * 32));
  expect(weights.at(-1)).toBeCloseTo(last.weights.at(-1)!, 8);
  await cache.release();
  await device.close();
}, 60_000);

test('blocks are those that rows of scales make of the middle, then the tokens of the stream', () => {
  const lengths = {
    sinkTokens: 1,
    middleTokens: 70,
    streamTokens: 2,
    windowTokens: 3,
    windowStart: 0,
    promptTokens: 74,
  };
  const llama = presetModel('llama-3.1-8b');
  const stream = [
    { first: 71, end: 72 },
    { first: 72, end: 73 },
  ];
  expect(evictionBlocks(geometryOf(kivi4, llama), lengths)).toEqual([
    { first: 1, end: 33 },
    { first: 33, end: 65 },
    { first: 65, end: 71 },
    ...stream,
  ]);
  expect(evictionBlocks(geometryOf(shard, llama), lengths)).toEqual([{ first: 1, end: 71 }, ...stream]);
  expect(evictionBlocks(geometryOf(shard, llama), { ...lengths, middleTokens: 0 })).toHaveLength(2);
  expect(evictionBlocks(geometryOf(int8, llama), lengths)).toHaveLength(72);
  expect(evictionUnit(geometryOf(shard, llama))).toBe(1);
});
