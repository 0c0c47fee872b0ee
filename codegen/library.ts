import type { ScalarCodec } from '../dsl/codec.js';
import { KvforgeError } from '../dsl/errors.js';
import { isLatent, type KeyChain, type Scheme, type ValueChain } from '../dsl/scheme.js';
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
  const builtins = new Map((await assets.builtins()).map((ir) => [ir.name, ir]));
  const library = new Map(builtins);
  for (const [at, codec] of codecsOf(scheme)) await addCodec({ builtins, library }, at, codec, assets);
  return library;
}

/** Every scalar codec of a scheme, with its place in the descriptor. */
function codecsOf(scheme: Scheme): readonly (readonly [at: string, codec: ScalarCodec])[] {
  const chains = isLatent(scheme)
    ? { latent: scheme.latent, rotary: scheme.rotary === 'exact' ? [] : scheme.rotary }
    : { keys: scheme.keys, values: scheme.values };
  const quantizers = Object.entries<readonly (KeyChain | ValueChain)[number][]>(chains).flatMap(([name, chain]) =>
    chain.flatMap((step, i) => (step.kind === 'quantizer' ? [[`${name}[${i}].codec`, step.codec] as const] : [])),
  );
  return [...quantizers, ['stream', scheme.stream]];
}

/** Functions by name: the built-in ones, and those with the scheme's own that were added so far. */
interface Functions {
  readonly builtins: ReadonlyMap<string, FunctionIr>;
  readonly library: Map<string, FunctionIr>;
}

async function addCodec(
  { builtins, library }: Functions,
  at: string,
  { source, device }: ScalarCodec,
  assets: Pick<Assets, 'lower'>,
): Promise<void> {
  const own = new Set<string>();
  if (source !== undefined) {
    for (const { ir, declared } of await assets.lower(source)) {
      const known = library.get(ir.name);
      // The file may call a built-in function by its path, and be the file of several codecs: it is then lowered again.
      if (known && JSON.stringify(known) !== JSON.stringify(ir)) {
        throw new KvforgeError('invalid-codec', {
          at: `${ir.file}:${ir.position.line}:${ir.position.column}`,
          expected: builtins.has(ir.name)
            ? 'a name that no built-in device function has'
            : `a name that no device function of the scheme's other codecs has`,
          received: ir.name,
          hint: 'Rename the function.',
        });
      }
      library.set(ir.name, ir);
      if (declared && !builtins.has(ir.name)) own.add(ir.name);
    }
  }
  for (const [role, fn] of Object.entries(device)) {
    // A name alone says little: a function of the user's may have that of a built-in one.
    if (own.has(fn.name) || (library.has(fn.name) && builtinExports.get(fn.name) === fn)) continue;
    const received = fn.name === '' ? 'an unnamed function' : fn.name;
    throw new KvforgeError('invalid-codec', {
      at: `${at}.device.${role}`,
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
}
