import { createHash, randomBytes } from 'node:crypto';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { cacheFolder } from '../cacheFolder.js';

/** Of the files; another one makes them all be compiled again. */
const format = 'kvforge-cuda-1';
const digestBytes = 32;

/**
 * Compiled kernels on disk. A file is the SHA-256 of what follows, then the binary: one that a crash or a full disk cut
 * short is noticed, and compiled again. Files appear whole, by a rename.
 */
export class BinaryCache {
  private constructor(readonly folder: string) {}

  /** @param folder which only you should be able to write to; `cacheFolders()` if not given */
  static async open(folder?: string): Promise<BinaryCache> {
    if (folder === undefined) return new BinaryCache(await cacheFolder(['cuda']));
    // A folder that cannot be made is one that cannot be written.
    await mkdir(folder, { recursive: true, mode: 0o700 }).catch(() => undefined);
    return new BinaryCache(folder);
  }

  /** The name of a binary: a hash of everything that it depends on. */
  static key(parts: readonly string[]): string {
    const hash = createHash('sha256').update(format);
    for (const part of parts) hash.update(`${Buffer.byteLength(part)}:${part}`);
    return hash.digest('hex');
  }

  /** Undefined where there is none, or it is damaged. */
  async get(key: string): Promise<Uint8Array | undefined> {
    const bytes = await readFile(this.#path(key)).catch(() => undefined);
    if (bytes === undefined || bytes.length <= digestBytes) return undefined;
    const image = bytes.subarray(digestBytes);
    return digest(image).equals(bytes.subarray(0, digestBytes)) ? image : undefined;
  }

  /** A cache that cannot be written costs time, and nothing else: the failure is left to `kvforge doctor`. */
  async put(key: string, image: Uint8Array): Promise<void> {
    const temporary = `${this.#path(key)}.${process.pid}.${randomBytes(4).toString('hex')}`;
    try {
      await writeFile(temporary, Buffer.concat([digest(image), image]), { mode: 0o600 });
      await rename(temporary, this.#path(key));
    } catch {
      await rm(temporary, { force: true }).catch(() => undefined);
    }
  }

  #path(key: string): string {
    return join(this.folder, `${key}.bin`);
  }
}

function digest(bytes: Uint8Array): Buffer {
  return createHash('sha256').update(bytes).digest();
}
