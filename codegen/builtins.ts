import { readFile } from 'node:fs/promises';
import { KvforgeError } from '../dsl/errors.js';
import type { Scheme } from '../dsl/scheme.js';
import type { FunctionIr } from './ir.js';
import { packagePath } from './packageRoot.js';

/** Where the lowered device functions of the built-in codecs are kept, so that ts-morph is not needed for them. */
export const builtinsFile = packagePath('generated', 'device-functions.json');

let builtins: Promise<readonly FunctionIr[]> | undefined;

/**
 * The built-in device functions by name, and those of the scheme's own file, which is lowered now.
 *
 * @throws KvforgeError `invalid-codec` for a function of the codec that is neither built in nor of that file
 */
export async function deviceFunctions(scheme: Scheme): Promise<ReadonlyMap<string, FunctionIr>> {
  builtins ??= readFile(builtinsFile, 'utf8').then((text) => JSON.parse(text) as FunctionIr[]);
  const library = new Map((await builtins).map((ir) => [ir.name, ir]));
  const { source, device } = scheme.stream;
  const own = new Set<string>();
  if (source !== undefined) {
    for (const { ir, declared } of await lowerSource(source)) {
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
  const exported = await builtinExports();
  for (const [role, fn] of Object.entries(device)) {
    // A name alone says little: a function of the user's may have that of a built-in one.
    if (own.has(fn.name) || (library.has(fn.name) && exported.get(fn.name) === fn)) continue;
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

/** The lowered functions of a user's file and of those they call; `declared` in the file itself. */
async function lowerSource(source: string): Promise<{ ir: FunctionIr; declared: boolean }[]> {
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

let exports: Promise<ReadonlyMap<string, unknown>> | undefined;

/** What the built-in codec modules export, by name. */
function builtinExports(): Promise<ReadonlyMap<string, unknown>> {
  exports ??= Promise.all([
    import('../dsl/codecs/channelMax.js'),
    import('../dsl/codecs/hadamard.js'),
    import('../dsl/codecs/jacobi.js'),
    import('../dsl/codecs/lloydMax.js'),
    import('../dsl/codecs/pca.js'),
    import('../dsl/codecs/unrope.js'),
    import('../dsl/codecs/vq.js'),
    import('../dsl/packing.js'),
    import('../dsl/random.js'),
  ]).then((modules) => new Map(modules.flatMap((module) => Object.entries(module as object))));
  return exports;
}
