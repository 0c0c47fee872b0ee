import { readFile } from 'node:fs/promises';
import { KvforgeError } from '../../dsl/errors.js';
import type { Architecture } from '../../dsl/stage.js';
import { loadAddon } from './addon.js';
import { runnableArchitectures } from './architecture.js';
import { told } from './faults.js';
import { driverLibraries, problemOf } from './libraries.js';
import { isNativeFailure, type NativeAddon, type NativeDeviceFacts, type NativeFailure } from './nativeTypes.js';

/** A GPU that the driver shows to this process. */
export interface CudaDeviceFacts {
  /** Position in the driver's list, which `CUDA_VISIBLE_DEVICES` changes. */
  readonly index: number;
  /** `NVIDIA H200`. */
  readonly name: string;
  /** `GPU-` and 32 hexadecimal digits in five groups; the same whatever the index. */
  readonly uuid: string;
  /** What kernels are best generated for; undefined for a GPU older than kvforge's kernels. */
  readonly architecture: Architecture | undefined;
  /** Of device memory. */
  readonly bytes: number;
}

export interface OpenDriver {
  readonly addon: NativeAddon;
  readonly path: string;
  /** `580.159.04 (CUDA 13.0)`; the first number only where the system tells it. */
  readonly version: string;
  readonly devices: readonly NativeDeviceFacts[];
}

/**
 * Opens the addon, and the driver through it.
 *
 * @throws KvforgeError `missing-capability` without addon, driver or GPU
 */
export async function openDriver(): Promise<OpenDriver> {
  const addon = await loadAddon();
  const { paths, variable } = driverLibraries();
  try {
    const { path, version } = await addon.openDriver(paths);
    const cuda = `CUDA ${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
    const number = await driverNumber();
    return { addon, path, version: number === undefined ? cuda : `${number} (${cuda})`, devices: addon.devices() };
  } catch (error) {
    throw isNativeFailure(error) ? driverMissing(error, paths, variable) : error;
  }
}

/** As NVIDIA numbers its drivers; what the library itself tells is the version of CUDA. */
async function driverNumber(): Promise<string | undefined> {
  const text = await readFile('/proc/driver/nvidia/version', 'utf8').catch(() => '');
  return /\b\d+\.\d+(\.\d+)?\b/.exec(text)?.[0];
}

function driverMissing(error: NativeFailure, paths: readonly string[], variable: string | undefined): KvforgeError {
  const isAbsent = error.call === 'library';
  const hint = !isAbsent
    ? hintOf(error)
    : variable === undefined
      ? 'Install the NVIDIA driver, or use --device emulator.'
      : `Correct ${variable}, or unset it to use the system's driver.`;
  const expected = variable === undefined ? `the NVIDIA driver (${paths.join(', ')})` : `${variable} to name a driver`;
  const received = isAbsent && variable === undefined ? problemOf(error.text, paths) : told(error);
  return new KvforgeError(
    'missing-capability',
    { at: 'cuda driver', expected: isAbsent ? expected : 'a driver that works', received, hint },
    { cause: error },
  );
}

/** What to do about a driver that opens, and then fails. */
function hintOf({ call }: NativeFailure): string {
  if (call === 'symbol') return 'Install a newer driver: CUDA 11.4 or later.';
  return 'Check nvidia-smi and CUDA_VISIBLE_DEVICES.';
}

export function factsOf(device: NativeDeviceFacts): CudaDeviceFacts {
  const { index, name, uuid, bytes } = device;
  return { index, name, uuid, architecture: runnableArchitectures(device).at(-1), bytes };
}

/**
 * The device of an index or a UUID.
 *
 * @throws KvforgeError `wrong-use` with the devices there are, `missing-capability` where there is none or it is too old
 */
export function chooseDevice(devices: readonly NativeDeviceFacts[], wanted: number | string): NativeDeviceFacts {
  if (devices.length === 0) {
    throw new KvforgeError('missing-capability', {
      at: 'cuda device',
      expected: 'a GPU',
      received: 'none that the driver shows',
      hint: 'Check nvidia-smi and CUDA_VISIBLE_DEVICES.',
    });
  }
  const found = devices.find(({ index, uuid }) => index === wanted || uuid === wanted);
  if (found === undefined) {
    throw new KvforgeError('wrong-use', {
      at: 'cuda device',
      expected: `one of ${devices.map(({ index, uuid, name }) => `${index} (${name}, ${uuid})`).join(', ')}`,
      received: String(wanted),
      hint: 'Give an index or a UUID.',
    });
  }
  if (runnableArchitectures(found).length === 0) {
    throw new KvforgeError('missing-capability', {
      at: `cuda device ${found.index}`,
      expected: 'compute capability 8.0 or later',
      received: `${found.major}.${found.minor} (${found.name})`,
      hint: 'Use another GPU, or --device webgpu.',
    });
  }
  return found;
}
