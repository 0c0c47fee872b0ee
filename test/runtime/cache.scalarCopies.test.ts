import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { type DecodedTokens, KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { openDevice, targetOf } from '../stages/harness.js';
import { scalarCases } from '../stages/scalarCases.js';
import { halves } from './cacheCase.js';

/** Middle tokens: two rows of scales of 32 tokens, three of 16, the last of either not full. */
const MIDDLE = 37;

/** Those with rows of scales for several tokens; keys' in one case, values' in the other. */
const cases = scalarCases.filter(({ g }) => g.keys.scaleTokens > 1 || g.values.scaleTokens > 1);

// Which rows are copied, saved and dropped is decided on the host, from the same layout for every device.
describe.each(cases)('copies of a cache of scalar codes, $name', ({ scheme, model, g }) => {
  const { sinks, window } = scheme;
  const tokens = sinks + MIDDLE + window;
  const prompt = { keys: halves(tokens * g.width, 1), values: halves(tokens * g.width, 2), tokens };
  const query = halves(g.heads * g.headDim, 3);
  let device: Device;
  let kernels: LoadedKernels;
  const opened: KvCache[] = [];
  const open = (sequences: number, capacity: number) => {
    const cache = KvCache.open(kernels, { sequences, tokens: capacity, generated: 4 });
    opened.push(cache);
    return cache;
  };
  beforeAll(async () => {
    device = await openDevice('emulator');
    kernels = await LoadedKernels.load(device, await generate(scheme, model, targetOf(device)));
  });
  afterAll(async () => {
    for (const cache of opened) await cache.release();
    await device?.close();
  });

  /** The first tokens of what was decoded, [KV heads][tokens][head dim]. */
  const firstOf = ({ keys, values, tokens: all }: DecodedTokens, count: number) => {
    const of = (bits: Uint16Array) =>
      Array.from({ length: g.kvHeads }, (_, head) =>
        bits.slice(head * all * g.headDim, (head * all + count) * g.headDim),
      );
    return { keys: of(keys), values: of(values) };
  };

  test('a fork reads what its source does, in a share that held a longer prompt', async () => {
    const cache = open(2, tokens + 20);
    const longer = tokens + 20;
    await cache.prefill(1, { keys: halves(longer * g.width, 4), values: halves(longer * g.width, 5), tokens: longer });
    await cache.prefill(0, prompt);
    await cache.fork(0, 1);
    expect(await cache.decompress(1)).toEqual(await cache.decompress(0));
    const output = await cache.attend(new Uint16Array([...query, ...query]));
    expect(output.subarray(output.length / 2)).toEqual(output.subarray(0, output.length / 2));
  });

  test.each([tokens - 1, sinks + 33, sinks + 32, sinks])(
    'a sequence cropped to %i tokens keeps these',
    async (kept) => {
      const cache = open(1, tokens);
      await cache.prefill(0, prompt);
      const before = await cache.decompress(0);
      await cache.crop(0, kept);
      const after = await cache.decompress(0);
      expect(after.tokens).toBe(kept);
      expect(firstOf(after, kept)).toEqual(firstOf(before, kept));
    },
  );

  test.each([tokens, tokens + 50])('a file is the same in a cache for %i tokens', async (capacity) => {
    const saved = open(1, tokens + 20);
    await saved.prefill(0, prompt);
    await saved.append(halves(g.width, 6), halves(g.width, 7));
    const loaded = open(1, capacity);
    await loaded.load(await saved.save());
    expect(await loaded.decompress(0)).toEqual(await saved.decompress(0));
    // Splits are those of the capacity: sums are in another order.
    const [own, other] = [await loaded.attend(query, { splits: 1 }), await saved.attend(query, { splits: 1 })];
    expect(own).toEqual(other);
  });
});
