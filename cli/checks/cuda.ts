import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { runProgram } from '../../runtime/emulator/toolchain.js';
import { type Check, found, missing } from './check.js';
import { programCheck } from './host.js';

/** What a CUDA device would need. Nothing is loaded: the libraries are only looked for. */
export async function cudaChecks(): Promise<readonly Check[]> {
  const [driver, nvrtc, nvcc] = await Promise.all([
    driverCheck(),
    nvrtcCheck(),
    programCheck(
      'nvcc',
      'compiles the CUDA text ahead of time',
      'Optional: install the CUDA toolkit to compile the generated text.',
    ),
  ]);
  const addon = missing(
    'cuda addon',
    'not part of this version',
    'Use the emulator, which runs the same CUDA text on the CPU.',
  );
  return [driver, nvrtc, nvcc, addon];
}

async function driverCheck(): Promise<Check> {
  const library = await findLibrary(/^libcuda\.so(\.1)?$/);
  const version = await readFile('/proc/driver/nvidia/version', 'utf8').catch(() => undefined);
  const number = version === undefined ? undefined : /\b\d+\.\d+(\.\d+)?\b/.exec(version)?.[0];
  if (library === undefined)
    return missing('nvidia driver', 'no libcuda.so.1', 'For an NVIDIA GPU, install its driver.');
  if (number === undefined)
    return missing('nvidia driver', `${library}, but no driver is loaded`, 'Load the nvidia kernel module.');
  return found('nvidia driver', `${number}, ${library}`);
}

async function nvrtcCheck(): Promise<Check> {
  const library = await findLibrary(/^libnvrtc\.so(\.\d+)*$/);
  const fix = 'For an NVIDIA GPU: pip install nvidia-cuda-nvrtc, or install the CUDA toolkit.';
  return library === undefined ? missing('nvrtc', 'no libnvrtc.so', fix) : found('nvrtc', library);
}

/** The path of a shared library: where the environment points, then what the loader knows, then the usual folder. */
async function findLibrary(name: RegExp): Promise<string | undefined> {
  const { CUDA_HOME, CUDA_PATH, LD_LIBRARY_PATH } = process.env;
  const homes = [CUDA_HOME, CUDA_PATH, '/usr/local/cuda'].filter((home) => home !== undefined && home !== '');
  const folders = [...(LD_LIBRARY_PATH?.split(':') ?? []), ...homes.map((home) => join(home!, 'lib64'))];
  for (const folder of folders.filter((each) => each !== '' && existsSync(each))) {
    const match = (await readdir(folder).catch(() => [])).find((file) => name.test(file));
    if (match !== undefined) return join(folder, match);
  }
  const { stdout } = await runProgram(existsSync('/sbin/ldconfig') ? '/sbin/ldconfig' : 'ldconfig', ['-p']);
  for (const [, file, path] of stdout.matchAll(/^\s*(\S+) .*=> (\S+)$/gm)) if (name.test(file!)) return path;
  return undefined;
}
