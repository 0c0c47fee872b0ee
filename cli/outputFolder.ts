import { randomBytes } from 'node:crypto';
import { access, constants, mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { KvforgeError } from '../dsl/errors.js';

const manifestName = 'manifest.json';
const temporary = /^\.kvforge-[0-9a-f]{12}\.tmp$/;

/**
 * Writes files and their manifest to a folder: the manifest last, each under a temporary name first, so that a reader
 * never sees half of one. Files of an earlier generation that are not written again are removed.
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
  try {
    const earlier = await earlierFiles(folder);
    await makeFolder(folder);
    for (const [name, text] of files) await replace(join(folder, name), text);
    await replace(join(folder, manifestName), manifest);
    for (const name of earlier) if (!files.has(name)) await rm(join(folder, name), { force: true });
  } catch (error) {
    throw explained(folder, error);
  }
}

/** A folder and those above it. Node's own recursive mkdir never returns below /proc, where no folder can be made. */
async function makeFolder(folder: string): Promise<void> {
  try {
    await mkdir(folder);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const present = await stat(folder).catch(() => undefined);
    if (code === 'EEXIST' && present?.isDirectory()) return;
    const parent = dirname(folder);
    const isMissing = (await stat(parent).catch(() => undefined)) === undefined;
    if (code !== 'ENOENT' || parent === folder || !isMissing) throw error;
    await makeFolder(parent);
    await mkdir(folder);
  }
}

/** Refuses a path that `writeWhole` could not write, before the work whose result goes there. */
export async function requirePlace(path: string): Promise<void> {
  try {
    await refuseFolder(path);
    await access(dirname(path), constants.W_OK);
  } catch (error) {
    throw explained(path, error);
  }
}

/** Writes one file whole or not at all. */
export async function writeWhole(path: string, text: string): Promise<void> {
  try {
    await refuseFolder(path);
    await replace(path, text);
  } catch (error) {
    throw explained(path, error);
  }
}

async function refuseFolder(path: string): Promise<void> {
  const isFolder = (await stat(path).catch(() => undefined))?.isDirectory() ?? false;
  if (isFolder) throw Object.assign(new Error('a folder'), { code: 'EISDIR' });
}

async function replace(path: string, text: string): Promise<void> {
  const own = join(dirname(path), `.kvforge-${randomBytes(6).toString('hex')}.tmp`);
  try {
    await writeFile(own, text, { flag: 'wx' });
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

/** What a manifest in the folder says was generated there; refuses a folder that holds anything else. */
async function earlierFiles(folder: string): Promise<readonly string[]> {
  const present = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [] as string[];
    throw error;
  });
  const listed = present.includes(manifestName) ? await listedFiles(join(folder, manifestName)) : undefined;
  const known = new Set(listed === undefined ? [] : [...listed, manifestName]);
  const others = present.filter((name) => !known.has(name) && !temporary.test(name));
  if (others.length > 0) {
    const shown = others.slice(0, 3).join(', ');
    throw new KvforgeError('wrong-use', {
      at: '--out',
      expected: 'a new or empty folder, or one that kvforge generated',
      received: `${folder} with ${others.length > 3 ? `${shown} and ${others.length - 3} more` : shown}`,
      hint: 'Choose another folder, or empty this one.',
    });
  }
  return [...known].filter((name) => name !== manifestName);
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

const reasons: Readonly<Record<string, string>> = {
  EACCES: 'no permission to write there',
  EPERM: 'no permission to write there',
  EROFS: 'a read-only file system',
  ENOTDIR: 'a path through a file that is no folder',
  EEXIST: 'a path through a file that is no folder',
  EISDIR: 'a folder',
  ENOENT: 'a path through a folder that does not exist',
  ELOOP: 'links that lead in a circle',
  ENOSPC: 'a full disk',
  ENAMETOOLONG: 'a name that is too long',
};

function explained(path: string, error: unknown): unknown {
  const received = reasons[(error as NodeJS.ErrnoException).code ?? ''];
  if (received === undefined) return error;
  const parts = { at: '--out', expected: `a place to write ${path}`, received, hint: 'Choose another path.' };
  return new KvforgeError('wrong-use', parts, { cause: error as Error });
}
