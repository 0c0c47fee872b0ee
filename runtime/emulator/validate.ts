import { type ErrorCode, KvforgeError } from '../../dsl/errors.js';
import type { KernelText } from '../device.js';
import type { EmulatorOptions } from './emulator.js';
import { orderNumber } from './orders.js';

function fail(at: string, expected: string, received: string, hint: string, code: ErrorCode = 'wrong-use'): never {
  throw new KvforgeError(code, { at, expected, received, hint });
}

function checkOneOf(at: string, value: unknown, allowed: readonly string[]): void {
  if (value === undefined || (typeof value === 'string' && allowed.includes(value))) return;
  const names = allowed.map((name) => `'${name}'`);
  const expected = `${names.slice(0, -1).join(', ')} or ${names.at(-1)}`;
  fail(at, expected, shown(value), 'Leave it out for the default.');
}

function checkWhole(at: string, value: unknown, least: number): void {
  if (value === undefined || (Number.isSafeInteger(value) && (value as number) >= least)) return;
  fail(at, `a whole number from ${least} on`, shown(value), 'Leave it out for the default.');
}

function shown(value: unknown): string {
  return typeof value === 'string' ? `'${value}'` : String(value);
}

/** Refuses what the type of the options does not allow, which JavaScript and the command line may still hand over. */
export function checkOptions({ checks, order, seed, timeoutMs }: EmulatorOptions): void {
  const orders = Object.keys(orderNumber);
  checkOneOf('emulator option checks', checks, ['full', 'none']);
  if (typeof order === 'object' && order !== null) {
    checkOneOf('emulator option order.blocks', order.blocks, orders);
    checkOneOf('emulator option order.threads', order.threads, orders);
  } else {
    checkOneOf('emulator option order', order, orders);
  }
  checkWhole('emulator option seed', seed, 0);
  checkWhole('emulator option timeoutMs', timeoutMs, 1);
}

/** The host program could not load a compiled kernel. */
export function failLoad({ descriptor }: KernelText, message: string): never {
  fail(
    `${descriptor.file}: ${descriptor.entry}`,
    'a library that loads',
    `"${message}"`,
    'Define in the text, or in both files prelude.cuh, what it calls.',
    'compile-failed',
  );
}

/** An allocation failed after the method that asked for it had returned. */
export function failMemory(message: string): never {
  fail(
    'emulator device',
    'memory for every buffer',
    message,
    'Allocate less, or release buffers first.',
    'does-not-fit',
  );
}
