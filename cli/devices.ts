import type { Device } from '../runtime/device.js';
import type { Context } from './output.js';

export const deviceNames = ['emulator', 'webgpu', 'cuda'] as const;
export type DeviceName = (typeof deviceNames)[number];

export interface OpenOptions {
  /**
   * 'full' makes faults show: the emulator reports bad accesses and races and runs threads in a shuffled order, WebGPU
   * buffers start as NaN instead of zero. 'none' is faster.
   */
  readonly checks: 'full' | 'none';
}

/**
 * Opens a device that an interruption closes too.
 *
 * @throws KvforgeError `missing-capability` with what to install
 */
export async function openDevice(name: DeviceName, { checks }: OpenOptions, context: Context): Promise<Device> {
  const device = await open(name, checks);
  const { release } = context.onInterrupt(() => device.close());
  const close = device.close.bind(device);
  device.close = () => {
    release();
    return close();
  };
  return device;
}

async function open(name: DeviceName, checks: 'full' | 'none'): Promise<Device> {
  const full = checks === 'full';
  switch (name) {
    case 'emulator':
      return (await import('../runtime/emulator/emulator.js')).EmulatorDevice.open({
        checks,
        order: full ? 'shuffled' : 'ascending',
      });
    case 'webgpu':
      return (await import('../runtime/webgpu/webgpu.js')).WebGpuDevice.open({ adapter: 'any', poison: full });
    case 'cuda':
      return (await import('../runtime/cuda/cudaDevice.js')).CudaDevice.open({
        device: gpuOf(process.env.KVFORGE_GPU),
        poison: full,
      });
  }
}

/** The GPU that `KVFORGE_GPU` names by index or UUID; the first one where it names none. */
function gpuOf(name: string | undefined): number | string {
  if (name === undefined || name === '') return 0;
  return /^\d+$/.test(name) ? Number(name) : name;
}
