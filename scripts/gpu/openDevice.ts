import type { Target } from '../../dsl/stage.js';
import { CudaDevice } from '../../runtime/cuda/cudaDevice.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { targetFor } from '../../runtime/targetFor.js';
import { WebGpuDevice } from '../../runtime/webgpu/webgpu.js';

/** A device that the scripts know by name, and how kernels for it are generated. */
export interface Backend {
  readonly open: () => Promise<Device>;
  readonly target: (device: Device) => Target;
}

/** `webgpu` uses f16 and subgroups where the adapter has them; `webgpu-plain` does without, and so runs everywhere. */
export const backends: Readonly<Record<string, Backend>> = {
  cuda: { open: () => CudaDevice.open(), target: targetFor },
  webgpu: { open: () => WebGpuDevice.open({ adapter: 'any', poison: true }), target: targetFor },
  'webgpu-plain': {
    open: () => WebGpuDevice.open({ adapter: 'any', poison: true, features: [] }),
    target: () => ({ language: 'wgsl', f16: false, subgroups: false, workgroupBytes: 16384 }),
  },
  emulator: { open: () => EmulatorDevice.open({ checks: 'none', order: 'shuffled' }), target: targetFor },
};

/** A whole number from the command line; ends the process with what it is for if it is none, or below `least`. */
export function countOf(name: string, text: string, least: number): number {
  const count = Number(text);
  if (text.trim() !== '' && Number.isSafeInteger(count) && count >= least) return count;
  console.error(`expected ${name} to be a whole number of at least ${least}, got ${JSON.stringify(text)}`);
  process.exit(2);
}

/** The backend of a name from the command line; ends the process with the names there are if it is none. */
export function backendOf(name: string | undefined): Backend {
  const backend = Object.hasOwn(backends, name ?? '') ? backends[name ?? ''] : undefined;
  if (backend !== undefined) return backend;
  console.error(`expected a device of ${Object.keys(backends).join(', ')}, got ${name ?? 'none'}`);
  process.exit(2);
}
