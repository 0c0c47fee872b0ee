import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { packagePath } from '../../codegen/packageRoot.js';
import { KvforgeError } from '../../dsl/errors.js';
import { cacheFolder } from '../cacheFolder.js';

/** The compiler of the emulator, and where its results are kept. */
export interface Toolchain {
  readonly compiler: string;
  readonly version: string;
  /** Folder of the C++ sources of the emulator. */
  readonly sources: string;
  readonly cache: string;
  /** Options that name instructions of this processor. */
  readonly architecture: readonly string[];
  /** Hash of all that a compiled kernel depends on besides its own text and options. */
  readonly fingerprint: string;
}

export interface Built {
  readonly library: string;
  /** Base name of the text, as reports name it. */
  readonly file: string;
}

interface Outcome {
  readonly code: number | string;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs a program to its end, with messages in plain English; one that does not exist gives code 'ENOENT'. */
export function runProgram(program: string, args: readonly string[]): Promise<Outcome> {
  return new Promise((resolve) => {
    execFile(program, args, { maxBuffer: 1 << 26, env: { ...process.env, LC_ALL: 'C' } }, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : (error.code ?? 'killed'), stdout, stderr });
    });
  });
}

function architectureOptions(): readonly string[] {
  if (process.arch !== 'x64') return [];
  try {
    const flags = new Set(/^flags\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1]?.split(' '));
    // Without these, fmaf() is a call that emulates it. Contraction stays off, so results do not depend on them.
    return ['avx2', 'fma', 'f16c'].every((flag) => flags.has(flag)) ? ['-mavx2', '-mfma', '-mf16c'] : [];
  } catch {
    return [];
  }
}

export async function openToolchain(compiler: string, cache?: string): Promise<Toolchain> {
  const sources = packagePath('runtime', 'emulator');
  if (!existsSync(join(sources, 'host.cc'))) {
    throw new KvforgeError('missing-capability', {
      at: 'emulator',
      expected: 'runtime/emulator/host.cc in the package',
      received: 'no such file',
      hint: 'Install kvforge again.',
    });
  }
  const { code, stdout } = await runProgram(compiler, ['--version']);
  if (code !== 0) {
    throw new KvforgeError('missing-capability', {
      at: 'emulator',
      expected: `the C++ compiler ${compiler}`,
      received: code === 'ENOENT' ? 'no such program' : `exit code ${code} from ${compiler} --version`,
      hint: 'Install it: apt-get install g++.',
    });
  }
  const version = stdout.split('\n')[0] ?? '';
  const architecture = architectureOptions();
  const hash = createHash('sha256').update(version).update(architecture.join(' '));
  for (const name of (await readdir(sources)).filter((name) => /\.(cc|h|cuh)$/.test(name)).sort()) {
    hash.update(name).update(await readFile(join(sources, name)));
  }
  const fingerprint = hash.digest('hex');
  return { compiler, version, sources, cache: cache ?? (await cacheFolder(['emulator'])), architecture, fingerprint };
}

/**
 * Fills the folder `key` of the cache by `build`, unless it is there. The folder appears whole, by a rename, so that
 * processes side by side never see half of it; where two build the same, the later result is dropped.
 */
async function cached(
  toolchain: Toolchain,
  key: string,
  file: string,
  build: (folder: string) => Promise<void>,
): Promise<string> {
  const folder = join(toolchain.cache, key);
  if (existsSync(join(folder, file))) return join(folder, file);
  await mkdir(toolchain.cache, { recursive: true, mode: 0o700 });
  const temporary = `${folder}.${process.pid}.${randomBytes(4).toString('hex')}`;
  await mkdir(temporary, { mode: 0o700 });
  try {
    await build(temporary);
    await rename(temporary, folder).catch((error: unknown) => {
      if (!existsSync(join(folder, file))) throw error;
    });
  } finally {
    await rm(temporary, { recursive: true, force: true });
  }
  return join(folder, file);
}

function keyOf(...parts: readonly string[]): string {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(`${part.length}:${part}`);
  return hash.digest('hex').slice(0, 32);
}

/** The first error g++ reports, as a typed error. */
function compileError(file: string, stderr: string): KvforgeError {
  const found = /^(?:(.*?):(\d+):(?:\d+:)? )?(?:fatal )?error: (.*)$/m.exec(stderr);
  const at = found?.[1] === undefined ? file : `${basename(found[1])}:${found[2]}`;
  return new KvforgeError('compile-failed', {
    at,
    expected: 'text that g++ compiles',
    received: `"${found?.[3] ?? stderr.trim().split('\n')[0] ?? 'no message'}"`,
    hint: 'Fix the emitter or the template that wrote this line, or add what it uses to both files prelude.cuh.',
  });
}

/** Compiles the host program of the emulator, or finds it in the cache. */
export function buildHost(toolchain: Toolchain): Promise<string> {
  const options = ['-std=c++20', '-O2', '-ffp-contract=off', ...toolchain.architecture, '-rdynamic'];
  return cached(toolchain, keyOf('host', toolchain.fingerprint, ...options), 'host', async (folder) => {
    const source = join(toolchain.sources, 'host.cc');
    const output = ['-o', join(folder, 'host'), '-ldl', '-lm'];
    const { code, stderr } = await runProgram(toolchain.compiler, [...options, source, ...output]);
    if (code !== 0) throw compileError('host.cc', stderr);
  });
}

const commonOptions = [
  '-std=c++20',
  '-fPIC',
  '-w',
  // Kernels read words as vectors and floats; nvcc does not assume that types tell pointers apart.
  '-fno-strict-aliasing',
  // The same bits on every processor: a product is fused with a sum only where the text says fmaf().
  '-ffp-contract=off',
  '-fno-math-errno',
  '-fno-exceptions',
  '-fno-rtti',
  '-fno-extern-tls-init',
  '-fno-plt',
  // A loop must not become a call of memset or memcpy: those are not instrumented.
  '-fno-tree-loop-distribute-patterns',
  // Symbols come from the host program: neither the C library nor the sanitizers' own libraries are linked.
  '-shared',
  '-nostdlib',
];
const checkedOptions = [
  '-O1',
  '-g',
  // Reports need lines and inlined calls, not where variables live, which takes a third of the compiler's time.
  '-fno-var-tracking',
  '-finline-small-functions',
  '-fsanitize=thread,bounds,alignment,shift-exponent,integer-divide-by-zero',
];

/** Local variables start as a pattern, which no sum survives, instead of what the register held; g++ from 12 on. */
function patternOptions(version: string): readonly string[] {
  const [, major] = /\b(\d+)\.\d+\.\d+\b/.exec(version) ?? [];
  return Number(major) >= 12 ? ['-ftrivial-auto-var-init=pattern'] : [];
}

/** Compiles the text of one kernel, or finds it in the cache. */
export async function buildKernel(
  toolchain: Toolchain,
  name: string,
  source: string,
  checked: boolean,
): Promise<Built> {
  const file = basename(name) || 'kernel.cu';
  const mode = checked ? [...checkedOptions, ...patternOptions(toolchain.version)] : ['-O2', '-g1'];
  const options = [...commonOptions, ...toolchain.architecture, ...mode];
  const key = keyOf('kernel', toolchain.fingerprint, file, source, ...options);
  const library = await cached(toolchain, key, 'kernel.so', async (folder) => {
    const text = join(folder, file);
    await writeFile(text, source);
    const args = [...options, '-I', toolchain.sources, '-x', 'c++', text, '-o', join(folder, 'kernel.so')];
    const { code, stderr } = await runProgram(toolchain.compiler, args);
    if (code !== 0) throw compileError(file, stderr);
  });
  return { library, file };
}
