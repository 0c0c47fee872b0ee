import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, test } from 'vitest';
import { claimName, lockName } from '../../cli/folderLock.js';
import { writeGenerated } from '../../cli/outputFolder.js';
import { packagePath } from '../../codegen/packageRoot.js';
import { cli, documentOf, errorOf, spawned, temporaryFolder } from './support.js';

interface Result {
  readonly files: readonly { readonly path: string; readonly bytes: number; readonly sha256: string }[];
  readonly manifest: string;
  readonly ms: number;
}

const basic = ['generate', 'shard', '--model', 'smollm2-135m'] as const;

function contents(folder: string): Record<string, string> {
  return Object.fromEntries(
    readdirSync(folder)
      .sort()
      .map((name) => [name, readFileSync(join(folder, name), 'utf8')]),
  );
}

/** A generated folder: the files of its manifest with the bytes it says, and no more. */
function expectWhole(folder: string): void {
  const { files } = JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8')) as {
    files: Record<string, { sha256: string }>;
  };
  expect(readdirSync(folder).sort()).toEqual([...Object.keys(files), 'manifest.json'].sort());
  for (const [name, { sha256 }] of Object.entries(files)) {
    expect(
      createHash('sha256')
        .update(readFileSync(join(folder, name)))
        .digest('hex'),
    ).toBe(sha256);
  }
}

const deadPid = () => spawnSync(process.execPath, ['-e', '']).pid;
const manifestOf = (name: string) => JSON.stringify({ format: 1, kernels: [], files: { [name]: {} } });

describe('generate', () => {
  test.each(['cuda', 'wgsl'])('writes the %s files it lists, and the manifest', async (target) => {
    const out = join(temporaryFolder(), 'a', 'b');
    const run = await cli(...basic, '--target', target, '--out', out, '--json');
    expect(run.code).toBe(0);
    const { files, manifest, ms } = documentOf(run) as unknown as Result;
    expect(readdirSync(out).sort()).toEqual(
      [...files.map(({ path }) => path.slice(out.length + 1)), 'manifest.json'].sort(),
    );
    for (const { path, bytes, sha256 } of files) {
      const text = readFileSync(path);
      expect(text.length).toBe(bytes);
      expect(createHash('sha256').update(text).digest('hex')).toBe(sha256);
    }
    expect(JSON.parse(readFileSync(manifest, 'utf8')).target.language).toBe(target);
    expect(ms).toBeGreaterThan(0);
  });

  test('refuses links that lead in a circle, and a file system that makes no folders', async () => {
    const folder = temporaryFolder();
    symlinkSync(join(folder, 'two'), join(folder, 'one'));
    symlinkSync(join(folder, 'one'), join(folder, 'two'));
    for (const [out, reason] of [
      [join(folder, 'one'), 'links that lead in a circle'],
      ['/proc/kernels', 'a path through a folder that does not exist'],
    ]) {
      const run = await cli(...basic, '--target', 'cuda', '--out', out!, '--json');
      expect(run.code).toBe(2);
      expect(errorOf(run).message).toBe(`--out: expected a place to write ${out}, got ${reason}`);
    }
  });

  test('writes the same bytes every time', async () => {
    const folder = temporaryFolder();
    const [one, two] = [join(folder, 'one'), join(folder, 'two')];
    for (const out of [one, two, two]) expect((await cli(...basic, '--target', 'cuda', '--out', out)).code).toBe(0);
    expect(contents(one)).toEqual(contents(two));
  });

  test('passes its options on to the target', async () => {
    const out = temporaryFolder();
    await cli(...basic, '--target', 'cuda', '--arch', 'sm_90', '--plain', '--out', out);
    expect(JSON.parse(readFileSync(join(out, 'manifest.json'), 'utf8')).target).toEqual({
      language: 'cuda',
      arch: 'sm_90',
      tensorCores: false,
    });
  });

  test('sets tunables by name', async () => {
    const out = temporaryFolder();
    const run = await cli(
      ...basic,
      '--target',
      'wgsl',
      '--set',
      'codebook.pointsPerBlock=1024',
      '--out',
      out,
      '--json',
    );
    expect(run.code).toBe(0);
    const { kernels } = JSON.parse(readFileSync(join(out, 'manifest.json'), 'utf8')) as {
      kernels: { stage: string; tunables: Record<string, number> }[];
    };
    expect(kernels.find(({ stage }) => stage === 'codebook')?.tunables.pointsPerBlock).toBe(1024);
  });
});

test('query heads that no matrix tile holds are refused with what does hold them', async () => {
  const config = join(temporaryFolder(), 'config.json');
  const shape = { hidden_size: 17 * 64, num_attention_heads: 17, num_key_value_heads: 1, head_dim: 64 };
  const rest = { model_type: 'llama', num_hidden_layers: 1, rope_theta: 10000, max_position_embeddings: 4096 };
  writeFileSync(config, JSON.stringify({ ...shape, ...rest }));
  const args = ['generate', 'shard', '--model', config, '--target', 'cuda', '--out', join(temporaryFolder(), 'out')];
  const run = await cli(...args, '--json');
  expect(run.code).toBe(2);
  expect(errorOf(run).message).toMatch(
    /^attend: .*, got needs 17 query heads a KV head in one matrix tile, which has 16 rows$/,
  );
  expect(errorOf(run).hint).toBe('Without tensor cores it fits: give --plain, or tensorCores: false.');
  expect((await cli(...args, '--plain')).code).toBe(0);
});

describe('the output folder', () => {
  test('is refused when it holds anything else', async () => {
    const out = temporaryFolder();
    writeFileSync(join(out, 'notes.txt'), 'mine');
    const run = await cli(...basic, '--target', 'cuda', '--out', out, '--json');
    expect(run.code).toBe(2);
    expect(errorOf(run)).toEqual({
      code: 'wrong-use',
      message: `--out: expected a new or empty folder, or one that kvforge generated, got ${out} with notes.txt`,
      hint: 'Choose another folder, or empty this one.',
    });
    expect(contents(out)).toEqual({ 'notes.txt': 'mine' });
  });

  test("is refused with a manifest.json of something else's", async () => {
    const out = temporaryFolder();
    writeFileSync(join(out, 'manifest.json'), '{"name": "a web app"}');
    const run = await cli(...basic, '--target', 'cuda', '--out', out, '--json');
    expect(errorOf(run).message).toContain('with manifest.json');
    expect(contents(out)).toEqual({ 'manifest.json': '{"name": "a web app"}' });
  });

  test('loses the files of an earlier generation', async () => {
    const out = temporaryFolder();
    await cli(...basic, '--target', 'cuda', '--out', out);
    expect((await cli(...basic, '--target', 'wgsl', '--out', out)).code).toBe(0);
    expect(readdirSync(out).filter((name) => /\.cuh?$/.test(name))).toEqual([]);
  });

  test('keeps what lies behind a link', async () => {
    const folder = temporaryFolder();
    const out = join(folder, 'out');
    await cli(...basic, '--target', 'cuda', '--out', out);
    const outside = join(folder, 'outside.txt');
    writeFileSync(outside, 'mine');
    const { unlinkSync } = await import('node:fs');
    unlinkSync(join(out, 'attend.cu'));
    symlinkSync(outside, join(out, 'attend.cu'));
    expect((await cli(...basic, '--target', 'cuda', '--out', out)).code).toBe(0);
    expect(readFileSync(outside, 'utf8')).toBe('mine');
  });

  test('is not left by names in an earlier manifest', async () => {
    const folder = temporaryFolder();
    const out = join(folder, 'out');
    mkdirSync(out);
    writeFileSync(join(folder, 'victim.cu'), 'mine');
    writeFileSync(
      join(out, 'manifest.json'),
      JSON.stringify({ format: 1, kernels: [], files: { '../victim.cu': {} } }),
    );
    expect((await cli(...basic, '--target', 'cuda', '--out', out)).code).toBe(0);
    expect(readFileSync(join(folder, 'victim.cu'), 'utf8')).toBe('mine');
  });

  test('is refused when it is a file', async () => {
    const out = join(temporaryFolder(), 'file');
    writeFileSync(out, 'mine');
    const run = await cli(...basic, '--target', 'cuda', '--out', out, '--json');
    expect(run.code).toBe(2);
    expect(errorOf(run)).toEqual({
      code: 'wrong-use',
      message: `--out: expected a place to write ${out}, got a path through a file that is no folder`,
      hint: 'Choose another path.',
    });
  });
});

describe('an output folder that is written twice', () => {
  const args = (out: string, target = 'wgsl') => [...basic, '--target', target, '--out', out, '--json'];

  test('at once is written by one, and the other is refused', async () => {
    const out = join(temporaryFolder(), 'out');
    const runs = await Promise.all([spawned(args(out, 'wgsl')), spawned(args(out, 'cuda'))]);
    // They may also come one after the other; then both are done, and the later one is whole.
    for (const run of runs) {
      if (run.code === 0) continue;
      expect(run.code).toBe(2);
      expect(errorOf(run).message).toMatch(/where another generate \(process \d+\) is writing$/);
    }
    expect(runs.some(({ code }) => code === 0)).toBe(true);
    expectWhole(out);
  });

  test('is refused while a living process holds its lock, and left as it is', async () => {
    const out = temporaryFolder();
    const lock = JSON.stringify({ pid: process.ppid, id: 'other', files: [] });
    writeFileSync(join(out, lockName), lock);
    const run = await cli(...args(out));
    expect(run.code).toBe(2);
    expect(errorOf(run)).toEqual({
      code: 'wrong-use',
      message: `--out: expected a folder that nothing else writes to, got ${out}, where another generate (process ${process.ppid}) is writing`,
      hint: `Wait for it, or choose another folder; if there is none, remove ${join(out, lockName)}.`,
    });
    expect(contents(out)).toEqual({ [lockName]: lock });
  });

  test.each([['new'], ['interrupted']])('that is %s is written by one at a time', async (state) => {
    const out = join(temporaryFolder(), 'out');
    if (state === 'interrupted') {
      mkdirSync(out);
      writeFileSync(join(out, lockName), JSON.stringify({ pid: deadPid(), id: 'dead', files: ['old'] }));
      writeFileSync(join(out, 'old'), 'half');
    }
    const write = (letter: string) => writeGenerated(out, new Map([[letter, letter]]), manifestOf(letter));
    const results = await Promise.allSettled(['a', 'b', 'c', 'd'].map(write));
    const reasons = results.flatMap((result) => (result.status === 'rejected' ? [String(result.reason)] : []));
    for (const reason of reasons) expect(reason).toContain('where another generate');
    expect(reasons.length).toBeLessThan(4);
    expect(readdirSync(out)).toHaveLength(2);
    await write('e');
    expect(readdirSync(out).sort()).toEqual(['e', 'manifest.json']);
  });

  test('is refused while another process takes a dead lock over', async () => {
    const out = temporaryFolder();
    writeFileSync(join(out, lockName), JSON.stringify({ pid: deadPid(), id: 'dead', files: [] }));
    writeFileSync(join(out, claimName), '');
    const run = await cli(...args(out));
    expect(run.code).toBe(2);
    expect(errorOf(run).message).toContain('where another generate is about to write');
    expect(errorOf(run).hint).toContain(join(out, claimName));
  });

  test.each([
    ['of a dead process', () => JSON.stringify({ pid: deadPid(), id: 'dead', files: ['attend.wgsl', 'old.wgsl'] })],
    [
      "with this process's id",
      () => JSON.stringify({ pid: process.pid, id: 'dead', files: ['attend.wgsl', 'old.wgsl'] }),
    ],
  ])('goes on after an interruption: a lock %s, kernels, no manifest', async (_, lock) => {
    const out = temporaryFolder();
    for (const name of ['attend.wgsl', 'old.wgsl', '.kvforge-0123456789ab.tmp']) writeFileSync(join(out, name), 'half');
    writeFileSync(join(out, lockName), lock());
    expect((await cli(...args(out))).code).toBe(0);
    expectWhole(out);
  });

  test('goes on after a lock that was never written', async () => {
    const out = temporaryFolder();
    writeFileSync(join(out, lockName), '');
    expect((await cli(...args(out))).code).toBe(0);
    expectWhole(out);
  });

  test('keeps what else lies beside an interrupted generation, and its lock', async () => {
    const out = temporaryFolder();
    writeFileSync(join(out, lockName), JSON.stringify({ pid: deadPid(), id: 'dead', files: ['attend.wgsl'] }));
    for (const name of ['attend.wgsl', 'notes.txt']) writeFileSync(join(out, name), 'mine');
    const before = contents(out);
    expect(errorOf(await cli(...args(out))).message).toMatch(/ with notes\.txt$/);
    expect(contents(out)).toEqual(before);
  });

  test('recovers from a process that was killed', async () => {
    const out = join(temporaryFolder(), 'out');
    const script = `
      const { writeGenerated } = await import(${JSON.stringify(pathToFileURL(packagePath('cli', 'outputFolder.ts')).href)});
      const files = new Map([['a.wgsl', 'a'], ['b.wgsl', 'b']]);
      files[Symbol.iterator] = function* () { yield ['a.wgsl', 'a']; process.kill(process.pid, 'SIGKILL'); };
      await writeGenerated(${JSON.stringify(out)}, files, '{}');`;
    const { signal } = spawnSync(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', script], {
      cwd: packagePath(),
    });
    expect(signal).toBe('SIGKILL');
    expect(readdirSync(out)).toContain('a.wgsl');
    expect((await cli(...args(out))).code).toBe(0);
    expectWhole(out);
  });

  test('is as it was when the first writing fails', async () => {
    const out = join(temporaryFolder(), 'out');
    const files = new Map([
      ['a.wgsl', 'a'],
      [`${'b'.repeat(300)}.wgsl`, 'b'],
    ]);
    await expect(writeGenerated(out, files, manifestOf('a.wgsl'))).rejects.toThrow('a name that is too long');
    expect(readdirSync(out)).toEqual([]);
  });

  test('is refused when a folder lies where a kernel belongs, before anything is written', async () => {
    const out = temporaryFolder();
    await cli(...args(out));
    rmSync(join(out, 'attend.wgsl'));
    mkdirSync(join(out, 'attend.wgsl'));
    const before = readdirSync(out).map((name) => statSync(join(out, name)).mtimeMs);
    const run = await cli(...args(out));
    expect(run.code).toBe(2);
    expect(errorOf(run).message).toBe(`--out: expected a place to write ${join(out, 'attend.wgsl')}, got a folder`);
    expect(readdirSync(out).map((name) => statSync(join(out, name)).mtimeMs)).toEqual(before);
  });
});

describe('a path to write to', () => {
  test.each([['generate'], ['demo']])('may not be empty for %s', async (command) => {
    const run = await cli(...(command === 'demo' ? ['demo'] : [...basic, '--target', 'cuda']), '--out', '', '--json');
    expect(run.code).toBe(2);
    expect(errorOf(run).message).toBe('--out: expected a path, got ""');
  });

  test.each(['', 'below'])('may not be a link to nothing, nor %j one', async (below) => {
    const link = join(temporaryFolder(), 'link');
    symlinkSync(`${link}-target`, link);
    const out = join(link, below);
    const run = await cli(...basic, '--target', 'cuda', '--out', out, '--json');
    expect(run.code).toBe(2);
    expect(errorOf(run).message).toBe(`--out: expected a place to write ${out}, got a link to nothing`);
  });
});

describe('options', () => {
  test.each([
    [['--target', 'metal'], '--target: expected one of cuda, wgsl, got "metal"'],
    [
      ['--target', 'cuda', '--arch', 'sm_75'],
      '--arch: expected one of sm_80, sm_86, sm_87, sm_89, sm_90, sm_90a, sm_100, sm_103, sm_110, sm_120, got "sm_75"',
    ],
    [['--target', 'wgsl', '--arch', 'sm_80'], '--arch does not apply to wgsl kernels'],
    [['--target', 'wgsl', '--plain'], '--plain does not apply to wgsl kernels'],
    [['--target', 'cuda', '--f16'], '--f16 does not apply to cuda kernels'],
    [['--target', 'cuda', '--subgroups'], '--subgroups does not apply to cuda kernels'],
    [['--target', 'cuda', '--set', 'attend.warps'], '--set: expected stage.tunable=number, got "attend.warps"'],
    [
      ['--target', 'cuda', '--set', 'nothing.warps=4'],
      /^--set nothing\.warps=4: expected a stage of exact, .*, got nothing$/,
    ],
    [['--target', 'cuda', '--set', 'attend.speed=4'], /^attend\.speed: expected a tunable of attend: .*, got 4$/],
    [
      ['--target', 'cuda', '--set', 'attend.constructor=1'],
      /^attend\.constructor: expected a tunable of attend: .*, got 1$/,
    ],
    [['--target', 'cuda', '--set', 'attend.warps=5'], /^attend\.warps: expected one of .*, got 5$/],
  ])('%j are refused', async (options, message) => {
    const out = join(temporaryFolder(), 'out');
    const run = await cli(...basic, ...options, '--out', out, '--json');
    expect(run.code).toBe(2);
    expect(errorOf(run).code).toBe('wrong-use');
    if (typeof message === 'string') expect(errorOf(run).message).toBe(message);
    else expect(errorOf(run).message).toMatch(message);
  });
});
