import { KvforgeError } from '../dsl/errors.js';
import type { Scheme } from '../dsl/scheme.js';
import type { Assets } from './assets.js';
import { builtinExports } from './builtinExports.js';
import type { FunctionIr } from './ir.js';

/**
 * The built-in device functions by name, and those of the scheme's own file, which is lowered now.
 *
 * @throws KvforgeError `invalid-codec` for a function of the codec that is neither built in nor of that file
 * @example
 * (await functionLibrary(shard, diskAssets)).get('nearestLevel');
 */
export async function functionLibrary(
  scheme: Scheme,
  assets: Pick<Assets, 'builtins' | 'lower'>,
): Promise<ReadonlyMap<string, FunctionIr>> {
  const library = new Map((await assets.builtins()).map((ir) => [ir.name, ir]));
  const { source, device } = scheme.stream;
  const own = new Set<string>();
  if (source !== undefined) {
    for (const { ir, declared } of await assets.lower(source)) {
      const builtin = library.get(ir.name);
      // The file may call the built-in function by its path; it is then lowered again.
      if (builtin && JSON.stringify(builtin) === JSON.stringify(ir)) continue;
      if (builtin) {
        throw new KvforgeError('invalid-codec', {
          at: `${ir.file}:${ir.position.line}:${ir.position.column}`,
          expected: 'a name that no built-in device function has',
          received: ir.name,
          hint: 'Rename the function.',
        });
      }
      library.set(ir.name, ir);
      if (declared) own.add(ir.name);
    }
  }
  for (const [role, fn] of Object.entries(device)) {
    // A name alone says little: a function of the user's may have that of a built-in one.
    if (own.has(fn.name) || (library.has(fn.name) && builtinExports.get(fn.name) === fn)) continue;
    const received = fn.name === '' ? 'an unnamed function' : fn.name;
    throw new KvforgeError('invalid-codec', {
      at: `stream.device.${role}`,
      expected:
        source === undefined
          ? 'a built-in device function, as the codec names no source'
          : "a function marked 'device' of the file that source names, or a built-in one",
      received: source === undefined && library.has(received) ? `another function named ${received}` : received,
      hint:
        source === undefined
          ? 'Add source: import.meta.url.'
          : 'Declare it with `function` at the top level of that file.',
    });
  }
  return library;
}
