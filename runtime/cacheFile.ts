import { randomBytes } from 'node:crypto';
import { open, readFile, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { KvforgeError } from '../dsl/errors.js';
import { checkFileBytes } from './cache/fileBytes.js';
import type { KvCache } from './cache.js';
import { checkCache, checkRegular, type Destination, destinationOf, filePath } from './cachePath.js';

/**
 * Saves a cache to a file: whole, or not at all. What the file held before stays until the new one is on the disk; a save
 * that is killed leaves it as it was, and beside it at most a temporary file `.kvforge-*.tmp`. A symbolic link is
 * followed, and a file that was there keeps its permissions.
 *
 * @throws KvforgeError `wrong-use` when the file cannot be written, or is a folder, a pipe or a device; whatever
 * `KvCache.save` refuses
 * @example
 * await saveCache(cache, 'layer-0.safetensors');
 */
export async function saveCache(cache: KvCache, path: string | URL): Promise<void> {
  checkCache(cache, 'save');
  const named = filePath(path);
  const placed = (error: unknown) => explained(named, 'a place to write', error);
  const destination = await destinationOf(named).catch((error: unknown) => {
    throw placed(error);
  });
  const bytes = await cache.save();
  const folder = dirname(destination.path);
  const own = join(folder, `.kvforge-${randomBytes(6).toString('hex')}.tmp`);
  try {
    await writeThrough(own, bytes, destination);
    await rename(own, destination.path);
    await flushFolder(folder);
  } catch (error) {
    await rm(own, { force: true }).catch(() => {});
    throw placed(error);
  }
}

/**
 * Loads into a cache what `saveCache` wrote.
 *
 * @throws KvforgeError `wrong-use` when the file cannot be read, or is none; `does-not-fit` for one of 2 GiB or more;
 * whatever `KvCache.load` refuses
 * @example
 * await saveCache(cache, 'layer-1.safetensors');
 * const other = KvCache.open(kernels, { sequences: 2, tokens: 256, generated: 64 });
 * await loadCache(other, 'layer-1.safetensors');
 * (await other.lengths(0)).promptTokens; // 256
 */
export async function loadCache(cache: KvCache, path: string | URL): Promise<void> {
  checkCache(cache, 'load');
  const named = filePath(path);
  await cache.load(
    await readWhole(named).catch((error: unknown) => {
      throw explained(named, 'a file to read', error);
    }),
  );
}

async function readWhole(path: string): Promise<Uint8Array> {
  const found = await stat(path);
  // A pipe would be waited for, and a device may never end.
  checkRegular(found, path, 'a file to read');
  checkFileBytes(found.size);
  return readFile(path);
}

async function writeThrough(path: string, bytes: Uint8Array, { mode }: Destination): Promise<void> {
  const file = await open(path, 'wx', mode);
  try {
    // The process's mask may have taken from the permissions that the file had.
    if (mode !== undefined) await file.chmod(mode);
    await file.writeFile(bytes);
    // Without this a crash of the machine may leave the new name with none of the bytes.
    await file.sync();
  } finally {
    await file.close();
  }
}

/** The new name is on the disk only once its folder is; where folders cannot be flushed, the rename has to do. */
async function flushFolder(path: string): Promise<void> {
  const folder = await open(path, 'r').catch(() => undefined);
  await folder?.sync().catch(() => {});
  await folder?.close();
}

function explained(path: string, expected: string, cause: unknown): KvforgeError {
  if (cause instanceof KvforgeError) return cause;
  const received = cause instanceof Error ? cause.message : String(cause);
  const hint = 'Check the path, its permissions and the space left.';
  return new KvforgeError('wrong-use', { at: `cache file ${path}`, expected, received, hint }, { cause });
}
