import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cli, documentOf, errorOf, temporaryFolder } from './support.js';

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
    const run = await cli(...basic, '--target', 'wgsl', '--set', 'codebook.pointsPerBlock=512', '--out', out, '--json');
    expect(run.code).toBe(0);
    const { kernels } = JSON.parse(readFileSync(join(out, 'manifest.json'), 'utf8')) as {
      kernels: { stage: string; tunables: Record<string, number> }[];
    };
    expect(kernels.find(({ stage }) => stage === 'codebook')?.tunables.pointsPerBlock).toBe(512);
  });
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

describe('options', () => {
  test.each([
    [['--target', 'metal'], '--target: expected one of cuda, wgsl, got "metal"'],
    [
      ['--target', 'cuda', '--arch', 'sm_75'],
      '--arch: expected one of sm_80, sm_86, sm_87, sm_89, sm_90, sm_100, sm_103, sm_110, sm_120, got "sm_75"',
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
