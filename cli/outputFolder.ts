import { randomBytes } from 'node:crypto';
import { access, constants, mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { KvforgeError } from '../dsl/errors.js';
import { claimName, lockName, readLock, refuseLiving, takeLock } from './folderLock.js';

const manifestName = 'manifest.json';
const temporary = /^\.kvforge-[0-9a-f]{12}\.tmp$/;

/**
 * Writes files and their manifest to a folder: the manifest last, each under a temporary name first, so that a reader
 * never sees half of one. Files of an earlier generation that are not written again are removed. One process at a time:
 * a lock file says who, and which files an interruption may leave.
 *
 * @param files plain file names to texts
 * @throws KvforgeError `wrong-use` when the folder holds anything that kvforge did not generate
 */
export async function writeGenerated(
  folder: string,
  files: ReadonlyMap<string, string>,
  manifest: string,
): Promise<void> {
  for (const name of files.keys()) {
    if (!isPlainName(name)) throw new Error(`a generated file is called ${JSON.stringify(name)}`);
  }
  requireName(folder, '--out');
  try {
    await contentsOf(folder);
    await makeFolder(folder);
    const lock = await takeLock(folder, [...files.keys()]);
    // Nothing is removed from a folder that is refused, so that its list stays too.
    const before = await contentsOf(folder, lock.id).catch(async (error: unknown) => {
      await lock.release(lock.leftovers);
      throw error;
    });
    try {
      await writeLocked(folder, files, manifest, before);
    } finally {
      await lock.release();
    }
  } catch (error) {
    throw explained(folder, '--out', error);
  }
}

async function writeLocked(
  folder: string,
  files: ReadonlyMap<string, string>,
  manifest: string,
  before: Contents,
): Promise<void> {
  try {
    for (const [name, text] of files) await replace(join(folder, name), text);
    await replace(join(folder, manifestName), manifest);
  } catch (error) {
    // Without a manifest nobody could tell them from files of the user.
    for (const name of [...files.keys(), ...before.leftovers]) {
      if (!before.listed.includes(name)) await rm(join(folder, name), { force: true });
    }
    throw error;
  }
  for (const name of [...before.listed, ...before.leftovers]) {
    if (!files.has(name)) await rm(join(folder, name), { force: true });
  }
  for (const name of before.temporaries) await rm(join(folder, name), { force: true });
}

/** A folder and those above it. Node's own recursive mkdir never returns below /proc, where no folder can be made. */
async function makeFolder(folder: string): Promise<void> {
  try {
    await mkdir(folder);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const present = await statOf(folder);
    if (code === 'EEXIST' && present?.isDirectory()) return;
    if (code === 'EEXIST' && present === undefined) throw Object.assign(new Error('a link'), { code: danglingLink });
    const parent = dirname(folder);
    if (code !== 'ENOENT' || parent === folder || (await statOf(parent)) !== undefined) throw error;
    await makeFolder(parent);
    // Another process may make it meanwhile.
    await makeFolder(folder);
  }
}

const statOf = (path: string) => stat(path).catch(() => undefined);

/** @throws KvforgeError `wrong-use` for an empty path */
function requireName(path: string, option: string): void {
  if (path.trim() !== '') return;
  const hint = 'A variable in the command may be empty.';
  throw new KvforgeError('wrong-use', { at: option, expected: 'a path', received: JSON.stringify(path), hint });
}

/**
 * Refuses a path that `writeWhole` could not write, before the work whose result goes there.
 *
 * @param option that names the path, for errors
 */
export async function requirePlace(path: string, option: string): Promise<void> {
  requireName(path, option);
  try {
    await refuseFolder(path);
    await access(dirname(path), constants.W_OK);
  } catch (error) {
    throw explained(path, option, error);
  }
}

/** Writes one file whole or not at all. */
export async function writeWhole(path: string, option: string, contents: string | Uint8Array): Promise<void> {
  try {
    await refuseFolder(path);
    await replace(path, contents);
  } catch (error) {
    throw explained(path, option, error);
  }
}

async function refuseFolder(path: string): Promise<void> {
  if ((await statOf(path))?.isDirectory()) throw Object.assign(new Error('a folder'), { code: 'EISDIR' });
}

async function replace(path: string, contents: string | Uint8Array): Promise<void> {
  const own = join(dirname(path), `.kvforge-${randomBytes(6).toString('hex')}.tmp`);
  try {
    await writeFile(own, contents, { flag: 'wx' });
    // A link of that name is replaced, not followed: nothing outside of the folder is written.
    await rename(own, path);
  } catch (error) {
    await rm(own, { force: true });
    throw error;
  }
}

function isPlainName(name: string): boolean {
  return name === basename(name) && /^[A-Za-z0-9_][A-Za-z0-9_.-]*$/.test(name);
}

interface Contents {
  /** What the manifest names. */
  readonly listed: readonly string[];
  /** What an interrupted generation has left, or may have. */
  readonly leftovers: readonly string[];
  readonly temporaries: readonly string[];
}

/**
 * What of the folder kvforge has generated.
 *
 * @param own the lock that the caller holds
 * @throws KvforgeError `wrong-use` for a folder that holds anything else, or that another process writes to
 */
async function contentsOf(folder: string, own?: string): Promise<Contents> {
  const lock = await readLock(folder);
  if (lock?.id !== own) refuseLiving(folder, lock);
  const entries = await readdir(folder, { withFileTypes: true }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
  const present = entries.map(({ name }) => name);
  const manifest = present.includes(manifestName) ? await listedFiles(join(folder, manifestName)) : undefined;
  const listed = manifest ?? [];
  const leftovers = (lock?.files ?? []).filter(isPlainName);
  const known = new Set([
    ...listed,
    ...leftovers,
    lockName,
    claimName,
    ...(manifest === undefined ? [] : [manifestName]),
  ]);
  const others = present.filter((name) => !known.has(name) && !temporary.test(name));
  if (others.length > 0) {
    // Another process has begun or ended while this one looked.
    if ((await readLock(folder))?.id !== lock?.id) return contentsOf(folder, own);
    const shown = others.slice(0, 3).join(', ');
    throw new KvforgeError('wrong-use', {
      at: '--out',
      expected: 'a new or empty folder, or one that kvforge generated',
      received: `${folder} with ${others.length > 3 ? `${shown} and ${others.length - 3} more` : shown}`,
      hint: 'Choose another folder, or empty this one.',
    });
  }
  const inTheWay = entries.find((entry) => entry.isDirectory());
  if (inTheWay) {
    throw new KvforgeError('wrong-use', {
      at: '--out',
      expected: `a place to write ${join(folder, inTheWay.name)}`,
      received: 'a folder',
      hint: 'Move it away, or choose another folder.',
    });
  }
  return { listed, leftovers, temporaries: present.filter((name) => temporary.test(name)) };
}

/** The files of a manifest that kvforge wrote; undefined for any other file of that name. */
async function listedFiles(path: string): Promise<readonly string[] | undefined> {
  try {
    const manifest = JSON.parse(await readFile(path, 'utf8')) as {
      format?: unknown;
      kernels?: unknown;
      files?: object;
    };
    if (manifest.format !== 1 || !Array.isArray(manifest.kernels)) return undefined;
    return Object.keys(manifest.files ?? {}).filter(isPlainName);
  } catch {
    return undefined;
  }
}

/** Node has no code for it: a folder cannot be made there, and nothing is there. */
const danglingLink = 'DANGLING';

const reasons: Readonly<Record<string, string>> = {
  EACCES: 'no permission to write there',
  EPERM: 'no permission to write there',
  EROFS: 'a read-only file system',
  ENOTDIR: 'a path through a file that is no folder',
  EEXIST: 'a path through a file that is no folder',
  EISDIR: 'a folder',
  ENOENT: 'a path through a folder that does not exist',
  [danglingLink]: 'a link to nothing',
  ELOOP: 'links that lead in a circle',
  ENOSPC: 'a full disk',
  ENAMETOOLONG: 'a name that is too long',
};

function explained(path: string, option: string, error: unknown): unknown {
  const received = reasons[(error as NodeJS.ErrnoException).code ?? ''];
  if (received === undefined) return error;
  const parts = { at: option, expected: `a place to write ${path}`, received, hint: 'Choose another path.' };
  return new KvforgeError('wrong-use', parts, { cause: error as Error });
}
