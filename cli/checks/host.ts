import { readFile } from 'node:fs/promises';
import { builtinsFile } from '../../codegen/builtins.js';
import type { FunctionIr } from '../../codegen/ir.js';
import { cacheFolders, findCacheFolder } from '../../runtime/cacheFolder.js';
import { runProgram } from '../../runtime/emulator/toolchain.js';
import { type Check, found, guarded, missing } from './check.js';

const leastNode = 20;

/** Node, the package's own files, and where it keeps what it compiles. */
export async function hostChecks(): Promise<readonly Check[]> {
  return Promise.all([
    nodeCheck(),
    guarded('device functions', builtinsCheck),
    guarded('cache folder', () => cacheCheck()),
  ]);
}

async function nodeCheck(): Promise<Check> {
  const detail = `${process.version}, ${process.platform}-${process.arch}`;
  const enough = Number(process.versions.node.split('.')[0]) >= leastNode;
  return enough ? found('node', detail) : missing('node', detail, `Install Node ${leastNode} or later.`);
}

async function builtinsCheck(): Promise<Check> {
  const functions = JSON.parse(await readFile(builtinsFile, 'utf8')) as readonly FunctionIr[];
  return found('device functions', `${functions.length} built-in ones in ${builtinsFile}`);
}

/** The last of the folders is temporary: it serves, but what is compiled there may have to be compiled again. */
export async function cacheCheck(caches: readonly string[] = cacheFolders()): Promise<Check> {
  const folder = await findCacheFolder([], caches.slice(0, -1));
  if (folder !== undefined) return found('cache folder', folder);
  return missing(
    'cache folder',
    `${caches.slice(0, -1).join(' and ')} cannot be written, or others can write there too`,
    'Set XDG_CACHE_HOME to a folder that only you can write to; until then a temporary one serves.',
  );
}

/** The first line of `program --version`. */
export async function programCheck(program: string, use: string, fix: string): Promise<Check> {
  const { code, stdout } = await runProgram(program, ['--version']);
  if (code !== 0) return missing(program, code === 'ENOENT' ? 'no such program' : `${program} --version fails`, fix);
  const line = program === 'nvcc' ? stdout.split('\n').find((text) => text.includes('release')) : stdout.split('\n')[0];
  return found(program, `${line ?? 'unknown version'}; ${use}`);
}
