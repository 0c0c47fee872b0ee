import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { inspectArchive } from '../../runtime/archive/inspect.js';
import { layerTensors } from '../../runtime/promptLayers.js';
import { packSafetensors, parseSafetensors, type Tensor, tensorValues } from '../../runtime/safetensors.js';
import { config, correlated, narrow } from '../runtime/archive/case.js';
import { halves } from '../runtime/cacheCase.js';
import { cli, documentOf, errorOf, spawned, temporaryFolder } from './support.js';

const tokens = 300;
const input = correlated(tokens, [1, 3]);

/** A folder with a model and a file of its cache. */
function folderWith(change: (tensors: Map<string, Tensor>) => void = () => {}) {
  const folder = temporaryFolder();
  const path = (name: string) => join(folder, name);
  const tensors = new Map(
    input.layers.flatMap(({ layer, ...data }) => [...layerTensors(layer, { ...data, tokens }, narrow)]),
  );
  const queries = new Uint8Array(halves(narrow.heads * 8 * narrow.headDim, 5).buffer);
  tensors.set('layers.3.queries', { dtype: 'F16', shape: [narrow.heads, 8, narrow.headDim], bytes: queries });
  change(tensors);
  writeFileSync(path('narrow.json'), JSON.stringify(config));
  writeFileSync(path('cache.safetensors'), packSafetensors(tensors, {}));
  const pack = (...more: readonly string[]) => {
    const usual = ['--model', path('narrow.json'), '--budget', '40', '--window', '16', '--out', path('a.kvarchive')];
    return cli('archive', 'pack', path('cache.safetensors'), ...usual, ...more);
  };
  /** The message of an error, without the folder. */
  const fault = (run: Awaited<ReturnType<typeof cli>>) => {
    const { message, hint } = errorOf(run);
    return `${run.code}: ${message}. ${hint}`.replaceAll(folder, 'FOLDER');
  };
  return { folder, path, pack, fault, tensors };
}

describe('kvforge archive', () => {
  test('packs within the budget, and reads back what it said', async () => {
    const { folder, path, pack, tensors } = folderWith();
    const document = documentOf(await pack('--json')) as {
      bytes: number;
      errors: { layer: number; keys: number; values: number; attention?: number }[];
    };
    expect(document).toMatchObject({
      tokens,
      sinks: 4,
      window: 16,
      coded: 280,
      layers: [1, 3],
      out: path('a.kvarchive'),
    });
    expect(document.bytes).toBeLessThanOrEqual(40 * tokens * 2);
    expect(readFileSync(path('a.kvarchive')).length).toBe(document.bytes);
    const run = await cli('archive', 'unpack', path('a.kvarchive'), '--model', path('narrow.json'), '--out', path('b'));
    expect(run.out.replaceAll(folder, 'FOLDER')).toBe('wrote FOLDER/b: 300 tokens of layers 1, 3 of narrow\n');
    const read = parseSafetensors(readFileSync(path('b'))).tensors;
    expect([...read.keys()]).toEqual(['layers.1.keys', 'layers.1.values', 'layers.3.keys', 'layers.3.values']);
    for (const { layer, keys, values, attention } of document.errors) {
      for (const [operand, stated] of [
        ['keys', keys],
        ['values', values],
      ] as const) {
        const name = `layers.${layer}.${operand}`;
        const [a, b] = [tensorValues(tensors.get(name)!), tensorValues(read.get(name)!)];
        const lost = a.reduce((sum, x, i) => sum + (b[i]! - x) ** 2, 0) / a.reduce((sum, x) => sum + x * x, 0);
        expect(stated).toBeCloseTo(Math.sqrt(lost), 10);
        expect(stated).toBeGreaterThan(0);
      }
      if (layer === 1) expect(attention).toBeUndefined();
      else expect(attention).toBeGreaterThan(0);
    }
    // What is read back can be packed again.
    const again = [path('b'), '--model', path('narrow.json'), '--budget', '60', '--out', path('c')];
    expect((await cli('archive', 'pack', ...again)).code).toBe(0);
    expect(readdirSync(folder).sort()).toEqual(['a.kvarchive', 'b', 'c', 'cache.safetensors', 'narrow.json']);
  });

  test('says what it packed, and what is in a file', async () => {
    const { folder, path, pack } = folderWith();
    const packed = await pack();
    expect(packed.err).toBe('packing 2 layers of 300 tokens of narrow\n');
    expect(packed.out).toMatch(
      /^layer +keys +values +attention\n +1 +[\d.]+% +[\d.]+% +no queries\n +3 +([\d.]+% *){3}\n\n/,
    );
    const size =
      /FOLDER\/a.kvarchive: [\d,]+ bytes, (39|40)\.\d a token and layer; fp16 76,800, 3\.\d\d times as many\.\n$/;
    expect(packed.out.replaceAll(folder, 'FOLDER')).toMatch(size);
    const shown = await cli('archive', 'inspect', path('a.kvarchive'));
    expect(shown.out).toMatch(/\nkeys +1 +\d+ +32 +[\d,]+ +[\d,]+ +[\d.]+% +\d+x\d/);
    expect(shown.out).toContain('300 tokens of narrow: 280 coded, 20 exact (sinks 4, window 16) in ');
    expect(shown.out.replaceAll(folder, 'FOLDER')).toMatch(size);
    const { basis, ...summary } = inspectArchive(readFileSync(path('a.kvarchive')));
    expect(basis).toBeUndefined();
    expect(documentOf(await cli('archive', 'inspect', path('a.kvarchive'), '--json'))).toEqual(summary);
  });

  test('takes the bases of another archive', async () => {
    const { path, pack, fault } = folderWith();
    await pack();
    const second = await pack('--basis', path('a.kvarchive'), '--out', path('b.kvarchive'), '--json');
    const { errors } = documentOf(second) as { errors: { values: number }[] };
    expect(errors[0]!.values).toBeLessThan(0.05);
    expect((await cli('archive', 'inspect', path('b.kvarchive'))).out).toMatch(
      /\nIts bases are those of another archive, of sha256 [0-9a-f]{64}\.\n/,
    );
    const unpack = ['archive', 'unpack', path('b.kvarchive'), '--out', path('c'), '--json'];
    expect(fault(await cli(...unpack)).replace(/[0-9a-f]{64}/, 'DIGEST')).toMatchInlineSnapshot(
      `"2: FOLDER/b.kvarchive: basis: expected the archive whose bases have the sha256 DIGEST, got none. Give the archive that this one was packed with."`,
    );
    expect(existsSync(path('c'))).toBe(false);
    expect((await cli(...unpack, '--basis', path('a.kvarchive'))).code).toBe(0);
  });

  test('refuses what it cannot pack, and leaves the file that was there', async () => {
    const { folder, path, pack, fault } = folderWith();
    writeFileSync(path('a.kvarchive'), 'before');
    const faults = [
      await pack('--json', '--budget', '9'),
      await pack('--json', '--budget', '4.5'),
      await pack('--json', '--sinks', '-1'),
      await pack('--json', '--joint-layers', '0'),
      await pack('--json', '--model', 'smollm2-135m'),
      await pack('--json', '--out', path('none/a')),
      await pack('--json', '--basis', path('none')),
      await cli(
        'archive',
        'pack',
        path('none'),
        '--model',
        'smollm2-135m',
        '--budget',
        '9',
        '--out',
        path('x'),
        '--json',
      ),
      await cli(
        'archive',
        'pack',
        path('narrow.json'),
        '--model',
        'smollm2-135m',
        '--budget',
        '9',
        '--out',
        path('x'),
        '--json',
      ),
      await cli('archive', 'pack', '--json'),
    ].map((run) => fault(run).replace(/\d{4,} bytes/, 'N bytes'));
    expect(faults).toMatchInlineSnapshot(`
      [
        "2: FOLDER/cache.safetensors: bytesPerToken: expected at least 12, as header, means and 20 exact tokens take N bytes, got 9. Raise it, or keep fewer tokens exact.",
        "2: --budget: expected a whole number from 1 to 16777216, got "4.5". Write it in decimal digits.",
        "2: --sinks: expected a whole number from 0 to 16777216, got "-1". Write it in decimal digits.",
        "2: --joint-layers: expected a whole number from 1 to 1024, got "0". Write it in decimal digits.",
        "2: FOLDER/cache.safetensors: tensor layers.1.keys: expected F16 [3 KV heads, tokens, 64], got F16 [2, 300, 16]. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors.",
        "2: --out: expected a place to write FOLDER/none/a, got a path through a folder that does not exist. Choose another path.",
        "2: --basis FOLDER/none: expected a file that can be read, got ENOENT. Give a file of less than 2 GiB; layers may be spread over several.",
        "2: activations FOLDER/none: expected a file that can be read, got ENOENT. Give a file of less than 2 GiB; layers may be spread over several.",
        "2: FOLDER/narrow.json: safetensors header length: expected at most 164 bytes, got 6875982213128462971. Write the file again; a copy that was cut short reads like this.",
        "2: required option '--model <model>' not specified. See kvforge archive --help.",
      ]
    `);
    expect(readFileSync(path('a.kvarchive'), 'utf8')).toBe('before');
    expect(readdirSync(folder).sort()).toEqual(['a.kvarchive', 'cache.safetensors', 'narrow.json']);
  });

  test('refuses layers of other lengths, and numbers that are none', async () => {
    const uneven = folderWith((tensors) => {
      const empty: Tensor = { dtype: 'F16', shape: [2, 0, 16], bytes: new Uint8Array(0) };
      tensors.set('layers.1.keys', empty).set('layers.1.values', empty);
    });
    expect(uneven.fault(await uneven.pack('--json'))).toMatchInlineSnapshot(
      `"2: FOLDER/cache.safetensors: layer 3: expected 0 tokens, as layer 1 has, got 300. Pack layers of different lengths into archives of their own."`,
    );
    const broken = folderWith((tensors) => {
      const keys = tensors.get('layers.1.keys')!;
      const bytes = Uint8Array.from(keys.bytes);
      bytes.set([0, 0x7e], 2 * 16 * 5);
      tensors.set('layers.1.keys', { ...keys, bytes });
    });
    expect(broken.fault(await broken.pack('--json'))).toMatchInlineSnapshot(
      `"2: FOLDER/cache.safetensors: keys, layer 1, KV head 0, token 5, channel 0: expected a finite f16 number, got NaN. Find where the model overflows; nothing was written to the cache."`,
    );
  });

  test('refuses to read what is damaged, or another file or model', async () => {
    const { path, pack, fault } = folderWith();
    await pack();
    const file = readFileSync(path('a.kvarchive'));
    writeFileSync(path('cut'), file.subarray(0, file.length - 100));
    file[file.length - 1]! ^= 1;
    writeFileSync(path('flipped'), file);
    const unpack = (name: string, ...more: readonly string[]) =>
      cli('archive', 'unpack', path(name), '--out', path('out'), '--json', ...more);
    const faults = [
      await unpack('cut'),
      await unpack('flipped'),
      await unpack('cache.safetensors'),
      await unpack('none'),
      await unpack('a.kvarchive', '--model', 'smollm2-135m'),
      await cli('archive', 'inspect', path('flipped'), '--json'),
    ].map((run) =>
      fault(run)
        .replace(/[0-9a-f]{64}/g, 'DIGEST')
        .replace(/\d{4,}/g, 'N'),
    );
    expect(faults).toMatchInlineSnapshot(`
      [
        "2: FOLDER/cut: safetensors tensor "parts.3.codes": expected data within the N bytes of the file, got an end at N. Write the file again; a copy that was cut short reads like this.",
        "2: FOLDER/flipped: archive, sha256 of section parts.3.codes: expected DIGEST, got DIGEST. The file was damaged or changed; pack the cache again.",
        "2: FOLDER/cache.safetensors: archive, format: expected "kvforge-archive", got a file without a format. Read a file that kvforge archive pack has written.",
        "2: archive FOLDER/none: expected a file that can be read, got ENOENT. Give a file of less than 2 GiB; layers may be spread over several.",
        "2: FOLDER/a.kvarchive: archive, model, layers: expected 30 (of smollm2-135m), got 4. It holds a cache of narrow: give that model.",
        "2: FOLDER/flipped: archive, sha256 of section parts.3.codes: expected DIGEST, got DIGEST. The file was damaged or changed; pack the cache again.",
      ]
    `);
    expect(existsSync(path('out'))).toBe(false);
  });

  test('that is killed leaves the file that was there, and no other', async () => {
    const { folder, path } = folderWith();
    writeFileSync(path('a.kvarchive'), 'before');
    const model = ['--model', path('narrow.json'), '--budget', '40', '--out', path('a.kvarchive')];
    const run = await spawned(['archive', 'pack', path('cache.safetensors'), ...model], (_, pid) => {
      process.kill(pid, 'SIGKILL');
    });
    expect(run).toMatchObject({ code: null, err: 'packing 2 layers of 300 tokens of narrow\n' });
    expect(readFileSync(path('a.kvarchive'), 'utf8')).toBe('before');
    expect(readdirSync(folder).sort()).toEqual(['a.kvarchive', 'cache.safetensors', 'narrow.json']);
  });

  test('packs a file of activations, and no tokens at all', async () => {
    const { path, pack } = folderWith((tensors) => {
      const named = [...tensors].filter(([name]) => name.startsWith('layers.3.'));
      tensors.clear();
      for (const [name, tensor] of named) tensors.set(name.replace(/(\w)\w*$/, '$1'), tensor);
    });
    const { layers, errors } = documentOf(await pack('--json')) as {
      layers: number[];
      errors: { attention: number }[];
    };
    expect(layers).toEqual([3]);
    expect(errors[0]!.attention).toBeGreaterThan(0);
    const none: Tensor = { dtype: 'F16', shape: [2, 0, 16], bytes: new Uint8Array(0) };
    writeFileSync(
      path('cache.safetensors'),
      packSafetensors(
        new Map([
          ['layers.0.keys', none],
          ['layers.0.values', none],
        ]),
        {},
      ),
    );
    expect(documentOf(await pack('--json', '--budget', '9000'))).toMatchObject({ tokens: 0, coded: 0 });
    expect((await cli('archive', 'unpack', path('a.kvarchive'), '--out', path('out'))).code).toBe(0);
    expect(parseSafetensors(readFileSync(path('out'))).tensors.get('layers.0.keys')!.shape).toEqual([2, 0, 16]);
  });
});
