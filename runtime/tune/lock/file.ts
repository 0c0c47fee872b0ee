import { randomBytes } from 'node:crypto';
import { readFile, realpath, rename, rm, stat, writeFile } from 'node:fs/promises';
import { KvforgeError } from '../../../dsl/errors.js';
import { entryName, type LockEntry, lockText } from './format.js';
import { parseLock } from './parse.js';

/** Where commands look for winners, in the folder they run in. */
export const lockName = 'kvforge.lock.json';

/** A winner takes some 600 bytes; what is larger is some other file. */
const largestBytes = 2 ** 24;

/**
 * The entries of a lock file; undefined where there is none.
 *
 * @throws KvforgeError `invalid-input` for what is damaged, with the line; `wrong-use` for what cannot be read
 */
export async function readLock(path: string): Promise<readonly LockEntry[] | undefined> {
  const refuse = (received: string, cause?: unknown): never => {
    const parts = { at: path, expected: 'a lock file that can be read', received, hint: 'Check the path.' };
    throw new KvforgeError('wrong-use', parts, { cause });
  };
  try {
    const found = await stat(path);
    if (!found.isFile()) refuse('something that is no file');
    if (found.size > largestBytes) refuse(`${found.size} bytes`);
    return parseLock(await readFile(path, 'utf8'), path);
  } catch (error) {
    if (error instanceof KvforgeError) throw error;
    const { code, message } = error as NodeJS.ErrnoException;
    return code === 'ENOENT' ? undefined : refuse(code ?? message, error);
  }
}

/**
 * Puts entries into a lock file, in the place of those with the same names; the others stay.
 *
 * @throws KvforgeError as `readLock`: a file that cannot be read is not written over
 */
export async function addToLock(path: string, entries: readonly LockEntry[]): Promise<void> {
  const merged = new Map((await readLock(path))?.map((entry) => [entryName(entry), entry]));
  for (const entry of entries) merged.set(entryName(entry), entry);
  // A link is written through: renaming would put a file of its own in its place.
  const file = await realpath(path).catch(() => path);
  const own = `${file}.${randomBytes(6).toString('hex')}.tmp`;
  try {
    await writeFile(own, lockText([...merged.values()]), { flag: 'wx' });
    await rename(own, file);
  } catch (error) {
    await rm(own, { force: true });
    throw new KvforgeError(
      'wrong-use',
      {
        at: path,
        expected: 'a lock file that can be written',
        received: (error as NodeJS.ErrnoException).code ?? String(error),
        hint: 'Check the folder and its permissions, or give --lockfile.',
      },
      { cause: error },
    );
  }
}
