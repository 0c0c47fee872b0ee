import type { KernelDescriptor } from '../../codegen/manifest.js';
import { KvforgeError } from '../../dsl/errors.js';
import { checkObject, checkWhole, shown } from '../cache/checkInput.js';
import {
  checkAllocation,
  checkKernel,
  checkKernelList,
  checkLaunch,
  checkLaunchList,
  checkOpen,
  checkRead,
  checkWrite,
} from '../checks.js';
import { checkNarrowAxes, checkText, failForeignKernel } from '../cudaChecks.js';
import type {
  CompiledKernel,
  Device,
  DeviceBuffer,
  DeviceIdentity,
  DeviceLimits,
  KernelText,
  Launch,
  Recording,
  TimeOptions,
} from '../device.js';
import { checkRecorded, checkRecording, checkSample, checkTimed } from '../recorded.js';
import { codeArchitecture, runnableArchitectures } from './architecture.js';
import { CudaCompiler } from './compile.js';
import { CudaBuffer } from './cudaBuffer.js';
import { type CudaDeviceFacts, chooseDevice, factsOf, type OpenDriver, openDriver } from './driver.js';
import { deviceLost, lossOf, outOfMemory, workFailed } from './faults.js';
import { type PackedLaunch, packLaunches } from './launchList.js';
import { loadFailed } from './loadFailed.js';
import { isNativeFailure, type NativeDevice, type NativeDeviceFacts } from './nativeTypes.js';

export interface CudaOptions {
  /** Index in the driver's list, or UUID; the first device if left out. */
  readonly device?: number | string;
  /** Longest time that one run, or a sample of a timing, may take before the device is given up; 120 000 if left out. */
  readonly timeoutMs?: number;
  /** Fills fresh buffers with 0xFF bytes, NaN as f32, so that a kernel that reads what nobody wrote shows it. */
  readonly poison?: boolean;
  /** Folder for compiled kernels, which only you should be able to write to; the package's if left out. */
  readonly cache?: string;
}

const AT = 'cuda device';

class CudaKernel implements CompiledKernel {
  constructor(
    readonly descriptor: KernelDescriptor,
    readonly id: number,
    readonly device: CudaDevice,
  ) {}
}

/**
 * Kernels on an NVIDIA GPU: the text is compiled by NVRTC for the GPU's own architecture, kept on disk, and launched
 * through the driver. Needs the driver and NVRTC; docs/cuda.md says how to get both.
 *
 * @example
 * const device = await CudaDevice.open({ device: 0, timeoutMs: 60_000 });
 * // doubling.cuda: the descriptor and the text of a kernel that doubles four words.
 * const [kernel] = await device.compile([doubling.cuda]);
 * const [input, output] = [device.allocate('input', 16), device.allocate('output', 16)];
 * device.write(input, Uint32Array.of(1, 2, 3, 4));
 * const bindings = { input: { buffer: input }, output: { buffer: output } };
 * const launch = { kernel: kernel!, grid: [1, 1, 1], bindings } as const;
 * await device.run([launch]);
 * new Uint32Array((await device.read(output)).buffer); // [2, 4, 6, 8]
 * const recording = await device.record([launch, launch]);
 * await recording.run();
 * (await device.time([[launch]], { samples: 3, rounds: 10 })).length; // 3
 * await device.close();
 */
export class CudaDevice implements Device {
  readonly kind = 'cuda';
  readonly target = 'cuda';
  readonly clock = 'device';
  readonly description: string;
  readonly identity: DeviceIdentity;
  readonly limits: DeviceLimits;
  readonly features: ReadonlySet<string>;

  readonly #native: NativeDevice;
  readonly #compiler: CudaCompiler;
  readonly #timeoutMs: number;
  readonly #poison: boolean;
  readonly #largestBuffer: number;
  /** Of buffers that nobody released before they were collected. */
  readonly #collected = new FinalizationRegistry<number>((address) => this.#native.free(address));
  readonly #compiling = new Set<Promise<unknown>>();
  /** A failure of what returned before it was done; the next method that waits throws it. */
  #deferred: unknown;
  #lost: string | undefined;
  #closing: Promise<void> | undefined;

  private constructor(driver: OpenDriver, facts: NativeDeviceFacts, native: NativeDevice, options: CudaOptions) {
    const { name, uuid, multiprocessors, cacheBytes, sharedBytes, threadsPerBlock, blocks } = facts;
    const runnable = runnableArchitectures(facts);
    this.#native = native;
    this.#compiler = new CudaCompiler(driver.addon, codeArchitecture(facts), options.cache);
    this.#timeoutMs = options.timeoutMs ?? 120_000;
    this.#poison = options.poison ?? false;
    this.#largestBuffer = facts.bytes;
    this.description = `${name} (driver ${driver.version}, compute capability ${facts.major}.${facts.minor})`;
    const architecture = runnable.at(-1)!;
    this.identity = { name, driver: driver.version, architecture, multiprocessors, cacheBytes, uuid };
    this.features = new Set(runnable);
    // Kernels count words in 32 bits; larger bindings have not been verified.
    this.limits = {
      ...{ sharedBytes, buffersPerKernel: 32, bytesPerBinding: 2 ** 31 },
      ...{ blocksPerDimension: blocks, threadsPerBlock },
    };
  }

  /**
   * Opens a GPU. Several may be open at a time, the same one more than once too.
   *
   * @throws KvforgeError `missing-capability` without addon, driver or a GPU that kernels run on, `wrong-use` for a device
   * that is not there
   * @example
   * const device = await CudaDevice.open();
   * device.features.has('sm_80'); // true
   */
  static async open(options: CudaOptions = {}): Promise<CudaDevice> {
    checkObject(options, 'cuda options', 'an object of options');
    const { device = 0, timeoutMs, cache } = options;
    if (timeoutMs !== undefined) {
      checkWhole(timeoutMs, {
        at: 'cuda option timeoutMs',
        least: 1,
        most: 2 ** 31 - 1,
        hint: 'Leave it out for the default.',
      });
    }
    if (cache !== undefined && (typeof cache !== 'string' || cache === '')) {
      throw new KvforgeError('wrong-use', {
        at: 'cuda option cache',
        expected: 'the path of a folder',
        received: shown(cache),
        hint: 'Leave it out for the default.',
      });
    }
    const driver = await openDriver();
    const facts = chooseDevice(driver.devices, device);
    const native = new driver.addon.Device(facts.index);
    await native.open().catch((error: unknown) => {
      throw workFailed(`opening cuda device ${facts.index}`, error);
    });
    return new CudaDevice(driver, facts, native, options);
  }

  /**
   * The GPUs that the driver shows to this process.
   *
   * @throws KvforgeError `missing-capability` without addon or driver
   * @example
   * (await CudaDevice.list()).map(({ index }) => index); // [0]
   */
  static async list(): Promise<readonly CudaDeviceFacts[]> {
    return (await openDriver()).devices.map(factsOf);
  }

  allocate(label: string, bytes: number): DeviceBuffer {
    this.#check();
    checkAllocation(label, bytes, this.#largestBuffer);
    try {
      const buffer = new CudaBuffer(label, bytes, this.#native.allocate(bytes), this);
      this.#collected.register(buffer, buffer.address, buffer);
      if (this.#poison) this.#begun(`allocate(${label})`, this.#native.fill(buffer.address, bytes));
      return buffer;
    } catch (error) {
      if (isNativeFailure(error) && error.code === 2) throw outOfMemory(label, bytes, error);
      throw this.#explained(`allocate(${label})`, error);
    }
  }

  write(buffer: DeviceBuffer, data: ArrayBufferView, offset = 0): void {
    this.#check();
    const target = checkWrite(buffer, data, offset, this.#own);
    if (data.byteLength === 0) return;
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    this.#begun(`write(${target.label})`, this.#native.write(target.address, offset, bytes));
  }

  async read(buffer: DeviceBuffer, offset = 0, bytes?: number): Promise<Uint8Array> {
    this.#check();
    const { own: source, size } = checkRead(buffer, offset, bytes, this.#own);
    const into = new Uint8Array(size);
    await this.#waited(`read(${source.label})`, this.#native.read(source.address, offset, into));
    return into;
  }

  async compile(kernels: readonly KernelText[]): Promise<readonly CompiledKernel[]> {
    this.#check();
    const compiling = this.#compile(kernels);
    this.#compiling.add(compiling);
    try {
      return await compiling;
    } finally {
      this.#compiling.delete(compiling);
    }
  }

  async #compile(kernels: readonly KernelText[]): Promise<readonly CompiledKernel[]> {
    checkKernelList(kernels);
    for (const kernel of kernels) {
      checkKernel(kernel, this);
      checkText(kernel);
    }
    const images = await this.#compiler.compile(kernels);
    const loading = kernels.map(async ({ descriptor }, index) => {
      const { entry, threads, sharedBytes } = descriptor;
      const id = await this.#native.load(images[index]!, entry, threads, sharedBytes.dynamic).catch((error) => {
        this.#noteLoss(error);
        throw loadFailed(descriptor, error) ?? this.#explained(`load(${entry})`, error);
      });
      return new CudaKernel(descriptor, id, this);
    });
    const settled = await Promise.allSettled(loading);
    return settled.map((result) => {
      if (result.status === 'rejected') throw result.reason;
      return result.value;
    });
  }

  async run(launches: readonly Launch[]): Promise<void> {
    this.#check();
    checkLaunchList(launches);
    const work = launches.flatMap((launch) => this.#packed(launch));
    if (work.length === 0) return;
    await this.#waited(`run(${namesOf(launches)})`, this.#native.run(packLaunches(work), this.#timeoutMs));
  }

  async record(launches: readonly Launch[]): Promise<Recording> {
    this.#check();
    checkRecorded(launches);
    const work = launches.flatMap((launch) => this.#packed(launch));
    const at = `record(${namesOf(launches)})`;
    const kept = launches.map((launch) => ({ ...launch, bindings: copied(launch.bindings) }));
    const graph = await this.#waited(at, this.#native.record(packLaunches(work)));
    const buffers = kept.flatMap(({ bindings }) => Object.values(bindings).map(({ buffer }) => buffer as CudaBuffer));
    let live = true;
    return {
      run: async () => {
        checkRecording(live);
        this.#check();
        // The check of a launch says which of its buffers it is.
        if (buffers.some((buffer) => buffer.released)) for (const launch of kept) this.#packed(launch);
        await this.#waited(`run of ${at}`, this.#native.replay(graph, this.#timeoutMs));
      },
      release: () => {
        if (!live) return;
        live = false;
        if (this.#closing === undefined) this.#native.dropGraph(graph).catch(() => undefined);
      },
    };
  }

  async time(lists: readonly (readonly Launch[])[], options: TimeOptions): Promise<readonly number[]> {
    this.#check();
    checkTimed(lists, options);
    const { samples, rounds } = options;
    const launches = lists.flat();
    const work = launches.flatMap((launch) => this.#packed(launch));
    checkSample(work.length * rounds);
    const at = `time(${namesOf(launches)})`;
    const timing = this.#native.time(packLaunches(work), rounds, samples, this.#timeoutMs);
    const milliseconds = await this.#waited(at, timing);
    return Array.from(milliseconds, (ms) => (ms * 1000) / (rounds * lists.length));
  }

  close(): Promise<void> {
    this.#closing ??= this.#shutDown();
    return this.#closing;
  }

  async #shutDown(): Promise<void> {
    await Promise.allSettled(this.#compiling);
    // Runs after all that was asked for before; of a lost device nothing can be given back.
    await this.#native.close().catch(() => undefined);
  }

  /**
   * Called by the buffer itself.
   *
   * @internal
   */
  dropBuffer(buffer: CudaBuffer): void {
    this.#collected.unregister(buffer);
    this.#native.free(buffer.address);
  }

  /** The launch for the addon; nothing for an empty grid. */
  #packed(launch: Launch): readonly PackedLaunch[] {
    const { kernel, grid } = launch;
    if (!(kernel instanceof CudaKernel) || kernel.device !== this) failForeignKernel(kernel);
    const ranges = checkLaunch(launch, kernel.descriptor, this.limits, this.#own);
    checkNarrowAxes(kernel.descriptor.entry, grid);
    if (grid.some((blocks) => blocks === 0)) return [];
    return [{ kernel: kernel.id, grid, addresses: ranges.map(({ buffer, offset }) => buffer.address + offset) }];
  }

  /** Work that nobody waits for. */
  #begun(at: string, work: Promise<void>): void {
    work.catch((error: unknown) => {
      this.#deferred ??= this.#explained(at, error);
    });
  }

  /** Waits for work, and throws what it or a write before it failed with. */
  async #waited<T>(at: string, work: Promise<T>): Promise<T> {
    let result: T;
    try {
      result = await work;
    } catch (error) {
      const explained = this.#explained(at, error);
      this.#throwDeferred();
      throw explained;
    }
    this.#throwDeferred();
    return result;
  }

  #explained(at: string, error: unknown): unknown {
    const before = this.#lost;
    this.#noteLoss(error);
    if (isNativeFailure(error) && error.call === 'lost') return deviceLost(AT, before ?? 'by an earlier failure');
    return workFailed(at, error);
  }

  #noteLoss(error: unknown): void {
    if (isNativeFailure(error)) this.#lost ??= lossOf(error);
  }

  #throwDeferred(): void {
    const error = this.#deferred;
    this.#deferred = undefined;
    if (error !== undefined) throw error;
  }

  #check(): void {
    checkOpen(AT, this.#closing === undefined);
    if (this.#lost !== undefined) throw deviceLost(AT, this.#lost);
  }

  readonly #own = (buffer: DeviceBuffer): CudaBuffer | undefined =>
    buffer instanceof CudaBuffer && buffer.device === this ? buffer : undefined;
}

function namesOf(launches: readonly Launch[]): string {
  return [...new Set(launches.map(({ kernel }) => kernel.descriptor.entry))].join(', ');
}

/** Bindings that later changes of the caller's objects do not reach. */
function copied(bindings: Launch['bindings']): Launch['bindings'] {
  return Object.fromEntries(Object.entries(bindings).map(([name, range]) => [name, { ...range }]));
}
