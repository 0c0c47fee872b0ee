import { randomBytes } from 'node:crypto';
import { open, readFile, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { KvforgeError } from '../dsl/errors.js';
import type { KvCache } from './cache.js';

/**
 * Saves a cache to a file: whole, or not at all. What the file held before stays until the new one is on the disk; a save
 * that is killed leaves it as it was, and beside it at most a temporary file `.kvforge-*.tmp`.
 *
 * @throws KvforgeError `wrong-use` when the file cannot be written
 * @example
 * await saveCache(cache, 'layer-0.safetensors');
 */
export async function saveCache(cache: KvCache, path: string): Promise<void> {
  const bytes = await cache.save();
  const own = join(dirname(path), `.kvforge-${randomBytes(6).toString('hex')}.tmp`);
  try {
    await writeThrough(own, bytes);
    await rename(own, path);
    await flushFolder(dirname(path));
  } catch (error) {
    await rm(own, { force: true }).catch(() => {});
    throw explained(path, 'a place to write', error);
  }
}

/**
 * Loads into a cache what `saveCache` wrote.
 *
 * @throws KvforgeError `wrong-use` when the file cannot be read; whatever `KvCache.load` refuses
 * @example
 * await saveCache(cache, 'layer-1.safetensors');
 * const other = KvCache.open(kernels, { sequences: 2, tokens: 256, generated: 64 });
 * await loadCache(other, 'layer-1.safetensors');
 * (await other.lengths(0)).promptTokens; // 256
 */
export async function loadCache(cache: KvCache, path: string): Promise<void> {
  const bytes = await readFile(path).catch((error: unknown) => {
    throw explained(path, 'a file to read', error);
  });
  await cache.load(bytes);
}

async function writeThrough(path: string, bytes: Uint8Array): Promise<void> {
  const file = await open(path, 'wx');
  try {
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
  const received = cause instanceof Error ? cause.message : String(cause);
  const hint = 'Check the path, its permissions and the space left.';
  return new KvforgeError('wrong-use', { at: `cache file ${path}`, expected, received, hint }, { cause });
}
