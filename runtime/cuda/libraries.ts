import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';

const windows = process.platform === 'win32';

/** Where a library may be, best first. */
export interface Candidates {
  /** Paths and names for the system's loader. */
  readonly paths: readonly string[];
  /** The environment variable that named the only one; nothing else is tried then. */
  readonly variable?: string;
}

function overriddenBy(variable: string): Candidates | undefined {
  const path = process.env[variable];
  return path === undefined || path === '' ? undefined : { paths: [path], variable };
}

/** The driver's library. `KVFORGE_LIBCUDA` names another. */
export function driverLibraries(): Candidates {
  return overriddenBy('KVFORGE_LIBCUDA') ?? { paths: windows ? ['nvcuda.dll'] : ['libcuda.so.1', 'libcuda.so'] };
}

const nvrtcNames = windows
  ? ['nvrtc64_130_0.dll', 'nvrtc64_120_0.dll', 'nvrtc64_112_0.dll']
  : ['libnvrtc.so.13', 'libnvrtc.so.12', 'libnvrtc.so.11.2', 'libnvrtc.so'];

/** Folders of NVRTC outside the loader's search: the toolkit's, and those of Python's wheels. */
function nvrtcFolders(): readonly string[] {
  const { CUDA_HOME, CUDA_PATH, LD_LIBRARY_PATH, VIRTUAL_ENV, CONDA_PREFIX } = process.env;
  const given = (paths: readonly (string | undefined)[]) => paths.filter((path) => path !== undefined && path !== '');
  const toolkits = given([CUDA_HOME, CUDA_PATH, windows ? undefined : '/usr/local/cuda']);
  const searched = windows ? [] : (LD_LIBRARY_PATH?.split(':') ?? []);
  const prefixes = given([VIRTUAL_ENV, CONDA_PREFIX, windows ? undefined : '/usr/local', windows ? undefined : '/usr']);
  const wheels = prefixes.flatMap((prefix) => sitePackages(prefix!)).flatMap(wheelFolders);
  return [
    ...given(searched),
    ...toolkits.map((home) => join(home!, windows ? 'bin' : 'lib64')),
    ...(windows ? [] : ['/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu', '/usr/lib64']),
    ...wheels,
  ] as string[];
}

function sitePackages(prefix: string): readonly string[] {
  if (windows) return [join(prefix, 'Lib', 'site-packages')];
  const lib = join(prefix, 'lib');
  const versions = existsSync(lib) ? readdirSync(lib).filter((name) => /^python3(\.\d+)?$/.test(name)) : [];
  return versions.flatMap((name) => [join(lib, name, 'site-packages'), join(lib, name, 'dist-packages')]);
}

function wheelFolders(site: string): readonly string[] {
  const leaf = windows ? 'bin' : 'lib';
  return ['cu13', 'cuda_nvrtc'].map((name) => join(site, 'nvidia', name, leaf));
}

/** NVRTC's library: files that exist, then names for the loader. `KVFORGE_LIBNVRTC` names another. */
export function nvrtcLibraries(): Candidates {
  const overridden = overriddenBy('KVFORGE_LIBNVRTC');
  if (overridden !== undefined) return overridden;
  const files = nvrtcFolders().flatMap((folder) => nvrtcNames.map((name) => join(folder, name)));
  return { paths: [...files.filter((file) => existsSync(file)), ...nvrtcNames] };
}

/**
 * What the loader said of libraries that did not open, without those that are simply not there: what is left is a file
 * that should have opened.
 */
export function problemOf(text: string, paths: readonly string[]): string {
  const absent = (part: string) =>
    part === 'LoadLibrary error 126' ||
    paths.some((path) => part === `${path}: cannot open shared object file: No such file or directory`);
  const problems = text.split('; ').filter((part) => !absent(part));
  return problems.length === 0 ? 'none found' : problems.join('; ');
}
