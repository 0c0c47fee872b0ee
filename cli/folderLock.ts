import { randomBytes, randomUUID } from 'node:crypto';
import { lstat, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { KvforgeError } from '../dsl/errors.js';

export const lockName = '.kvforge.lock';
/** Held for the moment in which a dead lock is replaced. */
export const claimName = '.kvforge.takeover';

/**
 * What a lock file says: who writes to the folder, and which files. One that outlived its process tells a later
 * generation which files of the folder are leftovers.
 */
export interface Lock {
  readonly pid: number;
  /** Distinguishes locks of one process, and of processes that had the same id. */
  readonly id: string;
  readonly files: readonly string[];
}

export interface HeldLock {
  readonly id: string;
  /** Files of the lock that was taken over. */
  readonly leftovers: readonly string[];
  /** Gives it back; with leftovers, the list of them stays for the next generation. */
  readonly release: (leftovers?: readonly string[]) => Promise<void>;
}

/** Locks that this process holds. */
const held = new Set<string>();

/** A process has this long between creating its lock and writing its id into it. */
const graceMs = 500;

/** The lock in a folder; undefined without one. */
export async function readLock(folder: string): Promise<Lock | undefined> {
  for (let waited = 0; ; waited += 50) {
    const lock = await readOnce(join(folder, lockName));
    if (lock !== 'unwritten') return lock;
    // Its process ended before it wrote anything.
    if (waited >= graceMs) return { pid: 0, id: '', files: [] };
    await sleep(50);
  }
}

async function readOnce(path: string): Promise<Lock | undefined | 'unwritten'> {
  try {
    const { pid, id, files } = JSON.parse(await readFile(path, 'utf8')) as { [Key in keyof Lock]?: unknown };
    if (!Number.isInteger(pid) || typeof id !== 'string' || !Array.isArray(files)) return 'unwritten';
    return { pid: pid as number, id, files: files.filter((name) => typeof name === 'string') };
  } catch (error) {
    if (error instanceof SyntaxError) return 'unwritten';
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    // A link to nothing is there, and in the way.
    return (await lstat(path).catch(() => undefined)) === undefined ? undefined : 'unwritten';
  }
}

/** @throws KvforgeError `wrong-use` when the process that holds the lock is still there */
export function refuseLiving(folder: string, lock: Lock | undefined): void {
  if (lock === undefined || !isLiving(lock)) return;
  throw new KvforgeError('wrong-use', {
    at: '--out',
    expected: 'a folder that nothing else writes to',
    received: `${folder}, where another generate (process ${lock.pid}) is writing`,
    hint: `Wait for it, or choose another folder; if there is none, remove ${join(folder, lockName)}.`,
  });
}

function isLiving({ pid, id }: Lock): boolean {
  // In a container a new process often has the id of the one before.
  if (pid === process.pid) return held.has(id);
  if (pid <= 0) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/**
 * Takes the lock of a folder; one whose process is dead is taken over.
 *
 * @param files what will be written; the files of a lock that was taken over are kept with them
 * @throws KvforgeError `wrong-use` when another process has it
 */
export async function takeLock(folder: string, files: readonly string[]): Promise<HeldLock> {
  const path = join(folder, lockName);
  const id = randomUUID();
  held.add(id);
  let dead: Lock | undefined;
  try {
    for (let waited = 0; !(await created(path, id, files)); waited += 50) {
      refuseLiving(folder, await readLock(folder));
      dead = await tookOver(folder, id, files);
      if (dead) break;
      if (waited >= graceMs) throw stuck(folder);
      await sleep(50);
    }
  } catch (error) {
    held.delete(id);
    throw error;
  }
  const release = async (leftovers: readonly string[] = []) => {
    if (leftovers.length === 0) await rm(path, { force: true });
    else await putInPlace(folder, { pid: 0, id, files: leftovers });
    held.delete(id);
  };
  return { id, leftovers: dead?.files ?? [], release };
}

async function created(path: string, id: string, files: readonly string[]): Promise<boolean> {
  try {
    await writeFile(path, textOf({ pid: process.pid, id, files }), { flag: 'wx' });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

/**
 * The dead lock that was replaced by one's own.
 *
 * Of several processes that find the same dead lock, one at a time may look again and replace it; its list of files is
 * never absent meanwhile.
 */
async function tookOver(folder: string, id: string, files: readonly string[]): Promise<Lock | undefined> {
  const claim = join(folder, claimName);
  if (!(await created(claim, id, []))) return undefined;
  try {
    const dead = await readLock(folder);
    if (dead === undefined || isLiving(dead)) return undefined;
    await putInPlace(folder, { pid: process.pid, id, files: [...new Set([...files, ...dead.files])] });
    return dead;
  } finally {
    await rm(claim, { force: true });
  }
}

async function putInPlace(folder: string, lock: Lock): Promise<void> {
  const own = join(folder, `.kvforge-${randomBytes(6).toString('hex')}.tmp`);
  await writeFile(own, textOf(lock), { flag: 'wx' });
  await rename(own, join(folder, lockName));
}

const textOf = (lock: Lock) => JSON.stringify(lock);

function stuck(folder: string): KvforgeError {
  return new KvforgeError('wrong-use', {
    at: '--out',
    expected: 'a folder that nothing else writes to',
    received: `${folder}, where another generate is about to write`,
    hint: `Wait for it, or choose another folder; if there is none, remove ${join(folder, claimName)}.`,
  });
}
