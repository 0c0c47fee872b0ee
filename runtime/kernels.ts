import type { GeneratedKernels } from '../codegen/generate.js';
import { evaluateExtent, type KernelDescriptor } from '../codegen/manifest.js';
import { KvforgeError } from '../dsl/errors.js';
import type { Geometry } from '../dsl/geometry.js';
import { checkLoad } from './checkLoad.js';
import type { BufferRange, CompiledKernel, Device, Launch } from './device.js';

/**
 * Generated kernels, compiled on a device and ready to launch by name.
 *
 * @example
 * const kernels = await LoadedKernels.load(device, await generate(shard, model, defaultTargets[device.target]));
 * kernels.geometry.rank; // 16
 */
export class LoadedKernels {
  readonly device: Device;
  readonly geometry: Geometry;
  readonly #compiled: ReadonlyMap<string, CompiledKernel>;

  private constructor(device: Device, geometry: Geometry, compiled: ReadonlyMap<string, CompiledKernel>) {
    this.device = device;
    this.geometry = geometry;
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
  static async load(device: Device, generated: GeneratedKernels, entries?: readonly string[]): Promise<LoadedKernels> {
    checkLoad(device, generated, entries);
    const { manifest, files, geometry } = generated;
    const wanted = manifest.kernels.filter((kernel) => entries === undefined || entries.includes(kernel.entry));
    const texts = wanted.map((descriptor: KernelDescriptor) => ({ descriptor, source: files.get(descriptor.file)! }));
    const compiled = await device.compile(texts);
    return new LoadedKernels(device, geometry, new Map(compiled.map((kernel) => [kernel.descriptor.entry, kernel])));
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
