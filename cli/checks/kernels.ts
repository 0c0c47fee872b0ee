import type { KernelText } from '../../runtime/device.js';
import { type Check, found, guarded, missing } from './check.js';
import { programCheck } from './host.js';

/** What runs kernels without a GPU or through WebGPU. */
export async function kernelChecks(): Promise<readonly Check[]> {
  const [compiler, lines, emulator, webGpu] = await Promise.all([
    programCheck('g++', 'compiles kernels for the emulator', 'Install it: apt-get install g++.'),
    programCheck('addr2line', 'names the lines of faults', 'Install it: apt-get install binutils.'),
    guarded('emulator', emulatorCheck),
    webGpuChecks(),
  ]);
  return [compiler, lines, emulator, ...webGpu];
}

const increment: KernelText = {
  descriptor: {
    stage: 'doctor',
    entry: 'increment',
    file: 'increment.cu',
    target: 'cuda',
    bindings: [{ name: 'x', access: 'read_write', element: 'u32', holds: 'u32 [32]' }],
    threads: 32,
    grid: [1, 1, 1],
    sharedBytes: { fixed: 0, dynamic: 0 },
    requires: [],
    tunables: {},
  },
  source:
    '#include "prelude.cuh"\nextern "C" __global__ void increment(u32* __restrict__ x) { x[threadIdx.x] += 1u; }\n',
};

async function emulatorCheck(): Promise<Check> {
  const { EmulatorDevice } = await import('../../runtime/emulator/emulator.js');
  const started = performance.now();
  const device = await EmulatorDevice.open({ timeoutMs: 10_000 });
  try {
    const [kernel] = await device.compile([increment]);
    const buffer = device.allocate('x', 128);
    device.write(
      buffer,
      Uint32Array.from({ length: 32 }, (_, i) => i),
    );
    await device.run([{ kernel: kernel!, grid: [1, 1, 1], bindings: { x: { buffer } } }]);
    const words = new Uint32Array((await device.read(buffer)).slice().buffer);
    if (words.some((word, i) => word !== i + 1)) {
      return missing('emulator', 'a kernel gave wrong numbers', 'Report it with the version of g++.');
    }
    const ms = Math.round(performance.now() - started);
    return { ...found('emulator', `compiled and ran a kernel in ${ms} ms`), runsOn: 'emulator' };
  } finally {
    await device.close();
  }
}

async function webGpuChecks(): Promise<readonly Check[]> {
  const installed = await guarded('webgpu package', webGpuPackage);
  if (!installed.ok) return [installed];
  const adapters = await adapterChecks().catch((error: unknown) => [
    missing('webgpu adapter', error instanceof Error ? error.message : String(error), 'Run npm rebuild webgpu.'),
  ]);
  return [installed, ...adapters];
}

async function webGpuPackage(): Promise<Check> {
  const { createRequire } = await import('node:module');
  const require = createRequire(import.meta.url);
  try {
    const { version } = require('webgpu/package.json') as { version: string };
    return found('webgpu package', `webgpu ${version} (Dawn)`);
  } catch {
    return missing('webgpu package', 'not installed', 'Run npm install --save-dev webgpu @sparticuz/chromium.');
  }
}

async function adapterChecks(): Promise<readonly Check[]> {
  const { webGpuAdapters } = await import('../../runtime/webgpu/dawn.js');
  const adapters = await webGpuAdapters();
  if (adapters.length === 0) {
    const { setUpVulkan } = await import('../../runtime/webgpu/swiftshader.js');
    const { problem } = await setUpVulkan();
    return [missing('webgpu adapter', problem?.why ?? 'none found', problem?.fix ?? 'Install a graphics driver.')];
  }
  return adapters.map(({ name, backend, software, features, subgroupSizes, sharedBytes }) => {
    const has = (feature: string, label: string) => (features.includes(feature) ? label : `no ${label}`);
    const sizes = subgroupSizes === undefined ? '' : ` of ${[...new Set(subgroupSizes)].join(' to ')}`;
    const detail = [
      `${backend}, ${software ? 'software' : 'hardware'}`,
      has('shader-f16', 'f16'),
      `${has('subgroups', 'subgroups')}${features.includes('subgroups') ? sizes : ''}`,
      `${sharedBytes / 1024} KB of workgroup memory`,
    ];
    return { ...found(`webgpu adapter: ${name}`, detail.join('; ')), runsOn: 'webgpu' as const };
  });
}
