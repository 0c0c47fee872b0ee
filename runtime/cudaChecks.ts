import { KvforgeError } from '../dsl/errors.js';
import type { KernelText, Launch } from './device.js';

/** Checks that every device makes that runs CUDA text, be it on a GPU or on the host. */
function fail(at: string, expected: string, received: string, hint: string): never {
  throw new KvforgeError('wrong-use', { at, expected, received, hint });
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
