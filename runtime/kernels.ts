import { evaluateExtent, type KernelDescriptor } from '../codegen/manifest.js';
import { KvforgeError } from '../dsl/errors.js';
import type { Geometry } from '../dsl/geometry.js';
import { checkLoad, type Loadable } from './checkLoad.js';
import type { BufferRange, CompiledKernel, Device, Launch } from './device.js';
import type { TunedSplits } from './tune/nearest.js';

/** What belongs to kernels but is no part of their texts. */
export interface LoadOptions {
  /** Splits that were tuned for these kernels, a shape each; attention over other shapes chooses by the lengths. */
  readonly splits?: readonly TunedSplits[];
}

/**
 * Generated kernels, compiled on a device and ready to launch by name.
 *
 * @example
 * const kernels = await LoadedKernels.load(device, await generate(shard, model, defaultTargets[device.target]));
 * kernels.geometry.headDim; // 16
 */
export class LoadedKernels<Sizes = Geometry> {
  readonly device: Device;
  readonly geometry: Sizes;
  readonly splits: readonly TunedSplits[];
  readonly #compiled: ReadonlyMap<string, CompiledKernel>;

  private constructor(
    device: Device,
    geometry: Sizes,
    splits: readonly TunedSplits[],
    compiled: ReadonlyMap<string, CompiledKernel>,
  ) {
    this.device = device;
    this.geometry = geometry;
    this.splits = splits;
    this.#compiled = compiled;
  }

  /**
   * Compiles the kernels (all, or the named entries).
   *
   * @throws KvforgeError `wrong-use` when they were generated for another language or an entry is none of them, `missing-capability` when the device
   * lacks a feature, `compile-failed` at a line of the generated text
   * @example
   * const generated = await generate(shard, model, defaultTargets[device.target]);
   * const decompress = await LoadedKernels.load(device, generated, ['decompress']);
   */
  static async load<Sizes>(
    device: Device,
    generated: Loadable<Sizes>,
    entries?: readonly string[],
    { splits = [] }: LoadOptions = {},
  ): Promise<LoadedKernels<Sizes>> {
    checkLoad(device, generated, entries);
    const { manifest, files, geometry } = generated;
    const wanted = manifest.kernels.filter((kernel) => entries === undefined || entries.includes(kernel.entry));
    const texts = wanted.map((descriptor: KernelDescriptor) => ({ descriptor, source: files.get(descriptor.file)! }));
    const compiled = await device.compile(texts);
    const byEntry = new Map(compiled.map((kernel) => [kernel.descriptor.entry, kernel]));
    return new LoadedKernels(device, geometry, splits, byEntry);
  }

  /**
   * Whether an entry was loaded: schedules differ in the kernels that they have.
   *
   * @example
   * kernels.has('basis_store'); // true
   */
  has(entry: string): boolean {
    return this.#compiled.has(entry);
  }

  /**
   * One launch of an entry, its grid evaluated for the dimensions.
   *
   * @example
   * kernels.launch('unrope_keys', { middleTokens: 64 }, {}).grid; // [2, 1, 1]
   */
  launch(
    entry: string,
    dimensions: Readonly<Record<string, number>>,
    bindings: Readonly<Record<string, BufferRange>>,
  ): Launch {
    const kernel = this.#compiled.get(entry);
    if (!kernel) {
      throw new KvforgeError('wrong-use', {
        at: `kernel ${entry}`,
        expected: `one of ${[...this.#compiled.keys()].join(', ')}`,
        received: entry,
        hint: 'Load it with the others.',
      });
    }
    const [x, y, z] = kernel.descriptor.grid;
    const grid = [evaluateExtent(x, dimensions), evaluateExtent(y, dimensions), evaluateExtent(z, dimensions)] as const;
    return { kernel, grid, bindings };
  }
}
