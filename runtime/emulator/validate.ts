import { type ErrorCode, KvforgeError } from '../../dsl/errors.js';
import type { KernelText, Launch } from '../device.js';
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

/** Pointer parameters of the entry function, counted in the text; undefined where the text has no such function. */
function parameterCount(source: string, entry: string): number | undefined {
  const text = source.replace(/\/\/.*$/gm, '').replace(/\/\*[\s\S]*?\*\//g, ' ');
  const found = new RegExp(`\\b${entry}\\s*\\(([^)]*)\\)`).exec(text);
  if (found === null) return undefined;
  return found[1]!.trim() === '' ? 0 : found[1]!.split(',').length;
}

/** Checks that a CUDA text and its descriptor agree: a kernel called with too few pointers would run on garbage. */
export function checkText({ descriptor, source }: KernelText): void {
  const at = `${descriptor.file}: ${descriptor.entry}`;
  if (!/^[A-Za-z_]\w*$/.test(descriptor.entry)) {
    fail(at, 'an entry that is a C++ name', `'${descriptor.entry}'`, 'Rename it.');
  }
  if (!Number.isInteger(descriptor.threads) || descriptor.threads < 1) {
    fail(at, 'a positive number of threads', `${descriptor.threads}`, 'Correct the descriptor.');
  }
  const parameters = parameterCount(source, descriptor.entry);
  if (parameters === undefined) fail(at, `a function ${descriptor.entry} in the text`, 'none', 'Correct the entry.');
  const { length } = descriptor.bindings;
  if (parameters !== length) {
    fail(at, `${length} parameters, one for each binding`, `${parameters}`, 'Make text and descriptor agree.');
  }
}

/** CUDA allows fewer blocks in y and z than in x, which the one limit of `DeviceLimits` does not say. */
export function checkNarrowAxes(entry: string, grid: Launch['grid']): void {
  for (const axis of [1, 2] as const) {
    if (grid[axis] <= 65535) continue;
    fail(entry, `at most 65535 blocks in ${'xyz'[axis]}`, `${grid[axis]}`, 'Fold the grid into x.');
  }
}

/** Refuses a kernel that another device compiled. */
export function failForeignKernel({ descriptor }: Launch['kernel']): never {
  fail(
    `${descriptor.file}: ${descriptor.entry}`,
    'a kernel that this device compiled',
    'one of another device',
    'Launch what compile() of this device returned.',
  );
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
