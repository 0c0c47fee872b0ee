import { createReadStream, existsSync, readFileSync } from 'node:fs';
import { mkdtemp, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { constants } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { isMainThread } from 'node:worker_threads';
import { createBrotliDecompress } from 'node:zlib';
import { cacheFolders, privateFolder } from '../cacheFolder.js';

/** What Dawn will find when it looks for Vulkan. */
export interface VulkanSetup {
  /** Where the Vulkan loader came from; `none` leaves Dawn with Metal, D3D12 or nothing. */
  readonly loader: 'system' | 'swiftshader' | 'none';
  /** Drivers that the user named in VK_DRIVER_FILES: these and no others. */
  readonly named: string | undefined;
  /** The SwiftShader driver that was added to those of the system. */
  readonly swiftShader: string | undefined;
  /** Why SwiftShader was not added. */
  readonly problem: SetupProblem | undefined;
}

export interface SetupProblem {
  readonly why: string;
  /** The next thing to do, as a sentence. */
  readonly fix: string;
}

const DRIVER = 'vk_swiftshader_icd.json';
const LOADER = 'libvulkan.so.1';
/** The archive also carries OpenGL libraries, half its size, that nothing here loads. */
const WANTED = new Set([DRIVER, LOADER, 'libvk_swiftshader.so']);

/** glibc and musl agree on this value, which Node does not export. */
const RTLD_NODELETE = 0x1000;

/**
 * Loads a shared library that is no Node addon and keeps it. Node closes what registers no module and throws; with
 * RTLD_NODELETE the library outlives that, and a later `dlopen` of its soname (Dawn's of `libvulkan.so.1`) gets it
 * wherever it lies. So no LD_LIBRARY_PATH has to be set before the process starts.
 */
function preload(path: string): boolean {
  try {
    process.dlopen({ exports: {} }, path, constants.dlopen.RTLD_NOW | constants.dlopen.RTLD_GLOBAL | RTLD_NODELETE);
    return true;
  } catch (error) {
    return error instanceof Error && error.message.startsWith('Module did not self-register');
  }
}

interface Archive {
  readonly path: string;
  readonly version: string;
  /** Requires from inside the package, so that its own tar-fs is found in any layout of node_modules. */
  readonly require: NodeJS.Require;
}

function findArchive(): Archive | undefined {
  let entry: string;
  try {
    entry = createRequire(import.meta.url).resolve('@sparticuz/chromium');
  } catch {
    return undefined;
  }
  for (let folder = dirname(entry); dirname(folder) !== folder; folder = dirname(folder)) {
    const path = join(folder, 'bin', 'swiftshader.tar.br');
    if (!existsSync(path)) continue;
    const { version } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as { version: string };
    return { path, version, require: createRequire(entry) };
  }
  return undefined;
}

async function unpack(archive: Archive, target: string): Promise<void> {
  const { extract } = archive.require('tar-fs') as {
    extract(folder: string, options: { chown: boolean; ignore(name: string): boolean }): NodeJS.WritableStream;
  };
  // A temporary name and a rename: two processes that start together never see half a driver.
  const folder = await mkdtemp(`${target}.`);
  try {
    await pipeline(
      createReadStream(archive.path),
      createBrotliDecompress(),
      // Root would otherwise hand the files to whichever user owned them where the archive was made.
      extract(folder, { chown: false, ignore: (name) => !WANTED.has(basename(name)) }),
    );
    await rename(folder, target).catch((error: unknown) => {
      if (!existsSync(join(target, DRIVER))) throw error;
    });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

const NAME_ANOTHER = 'name a Vulkan driver, such as lavapipe, in VK_DRIVER_FILES.';

/** Folder with the unpacked driver, in the first of `caches` that can hold it; or why there is none. */
export async function unpackSwiftShader(
  caches: readonly string[] = cacheFolders(),
): Promise<{ folder: string } | SetupProblem> {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    const why = `SwiftShader is packaged for linux-x64 only, this is ${process.platform}-${process.arch}`;
    return { why, fix: `Install a graphics driver, or ${NAME_ANOTHER}` };
  }
  const archive = findArchive();
  if (archive === undefined) {
    const why = '@sparticuz/chromium, which carries SwiftShader, is not installed';
    return { why, fix: `Run npm install --save-dev @sparticuz/chromium, or ${NAME_ANOTHER}` };
  }
  let why = '';
  for (const cache of caches) {
    try {
      const folder = join(await privateFolder(cache, 'swiftshader'), archive.version);
      if (!existsSync(join(folder, DRIVER))) await unpack(archive, folder);
      return { folder };
    } catch (error) {
      why = `SwiftShader could not be unpacked (${error instanceof Error ? error.message : String(error)})`;
    }
  }
  return { why, fix: 'Set XDG_CACHE_HOME to a folder that only you can write to.' };
}

async function setUp(): Promise<VulkanSetup> {
  const named = process.env.VK_DRIVER_FILES ?? process.env.VK_ICD_FILENAMES;
  const result = (loader: VulkanSetup['loader'], problem?: SetupProblem, swiftShader?: string): VulkanSetup => ({
    loader,
    named,
    swiftShader,
    problem,
  });
  const replaced = { why: 'VK_DRIVER_FILES names other drivers', fix: 'Correct VK_DRIVER_FILES, or unset it.' };
  const system = process.platform === 'linux' && preload(LOADER);
  if (system && named !== undefined) return result('system', replaced);
  const found = await unpackSwiftShader();
  if ('why' in found) return result(system ? 'system' : 'none', found);
  const own = join(found.folder, LOADER);
  if (!system && !preload(own)) {
    return result('none', { why: `${own} could not be loaded`, fix: 'Install a Vulkan loader (libvulkan1).' });
  }
  const loader = system ? 'system' : 'swiftshader';
  if (named !== undefined) return result(loader, replaced);
  const driver = join(found.folder, DRIVER);
  const others = process.env.VK_ADD_DRIVER_FILES?.split(':') ?? [];
  if (others.includes(driver)) return result(loader, undefined, driver);
  if (!isMainThread) {
    // A worker has a copy of the environment, which the loader, being native, does not read.
    const why = 'a worker thread cannot name SwiftShader to the Vulkan loader';
    return result(loader, { why, fix: 'Open the device on the main thread.' });
  }
  // Added to the drivers of the system, not instead of them: a hardware adapter can still be opened beside it.
  process.env.VK_ADD_DRIVER_FILES = [...others, driver].join(':');
  return result(loader, undefined, driver);
}

let setup: Promise<VulkanSetup> | undefined;

/** Makes Vulkan findable for Dawn; once per process, before Dawn is loaded. */
export function setUpVulkan(): Promise<VulkanSetup> {
  setup ??= setUp();
  return setup;
}
