import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { basename } from 'node:path';
import { packagePath } from '../../codegen/packageRoot.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { KernelText } from '../device.js';
import { BinaryCache } from './binaryCache.js';
import { told } from './faults.js';
import { isNativeFailure, type NativeAddon, type NativeFailure, type NvrtcFacts } from './nativeTypes.js';
import { nvrtcIdentity, openNvrtc } from './nvrtc.js';

/**
 * No option that changes arithmetic: divisions and roots are rounded correctly, small numbers stay what they are, and
 * a product may be fused with a sum, as nvcc does by default.
 */
const flags = ['--std=c++17', '-default-device'];
const prelude = 'prelude.cuh';

interface Opened {
  readonly cache: BinaryCache;
  readonly header: string;
  readonly identity: string;
}

/** Compiles CUDA text for one architecture, through the cache on disk. */
export class CudaCompiler {
  readonly #addon: NativeAddon;
  readonly #architecture: string;
  readonly #cacheFolder: string | undefined;
  readonly #limited = limited(availableParallelism());
  #opened: Promise<Opened> | undefined;
  #nvrtc: Promise<NvrtcFacts> | undefined;

  /**
   * @param architecture of the device: `sm_90a`
   * @param cacheFolder in place of the package's
   */
  constructor(addon: NativeAddon, architecture: string, cacheFolder?: string) {
    this.#addon = addon;
    this.#architecture = architecture;
    this.#cacheFolder = cacheFolder;
  }

  /** Machine code of every kernel, in order; as many are compiled at a time as there are processors. */
  async compile(kernels: readonly KernelText[]): Promise<readonly Uint8Array[]> {
    this.#opened ??= this.#open().catch((error: unknown) => {
      // What was missing may be there at the next call.
      this.#opened = undefined;
      throw error;
    });
    const { cache, header, identity } = await this.#opened;
    // Entries of one file share its image.
    const images = new Map<string, Promise<Uint8Array>>();
    const wanted = kernels.map(({ descriptor, source }) => {
      const key = BinaryCache.key([source, header, ...flags, this.#architecture, identity]);
      const image = images.get(key) ?? this.#image(key, descriptor.file, source, header, cache);
      images.set(key, image);
      return image;
    });
    // All end before the first failure is told, in the order of the list.
    const settled = await Promise.allSettled(wanted);
    return settled.map((result) => {
      if (result.status === 'rejected') throw result.reason;
      return result.value;
    });
  }

  async #open(): Promise<Opened> {
    const header = await readFile(packagePath('templates', 'cuda', prelude), 'utf8');
    return { cache: await BinaryCache.open(this.#cacheFolder), header, identity: await nvrtcIdentity(this.#addon) };
  }

  async #image(key: string, file: string, source: string, header: string, cache: BinaryCache): Promise<Uint8Array> {
    const cached = await cache.get(key);
    if (cached !== undefined) return cached;
    return this.#limited(async () => {
      this.#nvrtc ??= openNvrtc(this.#addon).catch((error: unknown) => {
        this.#nvrtc = undefined;
        throw error;
      });
      const { option, ptx } = targetOption(this.#architecture, await this.#nvrtc);
      const options = [...flags, option];
      const request = { name: basename(file), source, headerName: prelude, header, options, ptx };
      const image = await this.#addon.compile(request).catch((error: unknown) => {
        throw isNativeFailure(error) ? compileFailed(file, error) : error;
      });
      await cache.put(key, image);
      return image;
    });
  }
}

/** Machine code for the device's own architecture, or PTX for the nearest one below where NVRTC is older than it. */
function targetOption(
  architecture: string,
  { architectures, version, path }: NvrtcFacts,
): { readonly option: string; readonly ptx: boolean } {
  const number = Number(/\d+/.exec(architecture)![0]);
  if (architectures.includes(number)) {
    // Variants (sm_90a) came with NVRTC 12; one before knows the architecture, without its own instructions.
    const known = Number(version.split('.')[0]) >= 12 ? architecture : `sm_${number}`;
    return { option: `--gpu-architecture=${known}`, ptx: false };
  }
  const nearest = Math.max(...architectures.filter((known) => known < number));
  if (!Number.isFinite(nearest)) {
    throw new KvforgeError('missing-capability', {
      at: 'nvrtc',
      expected: `a version that compiles for ${architecture}`,
      received: `${version}, which begins with sm_${Math.min(...architectures)} (${path})`,
      hint: 'Install an older CUDA toolkit, or use another GPU.',
    });
  }
  return { option: `--gpu-architecture=compute_${nearest}`, ptx: true };
}

/** The first error of NVRTC's log, as a typed error at its line. */
function compileFailed(file: string, failure: NativeFailure): KvforgeError {
  const found = /^(.+?)\((\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (.*)$/m.exec(failure.text);
  const message = found?.[3] ?? failure.text.split('\n').find((line) => line.trim() !== '') ?? told(failure);
  return new KvforgeError(
    'compile-failed',
    {
      at: found === null ? basename(file) : `${basename(found[1]!)}:${found[2]}`,
      expected: 'text that NVRTC compiles',
      received: `"${message.trim()}"`,
      hint: 'Fix the emitter or the template that wrote this line, or add what it uses to both files prelude.cuh.',
    },
    { cause: failure },
  );
}

type Limiter = <T>(work: () => Promise<T>) => Promise<T>;

/** Lets at most `most` pieces of work be under way; the others wait in order. */
function limited(most: number): Limiter {
  let free = most;
  const waiting: (() => void)[] = [];
  return async (work) => {
    if (free > 0) free--;
    else await new Promise<void>((resolve) => waiting.push(resolve));
    try {
      return await work();
    } finally {
      const next = waiting.shift();
      if (next === undefined) free++;
      else next();
    }
  };
}
