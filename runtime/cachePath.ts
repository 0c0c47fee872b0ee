import type { Stats } from 'node:fs';
import { lstat, realpath, stat } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { KvforgeError } from '../dsl/errors.js';
import { shown } from './cache/checkInput.js';

/** Where a save goes: behind the links that lead there. */
export interface Destination {
  readonly path: string;
  /** Permissions of the file that is there. */
  readonly mode?: number;
}

/** @throws KvforgeError `wrong-use` for what is no cache */
export function checkCache(cache: unknown, method: 'save' | 'load'): void {
  if (typeof (cache as Readonly<Record<string, unknown>> | undefined | null)?.[method] === 'function') return;
  const [expected, hint] = ['a cache that KvCache.open gave', 'Pass the cache first, then the path.'];
  throw new KvforgeError('wrong-use', { at: 'cache', expected, received: shown(cache), hint });
}

/** @throws KvforgeError `wrong-use` for anything but a path or a file URL: a number would be taken for an open file */
export function filePath(path: unknown): string {
  if (typeof path === 'string' && path !== '') return path;
  if (path instanceof URL && path.protocol === 'file:') {
    try {
      return fileURLToPath(path);
    } catch {}
  }
  throw new KvforgeError('wrong-use', {
    at: 'path',
    expected: 'a path, or a file: URL',
    received: path instanceof URL ? path.href : shown(path),
    hint: "Pass the path of the file, like 'layer-0.safetensors'.",
  });
}

/**
 * A save renames a file over the one before: over a link or a device, that would take it away.
 *
 * @throws KvforgeError `wrong-use` for what is there and no regular file; Error where the path leads nowhere
 */
export async function destinationOf(path: string): Promise<Destination> {
  const found = await stat(path).catch(notFound);
  if (found === undefined) {
    const link = await lstat(path).catch(notFound);
    if (link !== undefined) throw refused(path, 'a place to write', 'a symbolic link to nothing');
    return { path };
  }
  checkRegular(found, path, 'a place to write');
  return { path: await realpath(path), mode: found.mode & 0o777 };
}

/** @throws KvforgeError `wrong-use` for a folder, a pipe, a socket or a device */
export function checkRegular(found: Stats, path: string, expected: string): void {
  if (found.isFile()) return;
  const kind = found.isDirectory()
    ? 'a folder'
    : found.isFIFO()
      ? 'a pipe'
      : found.isSocket()
        ? 'a socket'
        : 'a device';
  throw refused(path, expected, kind);
}

function notFound(error: NodeJS.ErrnoException): undefined {
  if (error.code !== 'ENOENT') throw error;
}

function refused(path: string, expected: string, received: string): KvforgeError {
  const hint = 'Name a regular file.';
  return new KvforgeError('wrong-use', { at: `cache file ${path}`, expected, received, hint });
}
