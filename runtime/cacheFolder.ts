import { access, constants, lstat, mkdir, mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packagePath } from '../codegen/packageRoot.js';

/** Where compiled kernels and unpacked drivers are kept, best first: only the last may go away by itself. */
export function cacheFolders(): readonly string[] {
  const xdg = process.env.XDG_CACHE_HOME;
  return [
    packagePath('.cache', 'kvforge'),
    ...(xdg === undefined || xdg === '' ? [] : [join(xdg, 'kvforge')]),
    join(tmpdir(), `kvforge-${process.getuid?.() ?? 0}`),
  ];
}

async function isPrivate(folder: string): Promise<boolean> {
  const stat = await lstat(folder);
  return stat.isDirectory() && (stat.uid === process.getuid?.() || stat.uid === 0) && (stat.mode & 0o022) === 0;
}

/**
 * Makes the folder `parts` of a cache. What lies in a cache gets loaded into the process, so nobody else may be able to
 * put files there: anyone could have made a folder of the shared temporary folder before.
 *
 * @throws Error where the folder cannot be made, or others can write to it or to one between it and the cache
 */
export async function privateFolder(cache: string, ...parts: readonly string[]): Promise<string> {
  let folder = cache;
  await mkdir(join(cache, ...parts), { recursive: true, mode: 0o700 });
  for (const part of ['', ...parts]) {
    folder = join(folder, part);
    if (!(await isPrivate(folder))) throw new Error(`${folder} is writable by others`);
  }
  return folder;
}

/** The folder `parts` of the first cache that takes it privately and can be written; undefined if there is none. */
export async function findCacheFolder(
  parts: readonly string[],
  caches: readonly string[] = cacheFolders(),
): Promise<string | undefined> {
  for (const cache of caches) {
    try {
      const folder = await privateFolder(cache, ...parts);
      await access(folder, constants.W_OK);
      return folder;
    } catch {}
  }
  return undefined;
}

/** As `findCacheFolder`, with a fresh folder that no other process uses where there is none. */
export async function cacheFolder(parts: readonly string[], caches?: readonly string[]): Promise<string> {
  return (await findCacheFolder(parts, caches)) ?? mkdtemp(join(tmpdir(), 'kvforge-'));
}
