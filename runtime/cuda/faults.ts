import { KvforgeError } from '../../dsl/errors.js';
import { isNativeFailure, type NativeFailure } from './nativeTypes.js';

/** `CUDA_ERROR_ILLEGAL_ADDRESS (700, an illegal memory access was encountered) from cuStreamQuery`. */
export function told({ call, code, cudaName, text }: NativeFailure): string {
  if (cudaName === '') return text;
  const details = [String(code), text].filter((part) => part !== '').join(', ');
  return `${cudaName} (${details}) from ${call.startsWith('nvrtc') ? call : `cu${call[0]!.toUpperCase()}${call.slice(1)}`}`;
}

/** Results after which a context is lost; the addon's list, `session.cc`. */
const sticky = new Set([4, 46, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999]);

/** Why a failure means that the device is lost; undefined where the device goes on. */
export function lossOf(failure: NativeFailure): string | undefined {
  if (failure.call === 'timeout') return 'a launch did not end in time';
  return failure.cudaName !== '' && sticky.has(failure.code) ? told(failure) : undefined;
}

export function deviceLost(at: string, why: string, cause?: unknown): KvforgeError {
  return new KvforgeError(
    'device-lost',
    {
      at,
      expected: 'a live device',
      received: `a lost one (${why})`,
      hint: 'Start a new process: CUDA cannot revive a device within one.',
    },
    { cause },
  );
}

/** What one allocation asked for, and what was left. */
export function outOfMemory(label: string, bytes: number, failure: NativeFailure): KvforgeError {
  return new KvforgeError(
    'does-not-fit',
    {
      at: `buffer '${label}'`,
      expected: `at most ${failure.free ?? 0} bytes, which are free on the device`,
      received: `${bytes}`,
      hint: 'Release buffers first, allocate less, or choose another GPU.',
    },
    { cause: failure },
  );
}

/**
 * The failure of work on the device.
 *
 * @param at what was done: `run(attend)`
 */
export function workFailed(at: string, error: unknown): unknown {
  if (!isNativeFailure(error)) return error;
  if (error.call === 'timeout') {
    return new KvforgeError(
      'device-lost',
      {
        at,
        expected: `an end within ${error.code} ms`,
        received: 'none',
        hint: 'Look for an endless loop or a lost barrier; start a new process, with a larger timeoutMs if the work is long.',
      },
      { cause: error },
    );
  }
  if (error.code === 2) {
    return new KvforgeError(
      'does-not-fit',
      { at, expected: 'memory for it on the device', received: told(error), hint: 'Release buffers first.' },
      { cause: error },
    );
  }
  return new KvforgeError(
    'kernel-fault',
    {
      at: error.launch < 0 ? at : `launch ${error.launch} of ${at}`,
      expected: 'the work to complete',
      received: told(error),
      hint:
        lossOf(error) === undefined
          ? 'Check the grid and the shared memory of the launch.'
          : 'Run the same on the emulator, which names the line of a bad access; here, start a new process.',
    },
    { cause: error },
  );
}
