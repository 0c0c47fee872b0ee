import { execFile } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { afterAll, test } from 'vitest';
import type { KernelText, Launch } from '../../../runtime/device.js';
import { conformanceKernels } from '../conformance/kernels.js';
import { buildFakes } from './fake.js';

export const fakes = await buildFakes();
process.env.KVFORGE_LIBCUDA = fakes.libcuda;
process.env.KVFORGE_LIBNVRTC = fakes.libnvrtc;
afterAll(() => rmSync(fakes.folder, { recursive: true }));

/** A test that needs the addon and the fake driver. */
export function fakeTest(name: string, run: () => Promise<void>): void {
  test(name, async (context) => {
    if (fakes.missing !== undefined) context.skip(fakes.missing);
    await run();
  });
}

/** Sets environment variables, which the fakes read at every call, while `run` goes on. */
export async function withEnvironment<T>(values: Readonly<Record<string, string>>, run: () => Promise<T>): Promise<T> {
  const before = Object.keys(values).map((name) => [name, process.env[name]] as const);
  Object.assign(process.env, values);
  try {
    return await run();
  } finally {
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  }
}

let logs = 0;

/** The lines that a fake writes to its log while `run` goes on. */
export async function logged(variable: 'FAKE_CUDA_LOG' | 'FAKE_NVRTC_LOG', run: () => Promise<void>) {
  const file = join(fakes.folder, `log-${logs++}`);
  await writeFile(file, '');
  await withEnvironment({ [variable]: file }, run);
  return readFileSync(file, 'utf8').split('\n').slice(0, -1);
}

const { grow } = conformanceKernels('cuda');

/** A kernel of that name with one buffer, `output`; see fake/libcuda.c for what the names do. */
export function kernelNamed(entry: string, change: Partial<KernelText['descriptor']> = {}): KernelText {
  return {
    descriptor: { ...grow.descriptor, entry, file: `${entry}.cu`, ...change },
    source: grow.source.replace(/\bgrow\b/g, entry),
  };
}

export const once = (kernel: Launch['kernel'] | undefined, buffer: Launch['bindings'][string]['buffer']): Launch => ({
  kernel: kernel!,
  grid: [1, 1, 1],
  bindings: { output: { buffer } },
});

export interface Ended {
  readonly code: number | string;
  /** What it wrote to stdout, then what to stderr. */
  readonly out: string;
  readonly ms: number;
}

/** Runs a script in a process of its own, with CudaDevice and what this file exports for scripts. */
export async function runScript(body: string, env: Readonly<Record<string, string>> = {}): Promise<Ended> {
  const here = (path: string) => JSON.stringify(resolve(import.meta.dirname, path));
  const script = join(fakes.folder, `script-${logs++}.mts`);
  await writeFile(
    script,
    `import { readFileSync } from 'node:fs';
import { CudaDevice } from ${here('../../../runtime/cuda/cudaDevice.ts')};
import { conformanceKernels } from ${here('../conformance/kernels.ts')};
const { grow } = conformanceKernels('cuda');
const kernelNamed = (entry: string) => ({
  descriptor: { ...grow.descriptor, entry, file: entry + '.cu' },
  source: grow.source.replace(/\\bgrow\\b/g, entry),
});
const once = (kernel: any, buffer: any) => ({ kernel, grid: [1, 1, 1] as const, bindings: { output: { buffer } } });
const open = (options = {}) => CudaDevice.open({ cache: ${JSON.stringify(fakes.folder)}, ...options });
const calls = () => readFileSync(process.env.FAKE_CUDA_LOG!, 'utf8');
const told = (error: any) => console.log(error.code + ': ' + error.message);
${body}`,
  );
  const args = ['--expose-gc', '--import', import.meta.resolve('tsx'), script];
  const started = performance.now();
  return new Promise((done) => {
    execFile(
      process.execPath,
      args,
      { timeout: 30_000, env: { ...process.env, FAKE_CUDA_LOG: `${script}.log`, ...env } },
      (error, out, err) => {
        const code = error === null ? 0 : (error.code ?? error.signal ?? 'unknown');
        done({ code, out: `${out}${err}`.trim(), ms: performance.now() - started });
      },
    );
  });
}
