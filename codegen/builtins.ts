import { readFile } from 'node:fs/promises';
import type { LoweredFunction } from './assets.js';
import type { FunctionIr } from './ir.js';
import { packagePath } from './packageRoot.js';

/** Where the lowered device functions of the built-in codecs are kept, so that ts-morph is not needed for them. */
export const builtinsFile = packagePath('generated', 'device-functions.json');

let builtins: Promise<readonly FunctionIr[]> | undefined;

/** Reads the lowered device functions of the built-in codecs, once. */
export function readBuiltins(): Promise<readonly FunctionIr[]> {
  builtins ??= readFile(builtinsFile, 'utf8').then((text) => JSON.parse(text) as FunctionIr[]);
  return builtins;
}

/** The lowered functions of a user's file and of those they call. The one place from which ts-morph is reached. */
export async function lowerSource(source: string): Promise<readonly LoweredFunction[]> {
  const [{ lowerFiles }, { labelOf, packageLabel }, { basename, isAbsolute, resolve }, { fileURLToPath }] =
    await Promise.all([
      import('./lower/lower.js'),
      import('./lower/files.js'),
      import('node:path'),
      import('node:url'),
    ]);
  const path = resolve(source.startsWith('file:') ? fileURLToPath(source) : source);
  const label = labelOf(path);
  const lowered = await lowerFiles([path]);
  // What is printed must not say where the file lies on this machine, nor from where we run.
  const stays = packageLabel(path) !== undefined;
  return lowered.map((ir) => ({
    ir: { ...ir, file: stays && !isAbsolute(ir.file) ? ir.file : basename(ir.file) },
    declared: ir.file === label,
  }));
}
