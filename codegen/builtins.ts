import { readFile } from 'node:fs/promises';
import { KvforgeError } from '../dsl/errors.js';
import type { Scheme } from '../dsl/scheme.js';
import type { FunctionIr } from './ir.js';
import { packagePath } from './packageRoot.js';

/** Where the lowered device functions of the built-in codecs are kept, so that ts-morph is not needed for them. */
export const builtinsFile = packagePath('generated', 'device-functions.json');

let builtins: Promise<readonly FunctionIr[]> | undefined;

/** The built-in device functions by name, and those of the scheme's own file, which is lowered now. */
export async function deviceFunctions(scheme: Scheme): Promise<ReadonlyMap<string, FunctionIr>> {
  builtins ??= readFile(builtinsFile, 'utf8').then((text) => JSON.parse(text) as FunctionIr[]);
  const library = new Map((await builtins).map((ir) => [ir.name, ir]));
  const { source, device } = scheme.stream;
  if (source === undefined) return library;
  const { lowerFiles } = await import('./lower/lower.js');
  const { fileURLToPath } = await import('node:url');
  const own = await lowerFiles([source.startsWith('file:') ? fileURLToPath(source) : source]);
  for (const ir of own) {
    if (library.has(ir.name) && library.get(ir.name)!.file !== ir.file) {
      throw new KvforgeError('invalid-codec', {
        at: `${ir.file}:${ir.position.line}:${ir.position.column}`,
        expected: 'a name that no built-in device function has',
        received: ir.name,
        hint: 'Rename the function.',
      });
    }
    library.set(ir.name, ir);
  }
  for (const [role, fn] of Object.entries(device)) {
    if (!library.has(fn.name)) {
      throw new KvforgeError('invalid-codec', {
        at: `stream.device.${role}`,
        expected: `a function of ${source} marked 'device'`,
        received: fn.name === '' ? 'an unnamed function' : fn.name,
        hint: 'Declare it with `function` at the top level of that file.',
      });
    }
  }
  return library;
}
