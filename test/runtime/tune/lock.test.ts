import { lstatSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it, onTestFinished } from 'vitest';
import { diskAssets } from '../../../codegen/assetsDisk.js';
import { defaultTargets } from '../../../codegen/generate.js';
import { KvforgeError } from '../../../dsl/errors.js';
import { geometryOf } from '../../../dsl/geometry.js';
import { presetModel } from '../../../dsl/model.js';
import { shard } from '../../../dsl/schemes/shard.js';
import type { Target } from '../../../dsl/stage.js';
import { stagesOf } from '../../../dsl/stages/index.js';
import { sourceHash, stageContext } from '../../../runtime/tune/candidates.js';
import { addToLock, readLock } from '../../../runtime/tune/lock/file.js';
import { entryName, type LockEntry, lockText, modelHash, targetName } from '../../../runtime/tune/lock/format.js';
import { lookUp } from '../../../runtime/tune/lock/lookup.js';
import { parseLock } from '../../../runtime/tune/lock/parse.js';
import { readTuned } from '../../../runtime/tune/lock/tuned.js';

const entry = (parts: Partial<LockEntry> = {}): LockEntry => ({
  scheme: 'shard',
  model: 'llama-3.1-8b',
  modelHash: '0123456789ab',
  target: 'sm_80',
  device: 'NVIDIA H200',
  driver: '580.95.05',
  stage: 'gram',
  shape: '1x8192',
  tunables: { tile: 32, tileTokens: 16 },
  microseconds: 53.2,
  spread: 0.4,
  error: 4e-4,
  ties: [{ tunables: { tile: 16, tileTokens: 16 }, microseconds: 53.4 }],
  source: 'ab'.repeat(32),
  ...parts,
});

function folder(): string {
  const made = mkdtempSync(join(tmpdir(), 'kvforge-lock-'));
  onTestFinished(() => rmSync(made, { recursive: true, force: true }));
  return made;
}

describe('a lock file', () => {
  it('has a field a line, sorted, and a comma after every entry', () => {
    expect(lockText([entry()])).toBe(`{
  "shard | 0123456789ab | sm_80 | NVIDIA H200 | 580.95.05 | gram | 1x8192": {
    "device": "NVIDIA H200",
    "driver": "580.95.05",
    "error": 0.0004,
    "microseconds": 53.2,
    "model": "llama-3.1-8b",
    "modelHash": "0123456789ab",
    "scheme": "shard",
    "shape": "1x8192",
    "source": "${'ab'.repeat(32)}",
    "spread": 0.4,
    "stage": "gram",
    "target": "sm_80",
    "ties": [
      { "microseconds": 53.4, "tunables": { "tile": 16, "tileTokens": 16 } }
    ],
    "tunables": { "tile": 32, "tileTokens": 16 }
  },
  "format": 1
}
`);
  });

  it('is read as it was written, whatever the order of its entries was', () => {
    const entries = [entry(), entry({ shape: '16x8192' }), entry({ stage: 'attend', splits: 33, ties: [] })];
    const text = lockText(entries);
    expect(lockText([...entries].reverse())).toBe(text);
    expect(lockText(parseLock(text, 'a'))).toBe(text);
    expect(parseLock(text, 'a')).toHaveLength(3);
  });

  it('merges by hand as the union of its lines', () => {
    const lines = (text: string) => text.split('\n').slice(1, -3);
    const [ours, theirs] = [entry({ shape: '1x1024' }), entry({ shape: '64x8192' })];
    const merged = `{\n${lines(lockText([ours])).join('\n')}\n${lines(lockText([theirs])).join('\n')}\n  "format": 1\n}\n`;
    expect(parseLock(merged, 'a').map(({ shape }) => shape)).toEqual(['1x1024', '64x8192']);
    expect(lockText(parseLock(merged, 'a'))).toBe(lockText([ours, theirs]));
  });

  const text = lockText([entry()]);
  const name = JSON.stringify(entryName(entry()));
  const again = 'Tune again, or take the file as it was from version control.';
  const marker =
    'Entries stand by themselves: keep the lines of both sides, remove the markers, and of two entries with the same name keep one.';
  it.each([
    [
      'with a conflict marker',
      text.replace('  "format"', '<<<<<<< HEAD\n  "format"'),
      `a:20: expected a file that is merged, got the conflict marker <<<<<<<. ${marker}`,
    ],
    [
      'cut off',
      text.slice(0, 40),
      /^a:2: expected JSON, got Unterminated string in JSON at position 40.*\. Tune again/,
    ],
    [
      'with a number that JSON has not',
      text.replace(/"microseconds": [^,]+/, '"microseconds": NaN'),
      /^a:6: expected JSON, got Unexpected token 'N'.*\. Tune again/s,
    ],
    [
      'with the mark of an encoding',
      `\ufeff${text}`,
      /^a:1: expected JSON, got Unexpected token '\ufeff'.*\. Tune again/s,
    ],
    ['empty', '', `a:1: expected JSON, got Unexpected end of JSON input. ${again}`],
    ['that is a list', '[]', `a:1: expected an object of entries, got an array. ${again}`],
    [
      'of another version',
      text.replace('"format": 1', '"format": 2'),
      'a, format: expected 1 (of this version of kvforge), got 2. Tune again with this version of kvforge.',
    ],
    [
      'without a version',
      '{}',
      'a, format: expected 1 (of this version of kvforge), got none. Tune again with this version of kvforge.',
    ],
    [
      'with an entry twice',
      text.replace('  "format"', `  ${name}: {},\n  "format"`),
      `a:20: expected each entry once, got a second ${name}. Keep one of the two.`,
    ],
    [
      'with a field of another version',
      text.replace('"spread"', '"median": 1,\n    "spread"'),
      `a:2: expected an entry as kvforge tune writes it, got Unrecognized key: "median". ${again}`,
    ],
    [
      'with a wrong type',
      text.replace('"microseconds": 53.2', '"microseconds": "53.2"'),
      `a:2: expected an entry as kvforge tune writes it, got microseconds: Invalid input: expected number, received string. ${again}`,
    ],
    [
      'with a shape that cannot be',
      text.replaceAll('1x8192"', '70000x8192"'),
      `a:2: expected an entry as kvforge tune writes it, got shape: expected sequences x tokens, such as 16x8192. ${again}`,
    ],
    [
      'with an entry under another name',
      text.replace('| 1x8192"', '| 2x8192"'),
      `a:2: expected the name that its fields give, ${name}, got ${name.replace('1x8192', '2x8192')}. ${again}`,
    ],
  ])('%s is refused with the line', (_, damaged, message) => {
    expect(() => parseLock(damaged, 'a')).toThrow(message);
  });

  it('changed anywhere is refused by an error of kvforge, or still says what it says', () => {
    const refusesOrReads = (changed: string) => {
      try {
        return lockText(parseLock(changed, 'a')).length > 0;
      } catch (error) {
        return error instanceof KvforgeError && error.code === 'invalid-input';
      }
    };
    const anywhere = fc.nat({ max: text.length - 1 });
    fc.assert(
      fc.property(
        anywhere,
        fc.nat({ max: 8 }),
        fc.constantFrom('', '"', '{', '}', ',', '\n', '0', '__proto__'),
        (at, cut, put) => refusesOrReads(text.slice(0, at) + put + text.slice(at + cut)),
      ),
      { numRuns: 1000 },
    );
    fc.assert(fc.property(fc.json(), refusesOrReads));
    fc.assert(fc.property(fc.string(), refusesOrReads));
  });

  it('keeps other entries when some are written again', async () => {
    const path = join(folder(), 'kvforge.lock.json');
    await addToLock(path, [entry(), entry({ shape: '2x8192' })]);
    await addToLock(path, [entry({ microseconds: 40 }), entry({ stage: 'attend' })]);
    const entries = (await readLock(path))!;
    expect(entries.map(({ stage, shape, microseconds }) => [stage, shape, microseconds])).toEqual([
      ['attend', '1x8192', 53.2],
      ['gram', '1x8192', 40],
      ['gram', '2x8192', 53.2],
    ]);
    expect(readdirSync(join(path, '..'))).toEqual(['kvforge.lock.json']);
  });

  it('that is a link to one is written through', async () => {
    const at = folder();
    const [link, file] = [join(at, 'link.json'), join(at, 'kvforge.lock.json')];
    writeFileSync(file, lockText([entry()]));
    symlinkSync(file, link);
    await addToLock(link, [entry({ stage: 'attend' })]);
    expect(lstatSync(link).isSymbolicLink()).toBe(true);
    expect((await readLock(file))!.map(({ stage }) => stage)).toEqual(['attend', 'gram']);
    expect(readdirSync(at).sort()).toEqual(['kvforge.lock.json', 'link.json']);
  });

  it('that is damaged is not written over', async () => {
    const path = join(folder(), 'kvforge.lock.json');
    writeFileSync(path, '{');
    await expect(addToLock(path, [entry()])).rejects.toThrow('expected JSON');
    expect(readFileSync(path, 'utf8')).toBe('{');
  });

  it('that is not there has no entries', async () => {
    expect(await readLock(join(folder(), 'none.json'))).toBeUndefined();
    const at = folder();
    await expect(readLock(at)).rejects.toThrow(
      `${at}: expected a lock file that can be read, got something that is no file. Check the path.`,
    );
  });
});

describe('winners', () => {
  const model = presetModel('llama-3.1-8b');
  const geometry = geometryOf(shard, model);
  const target: Target = defaultTargets.wgsl;
  const wanted = { scheme: 'shard', modelHash: '0123456789ab', geometry, target };
  const shape = { sequences: 1, tokens: 8192 };
  const own = (parts: Partial<LockEntry> = {}) => entry({ target: targetName(target), ...parts });

  it('are those of the nearest shape, a stage each', () => {
    const entries = [own(), own({ shape: '1x1024', tunables: { tile: 16, tileTokens: 16 } })];
    expect(lookUp(entries, { ...wanted, shape })!.choice).toEqual({ gram: { tile: 32, tileTokens: 16 } });
    const short = lookUp(entries, { ...wanted, shape: { sequences: 1, tokens: 1500 } })!;
    expect(short.choice).toEqual({ gram: { tile: 16, tileTokens: 16 } });
  });

  it('are of one device and its newest driver', () => {
    const entries = [
      own({ driver: '580.95.05', tunables: { tile: 16, tileTokens: 16 } }),
      own({ driver: '1000.1', tunables: { tile: 32, tileTokens: 32 } }),
      own({ device: 'NVIDIA L4', tunables: { tile: 32, tileTokens: 16 } }),
    ];
    expect(lookUp(entries, { ...wanted, shape })!.entries.map(({ driver }) => driver)).toEqual(['1000.1']);
    expect(lookUp(entries, { ...wanted, shape, device: 'NVIDIA L4' })!.choice).toEqual({
      gram: { tile: 32, tileTokens: 16 },
    });
    expect(lookUp(entries, { ...wanted, shape, device: 'NVIDIA T4' })).toBeUndefined();
  });

  it.each([
    ['scheme', { scheme: 'other' }],
    ['model', { modelHash: 'ba9876543210' }],
    ['target', { target: { language: 'cuda', arch: 'sm_90', tensorCores: true } as Target }],
  ])('are none for another %s', (_, other) => {
    expect(lookUp([own()], { ...wanted, shape, ...other })).toBeUndefined();
  });

  it('have the splits of every shape with the kernels that were chosen', () => {
    const attend = { stage: 'attend' };
    const entries = [
      own({ ...attend, tunables: { tileTokens: 8 }, splits: 33 }),
      own({ ...attend, tunables: { tileTokens: 8 }, splits: 4, shape: '16x8192' }),
      own({ ...attend, tunables: { tileTokens: 4 }, splits: 2, shape: '64x8192' }),
      // Of a text that has changed between the two.
      own({ ...attend, tunables: { tileTokens: 8 }, splits: 7, shape: '1x1024', source: 'cd'.repeat(32) }),
    ];
    expect(lookUp(entries, { ...wanted, shape })!.splits).toEqual([
      { sequences: 16, tokens: 8192, splits: 4 },
      { sequences: 1, tokens: 8192, splits: 33 },
    ]);
  });

  it('of texts that have changed since are named as such', async () => {
    const context = await stageContext(diskAssets, shard, model, target);
    const tunables = { tile: 16, tileTokens: 16 };
    const source = await sourceHash(context, stagesOf['low-rank'].find(({ name }) => name === 'gram')!, tunables);
    const kept = own({ modelHash: await modelHash(model), tunables, source });
    const old = { ...kept, stage: 'decompress', tunables: { tileTokens: 8 } };
    const path = join(folder(), 'kvforge.lock.json');
    await addToLock(path, [kept, old]);
    const tuned = (await readTuned(path, { scheme: shard, model, target }))!;
    expect(Object.keys(tuned.choice).sort()).toEqual(['decompress', 'gram']);
    expect(tuned.changed.map(({ stage }) => stage)).toEqual(['decompress']);
  });

  const place = `lock file, ${entryName(own())}`;
  const hint = 'Run kvforge tune again, or pass --no-lockfile.';
  it.each([
    [{ tile: 32 }, `${place}: expected the tunables tile, tileTokens, got tile. ${hint}`],
    [{ tile: 32, tokens: 16 }, `${place}: expected the tunables tile, tileTokens, got tile, tokens. ${hint}`],
    [{ tile: 48, tileTokens: 16 }, `${place}: expected tile to be one of 32, 16, got 48. ${hint}`],
  ])('with tunables %j that this version has not are refused', (tunables, message) => {
    expect(() => lookUp([own({ tunables: tunables as never })], { ...wanted, shape })).toThrow(message);
  });
});

it.each<[string, Target]>([
  ['sm_80', defaultTargets.cuda],
  ['sm_90 plain', { language: 'cuda', arch: 'sm_90', tensorCores: false }],
  ['wgsl 16384', defaultTargets.wgsl],
  ['wgsl 32768 f16 subgroups', { language: 'wgsl', f16: true, subgroups: true, workgroupBytes: 32768 }],
  [
    'wgsl 49152 f16 subgroups matrices',
    { language: 'wgsl', f16: true, subgroups: true, subgroupMatrices: true, workgroupBytes: 49152 },
  ],
])('calls a target %s', (name, target) => {
  expect(targetName(target)).toBe(name);
});

it('hashes a model by its shape and not by its name', async () => {
  const model = presetModel('llama-3.1-8b');
  const hash = await modelHash(model);
  expect(hash).toMatch(/^[0-9a-f]{12}$/);
  expect(await modelHash({ ...model, name: 'other' })).toBe(hash);
  expect(await modelHash({ ...model, heads: 16 })).not.toBe(hash);
});
