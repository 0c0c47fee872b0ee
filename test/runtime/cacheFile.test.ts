import { execFileSync, spawn } from 'node:child_process';
import {
  chmodSync,
  lstatSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { packagePath } from '../../codegen/packageRoot.js';
import { pca } from '../../dsl/codecs/pca.js';
import { unrope } from '../../dsl/codecs/unrope.js';
import { KvforgeError } from '../../dsl/errors.js';
import { type CacheCapacity, KvCache } from '../../runtime/cache.js';
import { loadCache, saveCache } from '../../runtime/cacheFile.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { writeRecord } from '../../runtime/record.js';
import { packSafetensors, parseSafetensors, type Tensor } from '../../runtime/safetensors.js';
import { targetOf } from '../stages/harness.js';
import { faultOf, generated, halves, model, proxied, scheme } from './cacheCase.js';

const capacity = { sequences: 3, tokens: 20, generated: 4 };
let device: Device;
let kernels: LoadedKernels;
/** Two sequences, one with tokens in every segment and a ring that begins in its middle, and an empty one. */
let saved: KvCache;
let file: Uint8Array;

beforeAll(async () => {
  device = await EmulatorDevice.open({ checks: 'none' });
  kernels = await LoadedKernels.load(device, await generated(device));
  saved = KvCache.open(kernels, capacity);
  for (const [sequence, tokens] of [20, 3].entries()) {
    const [keys, values] = [halves(tokens * model.width, sequence), halves(tokens * model.width, 10 + sequence)];
    await saved.prefill(sequence, { keys, values, tokens });
  }
  const count = 3 * 3 * model.width;
  await saved.append(halves(count, 20), halves(count, 21), { tokens: 3 });
  await saved.crop(2, 0);
  file = await saved.save();
});
afterAll(() => device?.close());

function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'kvforge-cache-test-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** The file with other metadata or tensors, and a checksum that is right again. */
async function rewritten(
  change: (metadata: Record<string, string>, tensors: Map<string, Tensor>) => void,
): Promise<Uint8Array> {
  const parsed = parseSafetensors(file);
  const metadata = { ...Object.fromEntries(parsed.metadata), sha256: '0'.repeat(64) };
  const tensors = new Map(
    [...parsed.tensors].map(([name, tensor]) => [name, { ...tensor, bytes: tensor.bytes.slice() }]),
  );
  change(metadata, tensors);
  const bytes = packSafetensors(tensors, metadata);
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes.slice()));
  bytes.set(Buffer.from(Buffer.from(digest).toString('hex')), Buffer.from(bytes).indexOf('0'.repeat(64)));
  return bytes;
}

describe('a saved cache', () => {
  test('is a safetensors file of the rows in use, the window in order', async () => {
    const { tensors, metadata } = parseSafetensors(file);
    expect([...tensors].map(([name, { dtype, shape }]) => `${name} ${dtype} [${shape}]`)).toMatchInlineSnapshot(`
      [
        "sequences.0.sinkKeys F16 [2,16]",
        "sequences.0.sinkValues F16 [2,16]",
        "sequences.0.windowKeys F16 [4,16]",
        "sequences.0.windowValues F16 [4,16]",
        "sequences.0.keyCodes U32 [14,2]",
        "sequences.0.keyScales F16 [1,16]",
        "sequences.0.keyBasis I8 [1,256]",
        "sequences.0.keyBasisScales F16 [1,16]",
        "sequences.0.keyMean F16 [1,16]",
        "sequences.0.valueCodes U8 [14,4]",
        "sequences.0.codebook F16 [1,64]",
        "sequences.0.channelMax F16 [1,16]",
        "sequences.0.streamKeyCodes U32 [3,4]",
        "sequences.0.streamKeyNorms F16 [3,2]",
        "sequences.0.streamValueCodes U32 [3,4]",
        "sequences.0.streamValueNorms F16 [3,2]",
        "sequences.1.sinkKeys F16 [2,16]",
        "sequences.1.sinkValues F16 [2,16]",
        "sequences.1.windowKeys F16 [4,16]",
        "sequences.1.windowValues F16 [4,16]",
      ]
    `);
    expect(metadata.get('format')).toBe('kvforge-cache');
    expect(metadata.get('version')).toBe('1');
    expect(JSON.parse(metadata.get('sequences')!)[0]).toMatchInlineSnapshot(`
      {
        "middleTokens": 14,
        "promptTokens": 20,
        "sinkTokens": 2,
        "streamTokens": 3,
        "windowStart": 0,
        "windowTokens": 4,
      }
    `);
    const { keys, tokens } = await saved.decompress(0);
    const window = tensors.get('sequences.0.windowKeys')!.bytes.slice();
    expect(new Uint16Array(window.buffer)).toEqual(keys.subarray((tokens - scheme.window) * model.width));
    expect((await saved.lengths(0)).windowStart).toBe(3);
  });

  test.each([
    { sequences: 3, tokens: 20, generated: 4 },
    { sequences: 5, tokens: 300, generated: 40 },
    { sequences: 3, tokens: 20, generated: 3 },
  ])('loads where it fits: $sequences sequences, $tokens and $generated tokens', async (room) => {
    const other = KvCache.open(kernels, room);
    const sequences = room.sequences;
    // Whatever was there before is replaced.
    const before = halves(9 * model.width, 5);
    await other.prefill(sequences - 1, { keys: before, values: before, tokens: 9 });
    await other.load(file);
    for (let sequence = 0; sequence < 3; sequence++) {
      expect(await other.decompress(sequence)).toEqual(await saved.decompress(sequence));
    }
    for (let sequence = 3; sequence < sequences; sequence++) {
      expect(await other.lengths(sequence)).toMatchObject({ sinkTokens: 0, windowTokens: 0, promptTokens: 0 });
    }
    const query = halves(sequences * 2 * 16, 6);
    const row = 3 * 2 * 16;
    expect((await other.attend(query)).slice(0, row)).toEqual(await saved.attend(query.slice(0, row)));
    if (sequences === 3) expect(await other.save()).toEqual(file);
    await other.release();
  });

  test.each<[string, CacheCapacity, string]>([
    [
      'fewer sequences',
      { ...capacity, sequences: 2 },
      'cache file, sequences: expected at most 2 (of this cache), got 3. Open the cache with more sequences.',
    ],
    [
      'fewer prompt tokens',
      { ...capacity, tokens: 19 },
      'cache file, sequence 0, lengths.middleTokens: expected a whole number from 0 to 13, got 14. Open the cache with more tokens.',
    ],
    [
      'a shorter stream',
      { ...capacity, generated: 2 },
      'cache file, sequence 0, lengths.streamTokens: expected a whole number from 0 to 2, got 3. Open the cache with more generated tokens.',
    ],
    [
      'another layer',
      { ...capacity, layer: 2 },
      'cache file, layer.index: expected 2 (of this cache), got 0. Load it into a cache with the scheme, the model and the layer that it was saved with.',
    ],
  ])('is refused by a cache with %s', async (_name, room, message) => {
    const other = KvCache.open(kernels, room);
    const before = await other.save();
    expect(await faultOf(other.load(file))).toBe(message);
    expect(await other.save()).toEqual(before);
    await other.release();
  });

  test.each([
    [
      'other bits',
      { scheme: { ...scheme, keys: [unrope(), pca({ rank: 16, bits: 8, group: 16 })] as const }, model },
      'scheme.keys.bits[0][1]: expected 8 (of this cache), got 4',
    ],
    ['another window', { scheme: { ...scheme, window: 5 }, model }, 'scheme.window: expected 5 (of this cache), got 4'],
    [
      'another model',
      { scheme, model: { ...model, heads: 4, groupSize: 4 } },
      'model.heads: expected 4 (of this cache), got 2',
    ],
    [
      'a sliding window',
      { scheme, model: { ...model, kinds: [{ ...model.kinds[0]!, slidingWindow: 8 }] } },
      'layer.slidingWindow: expected 8 (of this cache), got 0',
    ],
    [
      'other stream levels',
      {
        scheme: {
          ...scheme,
          stream: {
            ...scheme.stream,
            levels: (d: number) =>
              scheme.stream.levels(d).map((level, i, all) => (i === all.length - 1 ? 1.25 : level)),
          },
        },
        model,
      },
      `scheme.stream.levels[255]: expected 1.25 (of this cache), got ${Math.fround(scheme.stream.levels(16)[255]!)}`,
    ],
    [
      'other frequencies',
      {
        scheme,
        model: {
          ...model,
          kinds: [{ rope: { ...model.rope, invFreq: model.rope.invFreq.map((f, i) => (i === 2 ? 1 : f)) } }],
        },
      },
      'layer.rope.frequencies[2]: expected 1 (of this cache), got 0.1',
    ],
  ])('is refused where codes mean something else: %s', async (_name, other, message) => {
    const own = await LoadedKernels.load(device, await generate(other.scheme, other.model, targetOf(device)), []);
    const cache = KvCache.open(own, capacity);
    expect(await faultOf(cache.load(file))).toBe(
      `cache file, ${message}. Load it into a cache with the scheme, the model and the layer that it was saved with.`,
    );
    await cache.release();
  });

  test('loads under other names, and from an engine whose powers end in another digit', async () => {
    const renamed = { ...model, name: '/models/config.json' };
    const own = await LoadedKernels.load(
      device,
      await generate({ ...scheme, name: 'slow' }, renamed, targetOf(device)),
    );
    const cache = KvCache.open(own, capacity);
    await cache.load(file);
    expect(await cache.decompress(0)).toEqual(await saved.decompress(0));
    const identityOf = (bytes: Uint8Array) => JSON.parse(parseSafetensors(bytes).metadata.get('identity')!);
    const { about, ...meaning } = identityOf(file);
    expect(about).toEqual({ scheme: 'quick', model: 'narrow' });
    expect(identityOf(await cache.save())).toEqual({
      about: { scheme: 'slow', model: '/models/config.json' },
      ...meaning,
    });
    const { frequencies } = meaning.layer.rope;
    expect(frequencies).toEqual(model.rope.invFreq.map((frequency) => Number(frequency.toPrecision(13))));
    expect(meaning.scheme.stream.levels.every((level: number) => Math.fround(level) === level)).toBe(true);
    const withFrequency = (change: (frequency: number) => number) =>
      rewritten((metadata) => {
        const rope = { ...meaning.layer.rope, frequencies: frequencies.map(change) };
        metadata.identity = JSON.stringify({ about, ...meaning, layer: { ...meaning.layer, rope } });
      });
    // A digit on which engines differ, rounded to the next of the digits that they share.
    await cache.load(await withFrequency((frequency) => Number((frequency * (1 + 5e-13)).toPrecision(13))));
    const away = await withFrequency((frequency) => frequency * (1 + 2e-12));
    expect(await faultOf(cache.load(away))).toMatch(
      /^cache file, layer\.rope\.frequencies\[0\]: expected 1 \(of this cache\), got 1\.000000000002\. /,
    );
    await cache.release();
  });

  test('is refused with any byte changed, or cut short', async () => {
    const cache = KvCache.open(kernels, capacity);
    const before = await cache.save();
    const damage = fc.oneof(
      fc.record({ at: fc.nat(file.length - 1), change: fc.integer({ min: 1, max: 255 }) }).map(({ at, change }) => {
        return file.map((byte, i) => (i === at ? byte ^ change : byte));
      }),
      fc.nat(file.length - 1).map((length) => file.slice(0, length)),
      fc.uint8Array({ minLength: 1, maxLength: 20 }).map((more) => Uint8Array.from([...file, ...more])),
    );
    await fc.assert(
      fc.asyncProperty(damage, async (damaged) => {
        const fault = await cache.load(damaged).then(
          () => undefined,
          (error: unknown) => error,
        );
        expect(fault).toBeInstanceOf(KvforgeError);
        expect((fault as KvforgeError).code).toBe('invalid-input');
      }),
      { numRuns: 500 },
    );
    expect(await cache.save()).toEqual(before);
    await cache.release();
  });

  test.each<[string, Parameters<typeof rewritten>[0], string]>([
    [
      'a newer version',
      (metadata) => {
        metadata.version = '2';
      },
      'version: expected 1, got 2. Load it with the version of kvforge that saved it.',
    ],
    [
      'no version',
      (metadata) => {
        delete metadata.version;
      },
      'version: expected 1, got undefined. Load it with the version of kvforge that saved it.',
    ],
    [
      'another format',
      (metadata) => {
        metadata.format = 'pt';
      },
      'format: expected "kvforge-cache", got "pt". Load a file that a cache was saved to.',
    ],
    [
      'no format',
      (metadata) => {
        delete metadata.format;
      },
      'format: expected "kvforge-cache", got a file without a format. Load a file that a cache was saved to.',
    ],
    [
      'nothing that says whose it is',
      (metadata) => {
        delete metadata.identity;
      },
      'identity: expected an object (of this cache), got null. Load it into a cache with the scheme, the model and the layer that it was saved with.',
    ],
    [
      'lengths that are none',
      (metadata) => {
        metadata.sequences = '[{"sinkTokens":-1}]';
      },
      'sequences: expected the lengths of one sequence or more, got "[{\\"sinkTokens\\":-1}]". Save the cache again.',
    ],
    [
      'a part that is missing',
      (_, tensors) => {
        tensors.delete('sequences.0.keyMean');
      },
      'sequences.0.keyMean: expected F16 [1, 16], got nothing. Save the cache again.',
    ],
    [
      'a part with fewer rows',
      (metadata) => {
        metadata.sequences = metadata.sequences!.replace('"middleTokens":14', '"middleTokens":13');
      },
      'sequences.0.keyCodes: expected U32 [13, 2], got U32 [14, 2]. Save the cache again.',
    ],
    [
      'more of the prompt than the sequence holds',
      (metadata) => {
        metadata.sequences = metadata.sequences!.replace('"promptTokens":3', '"promptTokens":7');
      },
      'sequence 1, lengths.promptTokens: expected a whole number from 2 to 6 (sinks and middle, and what the sequence holds), got 7. Save the cache again.',
    ],
    [
      'less of the prompt than its sinks and middle',
      (metadata) => {
        metadata.sequences = metadata.sequences!.replace('"promptTokens":20', '"promptTokens":15');
      },
      'sequence 0, lengths.promptTokens: expected a whole number from 16 to 23 (sinks and middle, and what the sequence holds), got 15. Save the cache again.',
    ],
    [
      'a tensor that the format does not name',
      (_, tensors) => {
        tensors.set('sequences.3.sinkKeys', tensors.get('sequences.0.sinkKeys')!);
      },
      'tensor "sequences.3.sinkKeys": expected none of this name, got one. Load a file as the cache was saved to it.',
    ],
    [
      'a tensor named __proto__',
      (_, tensors) => {
        tensors.set('__proto__', { dtype: 'U8', shape: [4], bytes: new Uint8Array(4) });
      },
      'tensor "__proto__": expected none of this name, got one. Load a file as the cache was saved to it.',
    ],
    [
      'an index past the codebook',
      (_, tensors) => {
        tensors.get('sequences.0.valueCodes')!.bytes[5] = 16;
      },
      'sequence 0, valueCodes[5]: expected an index below 16 (entries of the codebook), got 16. Save the cache again.',
    ],
    [
      'a scale that is infinite',
      (_, tensors) => {
        tensors.get('sequences.0.keyScales')!.bytes.set([0, 0x7c], 6);
      },
      'sequence 0, keyScales[3]: expected a finite f16 number, got Infinity. Save the cache again.',
    ],
    [
      'a NaN in the window',
      (_, tensors) => {
        tensors.get('sequences.1.windowValues')!.bytes.set([1, 0xfe], 0);
      },
      'sequence 1, windowValues[0]: expected a finite f16 number, got NaN. Save the cache again.',
    ],
  ])('is refused with %s, even if the checksum is right', async (_name, change, message) => {
    const cache = KvCache.open(kernels, capacity);
    const before = await cache.save();
    expect(await faultOf(cache.load(await rewritten(change)))).toBe(`cache file, ${message}`);
    expect(await cache.save()).toEqual(before);
    await cache.release();
  });

  test('keeps widths that a prompt decided, and refuses those that leave the row', async () => {
    const allocating = {
      ...scheme,
      name: 'allocating',
      keys: [unrope(), pca({ rank: 16, bits: { budget: 64 }, group: 16 })] as const,
    };
    const own = await LoadedKernels.load(device, await generate(allocating, model, targetOf(device)), []);
    const cache = KvCache.open(own, { ...capacity, sequences: 1 });
    const { layout } = cache;
    const lengths = {
      sinkTokens: 2,
      middleTokens: 1,
      streamTokens: 0,
      windowTokens: 0,
      windowStart: 0,
      promptTokens: 3,
    };
    const share = (width: number) => {
      const bytes = new Uint8Array(layout.bytes);
      new DataView(bytes.buffer).setUint32(layout.parts.find(({ name }) => name === 'keyWidths')!.offset, width, true);
      return bytes;
    };
    await cache.writeShare(0, share(4), lengths);
    const kept = await cache.save();
    await cache.load(kept);
    expect(await cache.save()).toEqual(kept);
    const hint = 'Pass the share and the lengths that the other cache gave.';
    const refused = [
      [7, 'expected 0 to 6 or 8 bits a component, got 7'],
      [9, 'expected 0 to 6 or 8 bits a component, got 9'],
      [16 + 4, 'expected an end at bit 64 or before, got 65'],
      [2 ** 31 + 1, 'expected an end at bit 64 or before, got 134217744'],
    ] as const;
    for (const [width, message] of refused) {
      expect(await faultOf(cache.writeShare(0, share(width), lengths))).toBe(
        `share, keyWidths[0]: ${message}. ${hint}`,
      );
    }
    expect(await faultOf(cache.writeShare(0, share(4), { ...lengths, promptTokens: 7 }))).toBe(
      'lengths.promptTokens: expected a whole number from 3 to 3 (sinks and middle, and what the sequence holds), got 7. Pass the lengths that the other cache gave.',
    );
    expect(await cache.save()).toEqual(kept);
    await cache.release();
  });
});

describe('a cache file', () => {
  test('is written whole, replaces the one before, and leaves nothing beside it', async () => {
    const path = join(temporaryFolder(), 'layer.safetensors');
    writeFileSync(path, 'an older one');
    await saveCache(saved, path);
    expect(new Uint8Array(readFileSync(path))).toEqual(file);
    expect(readdirSync(join(path, '..'))).toEqual(['layer.safetensors']);
    const cache = KvCache.open(kernels, capacity);
    await loadCache(cache, path);
    expect(await cache.decompress(0)).toEqual(await saved.decompress(0));
    await cache.release();
  });

  test('is refused by its path where it cannot be written or read', async () => {
    const folder = temporaryFolder();
    const missing = join(folder, 'none', 'layer.safetensors');
    expect(await faultOf(saveCache(saved, missing))).toMatch(
      /^cache file .*layer\.safetensors: expected a place to write, got ENOENT: .*\. Check the path, its permissions and the space left\.$/,
    );
    expect(await faultOf(loadCache(saved, missing))).toMatch(/: expected a file to read, got ENOENT: /);
    expect(readdirSync(folder)).toEqual([]);
  });

  test('is written behind a link, keeps its permissions, and may be named by a URL', async () => {
    const folder = temporaryFolder();
    const [path, link] = [join(folder, 'layer.safetensors'), join(folder, 'link')];
    writeFileSync(path, 'an older one');
    // More than the mask of a process leaves, so that only a change of permissions gives it.
    chmodSync(path, 0o666);
    symlinkSync('layer.safetensors', link);
    await saveCache(saved, pathToFileURL(link));
    expect(lstatSync(link).isSymbolicLink()).toBe(true);
    expect(statSync(path).mode & 0o777).toBe(0o666);
    expect(new Uint8Array(readFileSync(path))).toEqual(file);
    expect(readdirSync(folder)).toEqual(['layer.safetensors', 'link']);
    const cache = KvCache.open(kernels, capacity);
    await loadCache(cache, pathToFileURL(link));
    expect(await cache.lengths(0)).toMatchObject({ middleTokens: 14 });
    await cache.release();
  });

  test('is refused where there is something else than a file', async () => {
    const folder = temporaryFolder();
    const [pipe, dangling] = [join(folder, 'pipe'), join(folder, 'dangling')];
    execFileSync('mkfifo', [pipe]);
    symlinkSync('nothing', dangling);
    const refused = [
      [folder, 'a folder'],
      [pipe, 'a pipe'],
      ['/dev/null', 'a device'],
    ] as const;
    for (const [path, kind] of refused) {
      expect(await faultOf(saveCache(saved, path))).toBe(
        `cache file ${path}: expected a place to write, got ${kind}. Name a regular file.`,
      );
      expect(await faultOf(loadCache(saved, path))).toBe(
        `cache file ${path}: expected a file to read, got ${kind}. Name a regular file.`,
      );
    }
    expect(await faultOf(saveCache(saved, dangling))).toBe(
      `cache file ${dangling}: expected a place to write, got a symbolic link to nothing. Name a regular file.`,
    );
    expect(lstatSync(pipe).isFIFO()).toBe(true);
    expect(readdirSync(folder)).toEqual(['dangling', 'pipe']);
  });

  test('is refused with arguments that are none', async () => {
    const any = { saveCache, loadCache } as unknown as Record<string, (...args: unknown[]) => Promise<void>>;
    const noPath = (received: string) =>
      `path: expected a path, or a file: URL, got ${received}. Pass the path of the file, like 'layer-0.safetensors'.`;
    const noCache = (received: string) =>
      `cache: expected a cache that KvCache.open gave, got ${received}. Pass the cache first, then the path.`;
    for (const call of [any.saveCache!, any.loadCache!]) {
      expect(await faultOf(call())).toBe(noCache('undefined'));
      expect(await faultOf(call({}, 'x'))).toBe(noCache('an object'));
      expect(await faultOf(call('x', saved))).toBe(noCache('"x"'));
      expect(await faultOf(call(saved))).toBe(noPath('undefined'));
      expect(await faultOf(call(saved, 5))).toBe(noPath('5'));
      expect(await faultOf(call(saved, ''))).toBe(noPath('""'));
      expect(await faultOf(call(saved, new URL('https://example.org/x')))).toBe(noPath('https://example.org/x'));
    }
  });

  test('of 2 GiB is refused before it is read, hashed or filled', async () => {
    const message =
      'cache file: expected less than 2147483648 bytes, got 2147483648. Spread the sequences over several caches, and save each to a file of its own.';
    const path = join(temporaryFolder(), 'layer.safetensors');
    writeFileSync(path, '');
    // A hole, which takes no room on the disk.
    truncateSync(path, 2 ** 31);
    expect(await faultOf(loadCache(saved, path))).toBe(message);
    expect(await faultOf(saved.load(new Uint8Array(2 ** 31)))).toBe(message);

    // A device without memory, whose records say that every sequence is full.
    const one = KvCache.open(kernels, { sequences: 1, tokens: 16000, generated: 0 });
    const { layout } = one;
    await one.release();
    const record = writeRecord(layout, 0, {
      sinkTokens: 2,
      middleTokens: layout.capacity.middle,
      streamTokens: 0,
      windowTokens: 4,
      windowStart: 0,
      promptTokens: 16000,
    });
    const sequences = 12000;
    const read: string[] = [];
    const empty = proxied(device, {
      limits: { ...device.limits, bytesPerBinding: 2 ** 40 },
      allocate: (label, bytes) => ({ label, bytes, release: () => {} }),
      write: () => {},
      read: async ({ label }) => {
        read.push(label);
        const records = new Uint32Array(sequences * record.length);
        for (let at = 0; at < records.length; at += record.length) records.set(record, at);
        return new Uint8Array(records.buffer);
      },
    });
    const full = KvCache.open(await LoadedKernels.load(empty, await generated(empty), []), {
      sequences,
      tokens: 16000,
      generated: 0,
    });
    expect(await faultOf(full.save())).toMatch(
      /^cache file: expected less than 2147483648 bytes, got \d{10}\. Spread /,
    );
    expect(read).toEqual(['sequences']);
  });

  test('stays as it was when a save is killed', async () => {
    const folder = temporaryFolder();
    const path = join(folder, 'layer.safetensors');
    const size = 16e6;
    const partial = () => readdirSync(folder).filter((name) => /^\.kvforge-[0-9a-f]{12}\.tmp$/.test(name));
    let unfinished = 0;
    for (let kill = 0; unfinished < 3 && kill < 20; kill++) {
      const child = spawn(
        process.execPath,
        ['--import', 'tsx', packagePath('test', 'runtime', 'saveForever.ts'), path, `${size}`],
        { cwd: packagePath(), stdio: ['ignore', 'pipe', 'inherit'] },
      );
      const ended = new Promise((resolve) => child.on('close', resolve));
      await new Promise((resolve) => child.stdout.once('data', resolve));
      await vi.waitUntil(() => partial().length > 0, { interval: 0, timeout: 60_000 });
      child.kill('SIGKILL');
      await ended;
      const bytes = readFileSync(path);
      expect(bytes.length).toBe(size);
      expect(bytes.equals(Buffer.alloc(size, bytes[0]))).toBe(true);
      for (const name of partial()) {
        unfinished++;
        rmSync(join(folder, name));
      }
      expect(readdirSync(folder)).toEqual(['layer.safetensors']);
    }
    // Some of them were hit between two saves.
    expect(unfinished).toBe(3);
  });

  test('stays as it was when a write fails', async () => {
    const folder = temporaryFolder();
    const path = join(folder, 'layer.safetensors');
    writeFileSync(path, 'the old one');
    // A limit on the size of files, in blocks of 1024 bytes: the write ends half-way with an error.
    const script = `ulimit -f 2048; trap '' XFSZ; exec "$0" --import tsx "$@"`;
    const child = spawn(
      'bash',
      ['-c', script, process.execPath, packagePath('test', 'runtime', 'saveForever.ts'), path, `${4 * 2 ** 20}`],
      { cwd: packagePath(), stdio: ['ignore', 'pipe', 'inherit'] },
    );
    let out = '';
    child.stdout.on('data', (data) => {
      out += data;
    });
    expect(await new Promise((resolve) => child.on('close', resolve))).toBe(1);
    expect(out).toMatch(/^KvforgeError: cache file .*: expected a place to write, got EFBIG: /);
    expect(readFileSync(path, 'utf8')).toBe('the old one');
    expect(readdirSync(folder)).toEqual(['layer.safetensors']);
  });
});
