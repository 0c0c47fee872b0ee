import { execFile } from 'node:child_process';
import { realpath } from 'node:fs/promises';
import { packageRoot } from '../codegen/packageRoot.js';

/** The commit of kvforge's own sources; null where they are an installed package, or there is no git. */
export async function commitOf(
  folder = packageRoot,
): Promise<{ readonly hash: string; readonly modified: boolean } | null> {
  const [root, hash, changes] = await Promise.all([
    git(folder, 'rev-parse', '--show-toplevel'),
    git(folder, 'rev-parse', 'HEAD'),
    git(folder, 'status', '--porcelain'),
  ]);
  if (root === undefined || hash === undefined || changes === undefined) return null;
  // Installed into somebody's repository, the commit would be theirs.
  if (root !== (await realpath(folder))) return null;
  return { hash, modified: changes !== '' };
}

function git(folder: string, ...args: readonly string[]): Promise<string | undefined> {
  return new Promise((resolve) => {
    execFile('git', ['-C', folder, ...args], (error, stdout) => resolve(error === null ? stdout.trim() : undefined));
  });
}
