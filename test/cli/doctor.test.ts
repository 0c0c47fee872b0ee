import { expect, test } from 'vitest';
import { cli, documentOf } from './support.js';

test('doctor lists every check, and a fix for each that fails', async () => {
  const run = await cli('doctor', '--json');
  const { checks, runsKernels } = documentOf(run) as {
    runsKernels: boolean;
    checks: { name: string; ok: boolean; detail: string; fix: string }[];
  };
  expect(run.code).toBe(runsKernels ? 0 : 3);
  const names = checks.map(({ name }) => name);
  for (const name of [
    'node',
    'device functions',
    'cache folder',
    'g++',
    'addr2line',
    'emulator',
    'webgpu package',
    'nvidia driver',
    'nvrtc',
    'nvcc',
    'cuda addon',
  ]) {
    expect(names).toContain(name);
  }
  for (const { ok, detail, fix } of checks) {
    expect(detail).not.toBe('');
    expect(fix === '').toBe(ok);
  }
});
