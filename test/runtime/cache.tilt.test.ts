import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { geometryOf } from '../../dsl/geometry.js';
import { type DecodedTokens, KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { openDevice, targetOf } from '../stages/harness.js';
import { tiltCases } from '../stages/tiltCases.js';
import { faultOf, halves } from './cacheCase.js';

/** Middle tokens: two range blocks of 128 positions and three rows of codes, none of the last ones full. */
const MIDDLE = 141;

// Which rows are copied, saved and dropped is decided on the host, from the same layout for every device.
describe.each([tiltCases[0]!, tiltCases[4]!])('a cache with tile-rotated keys, $name', ({ scheme, model }) => {
  const g = geometryOf(scheme, model);
  const { sinks, window } = scheme;
  const tokens = sinks + MIDDLE + window;
  const queries = halves(g.heads * 3 * g.headDim, 4);
  const prompt = { keys: halves(tokens * g.width, 1), values: halves(tokens * g.width, 2), queries, tokens };
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

  test('needs the queries of the prompt', async () => {
    const { queries: _, ...without } = prompt;
    expect(await faultOf(open(1, tokens).prefill(0, without))).toMatch(
      /^queries: expected queries of the prompt's last positions, as case weighs by them, got nothing\./,
    );
  });

  test('a fork reads what its source does, in a share that held a longer prompt', async () => {
    const longer = tokens + 20;
    const cache = open(2, longer);
    const long = { keys: halves(longer * g.width, 5), values: halves(longer * g.width, 6), queries, tokens: longer };
    await cache.prefill(1, long);
    await cache.prefill(0, prompt);
    await cache.fork(0, 1);
    expect(await cache.decompress(1)).toEqual(await cache.decompress(0));
    const output = await cache.attend(new Uint16Array([...query, ...query]));
    expect(output.subarray(output.length / 2)).toEqual(output.subarray(0, output.length / 2));
  });

  test.each([tokens - 1, 129, 128, 127, 65, 64, 63, sinks])('cropped to %i tokens it keeps these', async (kept) => {
    const cache = open(1, tokens);
    await cache.prefill(0, prompt);
    const before = await cache.decompress(0);
    await cache.crop(0, kept);
    const after = await cache.decompress(0);
    expect(after.tokens).toBe(kept);
    expect(firstOf(after, kept)).toEqual(firstOf(before, kept));
  });

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

  test('decodes step by step as it appends and attends', async () => {
    const [stepped, apart] = [open(1, tokens), open(1, tokens)];
    for (const cache of [stepped, apart]) await cache.prefill(0, prompt);
    const decoder = await stepped.decoder({ splits: 2 });
    for (let token = 0; token < 3; token++) {
      const [keys, values] = [halves(g.width, 20 + token), halves(g.width, 30 + token)];
      const output = await decoder.step(keys, values, query);
      await apart.append(keys, values);
      expect(output).toEqual(await apart.attend(query, { splits: 2 }));
    }
  });

  /** The fault of a share whose part has another word, or half. */
  async function faultOfShare(name: string, change: (bytes: Uint8Array) => void): Promise<string> {
    const cache = open(1, tokens);
    await cache.prefill(0, prompt);
    const share = await cache.readShare(0);
    const { offset, bytes } = cache.layout.parts.find((part) => part.name === name)!;
    change(share.subarray(offset, offset + bytes));
    return faultOf(cache.writeShare(0, share, await cache.lengths(0)));
  }

  test('takes no share with fields outside of their planes', async () => {
    const nibblesAt = g.headGroups * 4;
    expect(
      await faultOfShare('keyFields', (bytes) => {
        bytes[nibblesAt] = 200;
      }),
    ).toMatch(/^share, keyFields\[\d+\]: expected at most \d+ nibbles \(of the \d+ of a row\), got 200\./);
    expect(
      await faultOfShare('keyFields', (bytes) => {
        bytes[nibblesAt + 4] = bytes[nibblesAt + 4]! + 1;
      }),
    ).toMatch(/^share, keyFields\[\d+\]: expected 0, after the heads before, got 1\./);
    expect(
      await faultOfShare('keyFields', (bytes) => {
        bytes[0] = (bytes[0]! & 0xf0) + 7;
      }),
    ).toMatch(/^share, keyFields\[0\]: expected 0 to 6 or 8 bits a component, got 7\./);
    expect(
      await faultOfShare('keyFields', (bytes) => {
        bytes[1] = 200;
      }),
    ).toMatch(/^share, keyFields\[0\]: expected a field within the \d+ nibbles of its head, got bit \d+\./);
  });

  test.runIf(g.packedValues)('takes no share with a norm that is not finite', async () => {
    expect(
      await faultOfShare('tileCodes', (bytes) => {
        const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
        for (let at = g.rowWords * 4; at < bytes.length; at += 2) view.setUint16(at, 0x7c00, true);
      }),
    ).toMatch(/^share, tileCodes\[\d+\]: expected a finite f16 norm, got Infinity\./);
  });
});
