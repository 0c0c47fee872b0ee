import { realpathSync, statSync } from 'node:fs';
import { basename } from 'node:path';
import { KvforgeError } from '../../dsl/errors.js';
import { told } from './faults.js';
import { nvrtcLibraries, problemOf } from './libraries.js';
import { isNativeFailure, type NativeAddon, type NvrtcFacts } from './nativeTypes.js';

/**
 * Opens NVRTC.
 *
 * @throws KvforgeError `missing-capability`
 */
export async function openNvrtc(addon: NativeAddon): Promise<NvrtcFacts> {
  const { paths, variable } = nvrtcLibraries();
  try {
    return await addon.openNvrtc(paths);
  } catch (error) {
    if (!isNativeFailure(error)) throw error;
    throw new KvforgeError(
      'missing-capability',
      {
        at: 'nvrtc',
        expected: variable === undefined ? 'NVRTC, which compiles CUDA text' : `${variable} to name NVRTC's library`,
        received:
          error.call === 'library' ? (variable === undefined ? problemOf(error.text, paths) : error.text) : told(error),
        hint:
          variable === undefined
            ? 'Install it: pip install nvidia-cuda-nvrtc, or the CUDA toolkit; KVFORGE_LIBNVRTC names a file elsewhere.'
            : `Correct ${variable}, or unset it to search the usual folders.`,
      },
      { cause: error },
    );
  }
}

/**
 * Stands for the version of NVRTC without opening it, which takes longer than loading compiled kernels: the name, size
 * and time of the library's file. Where only the loader finds it, it is opened after all.
 */
export async function nvrtcIdentity(addon: NativeAddon): Promise<string> {
  const { paths } = nvrtcLibraries();
  for (const path of paths) {
    // A bare name: the loader does not look for it in the working directory.
    if (basename(path) === path) continue;
    try {
      const file = realpathSync(path);
      const { size, mtimeMs } = statSync(file);
      return `${file} ${size} ${mtimeMs}`;
    } catch {
      // A path that openNvrtc will complain about.
    }
  }
  return (await openNvrtc(addon)).version;
}
