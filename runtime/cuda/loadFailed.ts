import type { KernelDescriptor } from '../../codegen/manifest.js';
import { type ErrorCode, KvforgeError } from '../../dsl/errors.js';
import { told } from './faults.js';
import { isNativeFailure } from './nativeTypes.js';

const NOT_FOUND = 500;

/** Why a compiled kernel does not load; undefined for a failure that has nothing to do with the kernel. */
export function loadFailed(descriptor: KernelDescriptor, error: unknown): KvforgeError | undefined {
  if (!isNativeFailure(error)) return undefined;
  const at = `${descriptor.file}: ${descriptor.entry}`;
  const make = (code: ErrorCode, expected: string, received: string, hint: string) =>
    new KvforgeError(code, { at, expected, received, hint }, { cause: error });
  if (error.call === 'threads') {
    const hint = 'Generate it with fewer threads, or with tiles that need fewer registers.';
    return make('does-not-fit', `at most ${error.code} threads a block`, `${descriptor.threads}: ${error.text}`, hint);
  }
  if (error.call === 'moduleGetFunction' && error.code === NOT_FOUND) {
    const hint = 'Declare it extern "C" __global__.';
    return make('compile-failed', `a kernel ${descriptor.entry} in the compiled text`, 'none', hint);
  }
  if (error.call === 'moduleLoadDataEx') {
    const hint = 'Install a driver as new as NVRTC, or NVRTC as old as the driver.';
    return make('compile-failed', 'machine code that the driver loads', told(error), hint);
  }
  return undefined;
}
