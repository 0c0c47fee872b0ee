import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { packagePath } from '../../../codegen/packageRoot.js';
import { findAddon } from '../../../runtime/cuda/addon.js';

/** A folder of this process, with what the fakes were built to. */
export interface Fakes {
  readonly folder: string;
  readonly libcuda: string;
  readonly libnvrtc: string;
  /** Why there are none; tests skip with it. */
  readonly missing: string | undefined;
}

const addonFolder = packagePath('runtime', 'cuda', 'addon');

/** Node's own headers, where its installation has them. */
function nodeHeaders(): string | undefined {
  const prefix = resolve(dirname(process.execPath), '..');
  return existsSync(join(prefix, 'include', 'node', 'node_api.h')) ? prefix : undefined;
}

async function isCurrent(): Promise<boolean> {
  const built = await findAddon().then(
    (path) => statSync(path).mtimeMs,
    () => 0,
  );
  const sources = readdirSync(addonFolder).filter((name) => /\.(cc|h|gyp)$/.test(name));
  return sources.every((name) => statSync(join(addonFolder, name)).mtimeMs < built);
}

/** Whether a program that node-gyp runs is not there. */
function isAbsent(program: string): boolean {
  return (spawnSync(program, ['--version']).error as { code?: string } | undefined)?.code === 'ENOENT';
}

/** Builds the addon unless it is there and newer than its sources; one process at a time. */
async function buildAddon(): Promise<string | undefined> {
  const lock = packagePath('.cache', 'addon.lock');
  mkdirSync(packagePath('.cache'), { recursive: true });
  while (!(await isCurrent())) {
    const headers = nodeHeaders();
    if (headers === undefined) return 'no headers of Node to build the addon with';
    const absent = ['python3', 'make', 'g++'].filter(isAbsent);
    if (absent.length > 0) return `no ${absent.join(', ')} to build the addon with`;
    try {
      mkdirSync(lock);
    } catch {
      // One that was broken off leaves its lock.
      if (ageOf(lock) > 300_000) rmSync(lock, { recursive: true, force: true });
      await new Promise((done) => setTimeout(done, 200));
      continue;
    }
    try {
      // Built while this process waited.
      if (await isCurrent()) return undefined;
      const nodeGyp = createRequire(import.meta.url).resolve('node-gyp/bin/node-gyp.js');
      const args = [nodeGyp, 'rebuild', '--directory', addonFolder, '--nodedir', headers, '--loglevel', 'error'];
      execFileSync(process.execPath, args, { stdio: 'pipe' });
    } finally {
      rmSync(lock, { recursive: true, force: true });
    }
    // Else it would be built again and again.
    if (!(await isCurrent())) throw new Error('the addon that was just built is older than its sources: set the clock');
  }
  return undefined;
}

/** In milliseconds; 0 where there is no such folder. */
function ageOf(folder: string): number {
  const stat = statSync(folder, { throwIfNoEntry: false });
  return stat === undefined ? 0 : Date.now() - stat.mtimeMs;
}

/** Builds the fake libraries, and the addon where it is missing or older than its sources. */
export async function buildFakes(): Promise<Fakes> {
  const folder = mkdtempSync(join(tmpdir(), 'kvforge-fake-'));
  const [libcuda, libnvrtc] = [join(folder, 'libcuda.so'), join(folder, 'libnvrtc.so')];
  const missing = process.platform === 'linux' ? compileFakes(libcuda, libnvrtc) : 'the fake driver is for Linux';
  return { folder, libcuda, libnvrtc, missing: missing ?? (await buildAddon()) };
}

function compileFakes(libcuda: string, libnvrtc: string): string | undefined {
  try {
    for (const [name, output] of [
      ['libcuda.c', libcuda],
      ['libnvrtc.c', libnvrtc],
    ] as const) {
      const source = join(import.meta.dirname, 'fake', name);
      execFileSync('g++', ['-x', 'c', '-shared', '-fPIC', '-O1', source, '-o', output, '-lpthread'], { stdio: 'pipe' });
    }
    return undefined;
  } catch (error) {
    if ((error as { code?: string }).code === 'ENOENT') return 'no g++ to build the fake driver with';
    throw error;
  }
}
