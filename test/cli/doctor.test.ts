import { expect, test } from 'vitest';
import { found } from '../../cli/checks/check.js';
import { gpuCheck } from '../../cli/checks/cuda.js';
import { doctor } from '../../cli/doctor.js';
import type { CudaDeviceFacts } from '../../runtime/cuda/driver.js';
import { cli, documentOf, quietContext } from './support.js';

const gpu = { index: 0, name: 'A GPU', uuid: 'GPU-1', architecture: 'sm_90a', bytes: 2 ** 30 } as CudaDeviceFacts;
const emulator = { ...found('emulator', 'ran'), runsOn: 'emulator' } as const;

test.each([
  ['a GPU without NVRTC', [emulator, gpuCheck(gpu, false)], 'Kernels can run here on emulator, not on webgpu or cuda.'],
  ['a GPU with it', [emulator, gpuCheck(gpu, true)], 'Kernels can run here on emulator and cuda, not on webgpu.'],
  [
    'a GPU that is too old',
    [gpuCheck({ ...gpu, architecture: undefined }, true)],
    'No kernel can run here: install g++, or the webgpu package.',
  ],
])('doctor names the devices that kernels run on: %s', async (_, checks, closing) => {
  const { text, code } = await doctor(quietContext(), async () => checks);
  expect(text.trimEnd().split('\n').at(-1)).toBe(closing);
  expect(code).toBe(closing.startsWith('No') ? 3 : 0);
});

test('doctor lists every check, and a fix for each that fails', async () => {
  const run = await cli('doctor', '--json');
  const { checks, runsKernels, devices } = documentOf(run) as {
    runsKernels: boolean;
    devices: string[];
    checks: { name: string; ok: boolean; detail: string; fix: string }[];
  };
  expect(run.code).toBe(runsKernels ? 0 : 3);
  expect(devices.length > 0).toBe(runsKernels);
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
