import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { int8, kivi4 } from '../../dsl/index.js';
import type { Scheme } from '../../dsl/scheme.js';
import type { Device } from '../../runtime/device.js';
import {
  type CachePolicy,
  Evictor,
  type HeldTokens,
  heavyHitters,
  KvCache,
  LoadedKernels,
  slidingSinks,
} from '../../runtime/index.js';
import { seededRandom } from '../../runtime/reference/index.js';
import { halfValues, worstError } from '../../runtime/verify/draws.js';
import { attendVisible } from '../../runtime/verify/visible.js';
import { deviceNames, openDevice } from '../stages/harness.js';
import { faultOf, generated, halves, model, scheme as quick } from './cacheCase.js';

const draws = fc
  .record({
    sinks: fc.nat(4),
    blocks: fc.array(fc.constantFrom(1, 1, 1, 3, 8), { maxLength: 20 }),
    window: fc.nat(5),
    distinct: fc.constantFrom(1, 3, 1000),
    seed: fc.nat(0xffff),
  })
  .map(({ sinks, blocks: sizes, window, distinct, seed }): HeldTokens => {
    let end = sinks;
    const blocks = sizes.map((size) => {
      end += size;
      return { first: end - size, end };
    });
    const random = seededRandom(seed);
    const tokens = end + window;
    const weights = Float64Array.from({ length: tokens }, () => Math.floor(random() * distinct));
    const lengths = {
      ...{ sinkTokens: sinks, middleTokens: end - sinks, streamTokens: 0, windowTokens: window },
      ...{ windowStart: 0, promptTokens: tokens },
    };
    return { lengths, tokens, weights, blocks };
  });

const isKept = (kept: readonly number[], { first }: { readonly first: number }) => kept.includes(first);

test('what a caller in plain JavaScript left out is named', async () => {
  const none = undefined as never;
  const hint = 'Pass it as the types say.';
  const of = (run: () => unknown) => faultOf((async () => run())());
  expect(await of(() => slidingSinks(none))).toBe(
    `slidingSinks: expected { window, sinks }, sinks optional, got undefined. ${hint}`,
  );
  expect(await of(() => heavyHitters(none))).toBe(`heavyHitters: expected { budget, recent }, got undefined. ${hint}`);
  expect(await of(() => new Evictor(none, 0, slidingSinks({ window: 1 })))).toBe(
    `cache: expected what KvCache.open gives, got undefined. ${hint}`,
  );
  expect(await of(() => new Evictor({} as KvCache, 0, none))).toBe(
    `policy: expected a policy, which has select, got undefined. ${hint}`,
  );
});

test('sliding sinks keep the blocks with one of the first tokens or one of the newest', () => {
  fc.assert(
    fc.property(draws, fc.nat(60), fc.nat(12), (held, window, sinks) => {
      const kept = slidingSinks({ window, sinks }).select(held);
      const wanted = held.blocks.flatMap(({ first, end }) => {
        const all = Array.from({ length: end - first }, (_, index) => first + index);
        return all.some((token) => token < sinks || token >= held.tokens - window) ? all : [];
      });
      expect(kept).toEqual(wanted);
    }),
  );
});

test('heavy hitters keep no more than their budget of older tokens, and none that drew less than one let go', () => {
  fc.assert(
    fc.property(draws, fc.nat(60), fc.nat(40), (held, budget, recent) => {
      const kept = heavyHitters({ budget, recent }).select(held);
      expect(kept).toEqual([...new Set(kept)].sort((a, b) => a - b));
      const mean = ({ first, end }: { readonly first: number; readonly end: number }) =>
        held.weights.slice(first, end).reduce((a, b) => a + b, 0) / (end - first);
      const older = held.blocks.filter(({ end }) => end <= held.tokens - recent);
      for (const block of held.blocks) if (!older.includes(block)) expect(isKept(kept, block)).toBe(true);
      const used = older.filter((block) => isKept(kept, block)).reduce((sum, { first, end }) => sum + end - first, 0);
      expect(used).toBeLessThanOrEqual(budget);
      for (const gone of older.filter((block) => !isKept(kept, block))) {
        const size = gone.end - gone.first;
        // It had no place among those that drew more, or as much and are newer.
        const ahead = older.filter(
          (other) => mean(other) > mean(gone) || (mean(other) === mean(gone) && other.first > gone.first),
        );
        const taken = ahead
          .filter((block) => isKept(kept, block))
          .reduce((sum, { first, end }) => sum + end - first, 0);
        expect(taken + size).toBeGreaterThan(budget);
      }
    }),
  );
});

test.each([
  [() => slidingSinks({ window: -1 }), 'window', '-1'],
  [() => slidingSinks({ window: Number.NaN }), 'window', 'NaN'],
  [() => slidingSinks({ window: 1, sinks: 1.5 }), 'sinks', '1.5'],
  [() => heavyHitters({ budget: '8' as never, recent: 1 }), 'budget', '"8"'],
  [() => heavyHitters({ budget: 8 } as never), 'recent', 'undefined'],
] as const)('a count that is none is refused: %#', (make, at, received) => {
  expect(make).toThrow(`${at}: expected a whole number from 0 to 16777216, got ${received}. Give a number of tokens.`);
});

const short = (scheme: Scheme): Scheme => ({ ...scheme, sinks: 2, window: 4 });

describe.each(deviceNames)('an evictor on %s', (name) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(name);
  });
  afterAll(() => device?.close());

  const open = async (scheme: Scheme) => {
    const kernels = await LoadedKernels.load(device, await generated(device, scheme));
    return KvCache.open(kernels, { sequences: 1, tokens: 100, generated: 6 });
  };
  const prompt = (tokens: number) => ({
    ...{ keys: halves(tokens * model.width, 1), values: halves(tokens * model.width, 2) },
    tokens,
  });
  const token = (seed: number) => [halves(model.width, seed), halves(model.width, seed + 1)] as const;
  const queryBits = (seed: number) => halves(model.heads * model.headDim, seed);

  test('bounds a sequence that never ends, and attention is over what is held', async () => {
    const cache = await open(short(int8));
    await cache.prefill(0, prompt(30));
    const evictor = new Evictor(cache, 0, slidingSinks({ window: 6, sinks: 3 }));
    for (let step = 0; step < 40; step++) {
      await cache.append(...token(100 + 2 * step));
      // Every fourth step, as the stream has room for six.
      if (step % 4 === 3) await evictor.evict();
    }
    const lengths = await cache.lengths(0);
    // Two sinks and one more first token, six of the newest, four of them in the window.
    expect(lengths).toMatchObject({ sinkTokens: 2, middleTokens: 1, streamTokens: 2, windowTokens: 4 });
    expect(lengths.evictedTokens).toBe(30 + 40 - 9);
    const query = queryBits(7);
    const output = await cache.attend(query);
    const { keys, values, tokens } = await cache.decompress(0);
    const tensor = (bits: Uint16Array) => ({ heads: 1, tokens, channels: 16, data: halfValues(bits) });
    const decoded = { keys: tensor(keys), values: tensor(values) };
    const expected = new Float64Array(32);
    for (const head of [0, 1]) {
      const own = halfValues(query).subarray(head * 16, (head + 1) * 16);
      expected.set(
        attendVisible(cache.geometry, decoded, { query: own, kvHead: 0, after: 0, slidingWindow: 0 }),
        head * 16,
      );
    }
    expect(worstError(output, expected, 32).by).toBeLessThan(1e-3);
    await cache.release();
  });

  test('adds up what tokens are given for as long as they are held', async () => {
    const cache = await open(short(int8));
    await cache.prefill(0, prompt(20));
    let seen: HeldTokens | undefined;
    const everySecond: CachePolicy = {
      select: (held) => {
        seen = held;
        return held.blocks.filter((_, index) => index % 2 === 0).map(({ first }) => first);
      },
    };
    const evictor = new Evictor(cache, 0, everySecond);
    const sums = new Float64Array(21);
    for (const seed of [11, 12]) {
      const { weights } = await cache.tokenWeights(0, queryBits(seed));
      for (const [at, weight] of weights.entries()) sums[at]! += weight;
      await evictor.observe(queryBits(seed));
    }
    await cache.append(...token(50));
    // Fourteen of the middle and one of the stream, of which the even ones stay.
    const kept = await evictor.evict();
    expect(kept).toEqual([2, 4, 6, 8, 10, 12, 14, 16]);
    expect(seen!.weights).toEqual(sums);
    const held = [0, 1, ...kept, 17, 18, 19, 20].map((at) => sums[at]!);
    const { weights } = await cache.tokenWeights(0, queryBits(13));
    await evictor.observe(queryBits(13));
    await evictor.evict();
    expect([...seen!.weights]).toEqual(held.map((sum, at) => sum + weights[at]!));
    await cache.release();
  });

  test('keeps whole blocks of which one token was chosen', async () => {
    const cache = await open(short({ ...kivi4, values: int8.values } as Scheme));
    await cache.prefill(0, prompt(100));
    const evictor = new Evictor(cache, 0, { select: () => [33, 34, 67] });
    const kept = await evictor.evict();
    const range = (first: number, end: number) => Array.from({ length: end - first }, (_, index) => first + index);
    expect(kept).toEqual([...range(2, 34), ...range(34, 66), ...range(66, 96)]);
    const other = new Evictor(cache, 0, { select: () => [40] });
    expect(await other.evict()).toEqual(range(34, 66));
    await cache.release();
  });

  test('takes the middle as one block where keys are coded before RoPE', async () => {
    const cache = await open(quick);
    await cache.prefill(0, prompt(30));
    const evictor = new Evictor(cache, 0, slidingSinks({ window: 8 }));
    for (let step = 0; step < 4; step++) await cache.append(...token(60 + step));
    await evictor.evict();
    // Its first tokens are among the first four.
    expect(await cache.lengths(0)).toMatchObject({ middleTokens: 24, streamTokens: 4, evictedTokens: 0 });
    await new Evictor(cache, 0, slidingSinks({ window: 6, sinks: 2 })).evict();
    expect(await cache.lengths(0)).toMatchObject({ middleTokens: 0, streamTokens: 2, evictedTokens: 26 });
    await cache.release();
  });

  test('refuses what a policy makes up, and changes nothing', async () => {
    const cache = await open(short(int8));
    await cache.prefill(0, prompt(20));
    const hint = 'Name them as decompress orders them; sinks and window stay without being named.';
    const range = 'expected a whole number from 2 to 15 (the middle and the stream of sequence 0), got';
    const of = (select: () => unknown) => faultOf(new Evictor(cache, 0, { select } as CachePolicy).evict());
    expect(await of(() => [Number.NaN])).toBe(`tokens[0]: ${range} NaN. ${hint}`);
    expect(await of(() => [19])).toBe(`tokens[0]: ${range} 19. ${hint}`);
    expect(await of(() => [5, 4])).toBe(`tokens[1]: expected more than 5 (the token before it), got 4. ${hint}`);
    expect(await of(() => undefined)).toBe(
      `tokens: expected a list of tokens to keep, ascending, got undefined. ${hint}`,
    );
    expect(
      await of(() => {
        throw new RangeError('no idea');
      }),
    ).toBe('RangeError no idea');
    expect(await cache.lengths(0)).toMatchObject({ middleTokens: 14, evictedTokens: 0 });
    await cache.release();
  });
});
