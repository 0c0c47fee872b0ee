import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import { cli, documentOf, spawned } from './support.js';

const folder = mkdtempSync(join(tmpdir(), 'kvforge-new-'));
afterAll(() => rmSync(folder, { recursive: true }));

test('writes a scheme of that name and its test', async () => {
  const run = await cli('new', 'scheme', 'two-bits', '--dir', folder, '--json');
  const files = [join(folder, 'two-bits.ts'), join(folder, 'two-bits.test.ts')];
  expect(run.code).toBe(0);
  expect(documentOf(run)).toEqual({ name: 'two-bits', files });
  const [scheme, tests] = files.map((file) => readFileSync(file, 'utf8'));
  // But for the name it is the example, which the examples' own test runs.
  const example = readFileSync(packagePath('examples', 'new-scheme.ts'), 'utf8');
  expect(scheme).toBe(example.replace("name: 'new-scheme'", "name: 'two-bits'"));
  expect(tests).toContain("import scheme from './two-bits.js';");
});

test('what it writes is a scheme', async () => {
  const run = await spawned([
    ...['inspect', 'examples/new-scheme.ts', '--model', 'llama-3.1-8b', '--tokens', '8192', '--json'],
  ]);
  expect(run.code).toBe(0);
  // 8124 middle tokens of 8 heads, 128 channels, 4 bits and an f16 scale, for keys and values.
  const parts = documentOf(run).buffers as { name: string; bytes: number }[];
  const bytesOf = (name: string) => parts.find((part) => part.name === name)!.bytes;
  expect(bytesOf('keyCodes')).toBe(8124 * 8 * 64);
  expect(bytesOf('valueScales')).toBe(8124 * 8 * 2);
});

test('writes over nothing', async () => {
  const first = await cli('new', 'scheme', 'twice', '--dir', folder);
  expect(first.code).toBe(0);
  const second = await cli('new', 'scheme', 'twice', '--dir', folder);
  expect(second.code).toBe(2);
  expect(second.err.trimEnd()).toBe(
    `error: ${join(folder, 'twice.ts')}: expected a file that can be made, got one that is there\n  Take another name, or another --dir.`,
  );
});

test('writes both files or none', async () => {
  writeFileSync(join(folder, 'half.test.ts'), 'mine');
  const run = await cli('new', 'scheme', 'half', '--dir', folder);
  expect(run.code).toBe(2);
  expect(run.err.trimEnd()).toBe(
    `error: ${join(folder, 'half.test.ts')}: expected a file that can be made, got one that is there\n  Take another name, or another --dir.`,
  );
  expect(existsSync(join(folder, 'half.ts'))).toBe(false);
  expect(readFileSync(join(folder, 'half.test.ts'), 'utf8')).toBe('mine');
});

test('names the next command as a shell takes it', async () => {
  const spaced = join(folder, 'my schemes');
  mkdirSync(spaced);
  const run = await cli('new', 'scheme', 'two', '--dir', spaced);
  expect(run.out).toContain(`kvforge verify '${join(spaced, 'two.ts')}' --model llama-3.1-8b`);
});

test.each([
  [
    ['Two'],
    'error: name: expected lower-case letters, digits and hyphens, at most 40, got "Two"\n  For example: kvforge new scheme my-scheme.',
  ],
  [['kivi2'], 'error: name: expected one that no preset has, got "kivi2"\n  For example: my-kivi2.'],
  [
    ['two', '--dir', '/nowhere/at/all'],
    'error: /nowhere/at/all/two.ts: expected a file that can be made, got ENOENT\n  Take another name, or another --dir.',
  ],
])('refuses %j', async (args, message) => {
  const run = await cli('new', 'scheme', ...args);
  expect(run.code).toBe(2);
  expect(run.err.trimEnd()).toBe(message);
});
