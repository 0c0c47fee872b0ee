import { packagePath, packageRoot } from '../../codegen/packageRoot.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { NativeAddon } from './nativeTypes.js';

let loaded: NativeAddon | undefined;

const sources = packagePath('runtime', 'cuda', 'addon');
/** In a checkout and in an installed package alike. */
const build = `npx node-gyp rebuild --directory "${sources}"`;

/** The file of the addon: what was built here, else what the package ships for this platform. */
export async function findAddon(folders: readonly string[] = [sources, packageRoot]): Promise<string> {
  const { default: nodeGypBuild } = await import('node-gyp-build');
  for (const folder of folders) {
    try {
      return nodeGypBuild.path(folder);
    } catch {
      // It says only that there is none in this folder.
    }
  }
  throw new KvforgeError('missing-capability', {
    at: 'cuda addon',
    expected: `one built for ${process.platform}-${process.arch}`,
    received: 'none in the package',
    hint: `Build it with a C++17 compiler and Python: ${build}.`,
  });
}

/** @throws KvforgeError `missing-capability` where there is no addon, or it does not load into this Node */
export async function loadAddon(): Promise<NativeAddon> {
  if (loaded !== undefined) return loaded;
  const path = await findAddon();
  const { createRequire } = await import('node:module');
  try {
    loaded = createRequire(import.meta.url)(path) as NativeAddon;
  } catch (error) {
    throw new KvforgeError(
      'missing-capability',
      {
        at: 'cuda addon',
        expected: 'one that loads into this Node',
        received: error instanceof Error ? error.message : String(error),
        hint: `Build it again: ${build}.`,
      },
      { cause: error },
    );
  }
  return loaded;
}
