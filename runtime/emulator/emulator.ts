import type { KernelDescriptor } from '../../codegen/manifest.js';
import { architectures } from '../../dsl/stage.js';
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
import { checkRecorded, checkTimed, copied, RepeatedLaunches, timeOnHost } from '../recorded.js';
import { describeFault, type FaultContext } from './fault.js';
import { type Order, type Orders, orderNumber, ordersOf } from './orders.js';
import { EmulatorProcess, FaultReport, Message } from './process.js';
import { type Built, buildHost, buildKernel, openToolchain, type Toolchain } from './toolchain.js';
import { checkOptions, failLoad, failMemory } from './validate.js';

export interface EmulatorOptions {
  /** 'full' (the default) reports bad accesses and races; 'none' is faster. */
  readonly checks?: 'full' | 'none';
  /** Order of blocks, and of threads between two barriers: one for both, or one for each. 'ascending' if not given. */
  readonly order?: Order | Partial<Orders>;
  /** For the orders 'shuffled' and 'starved': the same seed gives the same order. 1 if not given. */
  readonly seed?: number;
  /** Longest time one `run()` may take before the device is given up; 120 000 if not given. */
  readonly timeoutMs?: number;
  /** C++ compiler; g++ if not given. */
  readonly compiler?: string;
  /** Folder for compiled kernels, which only you should be able to write to; `cacheFolders()` if not given. */
  readonly cache?: string;
}

/** A sixteenth of the address range that the host program reserves; more than a CPU could work through. */
const LARGEST_BUFFER = 2 ** 34;

class EmulatorBuffer implements DeviceBuffer {
  released = false;
  constructor(
    readonly label: string,
    readonly bytes: number,
    readonly id: number,
    readonly device: EmulatorDevice,
  ) {}
  release(): void {
    if (this.released) return;
    this.released = true;
    this.device.dropBuffer(this);
  }
}

class EmulatorKernel implements CompiledKernel {
  constructor(
    readonly descriptor: KernelDescriptor,
    readonly id: number,
    readonly built: Built,
    /** Whether a block may do an atomic. */
    readonly atomics: boolean,
    readonly device: EmulatorDevice,
  ) {}
}

/**
 * Runs emitted CUDA on the CPU: the text is compiled by g++ over `prelude.cuh`, and every thread of a block is a fiber.
 *
 * @example
 * const device = await EmulatorDevice.open({ order: 'shuffled', seed: 7 });
 * // doubling.cuda: the descriptor and the text of a kernel that doubles four words.
 * const [kernel] = await device.compile([doubling.cuda]);
 * const [input, output] = [device.allocate('input', 16), device.allocate('output', 16)];
 * device.write(input, Uint32Array.of(1, 2, 3, 4));
 * const bindings = { input: { buffer: input }, output: { buffer: output } };
 * const launches = [{ kernel: kernel!, grid: [1, 1, 1], bindings }] as const;
 * await device.run(launches);
 * new Uint32Array((await device.read(output)).buffer); // [2, 4, 6, 8]
 * const recording = await device.record(launches);
 * device.write(input, Uint32Array.of(5, 6, 7, 8));
 * await recording.run();
 * new Uint32Array((await device.read(output)).buffer); // [10, 12, 14, 16]
 * recording.release();
 * (await device.time([launches], { samples: 3, rounds: 100 })).length; // 3
 * await device.close();
 */
export class EmulatorDevice implements Device {
  readonly kind = 'emulator';
  readonly target = 'cuda';
  readonly description: string;
  readonly identity: DeviceIdentity;
  readonly clock = 'host';
  readonly limits: DeviceLimits = {
    sharedBytes: 233472,
    buffersPerKernel: 32,
    bytesPerBinding: 2 ** 31,
    blocksPerDimension: 2 ** 31 - 1,
    threadsPerBlock: 1024,
  };
  /** From sm_80 on the text is the same, so a kernel for any of them runs. */
  readonly features: ReadonlySet<string> = new Set(architectures);
  readonly checks: 'full' | 'none';
  readonly #options: { readonly order: Orders; readonly seed: number; readonly timeoutMs: number };
  readonly #toolchain: Toolchain;
  readonly #process: EmulatorProcess;
  #nextId = 1;
  #closed = false;
  readonly #pending = new Set<Promise<unknown>>();
  /** A failure of a request that nobody waits for; the next method that waits throws it. */
  #deferred: unknown;

  private constructor(toolchain: Toolchain, host: EmulatorProcess, options: EmulatorOptions) {
    this.#toolchain = toolchain;
    this.#process = host;
    this.checks = options.checks ?? 'full';
    this.#options = {
      order: ordersOf(options.order),
      seed: options.seed ?? 1,
      timeoutMs: options.timeoutMs ?? 120_000,
    };
    this.description = `CPU emulator of CUDA (${toolchain.version}, checks: ${this.checks})`;
    this.identity = { name: 'CPU emulator of CUDA', driver: toolchain.version };
  }

  static async open(options: EmulatorOptions = {}): Promise<EmulatorDevice> {
    checkOptions(options);
    const toolchain = await openToolchain(options.compiler ?? 'g++', options.cache);
    const host = new EmulatorProcess(await buildHost(toolchain));
    // Its answer says that it has the address space it needs.
    await host.request(Message.hello, [], 'start');
    return new EmulatorDevice(toolchain, host, options);
  }

  /** Process id of the emulator. */
  get pid(): number | undefined {
    return this.#process.pid;
  }

  allocate(label: string, bytes: number): DeviceBuffer {
    this.#check();
    checkAllocation(label, bytes, LARGEST_BUFFER);
    const buffer = new EmulatorBuffer(label, bytes, this.#nextId++, this);
    this.#post(Message.allocate, [pack(buffer.id, 0, BigInt(bytes))], `allocate(${label})`);
    return buffer;
  }

  write(buffer: DeviceBuffer, data: ArrayBufferView, offset = 0): void {
    this.#check();
    const target = checkWrite(buffer, data, offset, this.#own);
    if (data.byteLength === 0) return;
    // Copied, as the caller may change it before the pipe has taken it.
    const copy = Buffer.from(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    this.#post(Message.write, [pack(target.id, 0, BigInt(offset)), copy], `write(${target.label})`);
  }

  async read(buffer: DeviceBuffer, offset = 0, bytes?: number): Promise<Uint8Array> {
    this.#check();
    const { own: source, size } = checkRead(buffer, offset, bytes, this.#own);
    const header = pack(source.id, 0, BigInt(offset), BigInt(size));
    const data = await this.#process.request(Message.read, [header], `read(${source.label})`);
    this.#throwDeferred();
    // A copy: the reply may share its memory with others, at an offset that no typed array accepts.
    return new Uint8Array(data);
  }

  async compile(kernels: readonly KernelText[]): Promise<readonly CompiledKernel[]> {
    this.#check();
    const compiling = this.#compile(kernels);
    this.#pending.add(compiling);
    try {
      return await compiling;
    } finally {
      this.#pending.delete(compiling);
    }
  }

  async #compile(kernels: readonly KernelText[]): Promise<readonly CompiledKernel[]> {
    checkKernelList(kernels);
    for (const kernel of kernels) {
      checkKernel(kernel, this);
      checkText(kernel);
    }
    const built = await inParallel(kernels, 2, ({ descriptor, source }) =>
      buildKernel(this.#toolchain, descriptor.file, source, this.checks === 'full'),
    );
    return Promise.all(
      kernels.map(async ({ descriptor, source }, index) => {
        const atomics = /\batomic[A-Z]/.test(source);
        const kernel = new EmulatorKernel(descriptor, this.#nextId++, built[index]!, atomics, this);
        const entry = Buffer.from(descriptor.entry);
        const payload = [pack(kernel.id, entry.byteLength), entry, Buffer.from(kernel.built.library)];
        await this.#process.request(Message.load, payload, `load(${descriptor.entry})`).catch((error: unknown) => {
          if (!(error instanceof Error) || error.name === 'KvforgeError') throw error;
          failLoad(kernels[index]!, error.message);
        });
        return kernel;
      }),
    );
  }

  async run(launches: readonly Launch[]): Promise<void> {
    this.#check();
    checkLaunchList(launches);
    await this.#run(launches);
  }

  async #run(launches: readonly Launch[]): Promise<void> {
    const parts: Buffer[] = [];
    const contexts: FaultContext[] = [];
    for (const launch of launches) this.#encode(launch, parts, contexts);
    if (contexts.length === 0) return;
    const names = [...new Set(contexts.map((context) => context.descriptor.entry))].join(', ');
    try {
      await this.#process.request(
        Message.run,
        [pack(contexts.length), ...parts],
        `run(${names})`,
        this.#options.timeoutMs,
      );
    } catch (error) {
      if (error instanceof FaultReport) throw await describeFault(error.json, contexts);
      // A buffer that could not be allocated is the cause, not the launch that binds it.
      this.#throwDeferred();
      throw error;
    }
    this.#throwDeferred();
  }

  async record(launches: readonly Launch[]): Promise<Recording> {
    this.#check();
    checkRecorded(launches);
    for (const launch of launches) this.#encode(launch, [], []);
    return new RepeatedLaunches(launches, (kept) => this.run(kept));
  }

  async time(lists: readonly (readonly Launch[])[], options: TimeOptions): Promise<readonly number[]> {
    this.#check();
    checkTimed(lists, options);
    const round = copied(lists.flat());
    // Runs of a timing that has begun are no new calls: close() waits for them.
    const timing = timeOnHost(lists.length, options, () => this.#run(round));
    this.#pending.add(timing);
    try {
      return await timing;
    } finally {
      this.#pending.delete(timing);
    }
  }

  async close(): Promise<void> {
    this.#closed = true;
    // Of compiling and timing, the emulator does not know what is still to come.
    await Promise.allSettled(this.#pending);
    await this.#process.close();
  }

  /**
   * Called by the buffer itself.
   *
   * @internal
   */
  dropBuffer(buffer: EmulatorBuffer): void {
    if (this.#closed) return;
    try {
      this.#post(Message.release, [pack(buffer.id, 0)], `release(${buffer.label})`);
    } catch {
      // The process has ended, and its memory with it.
    }
  }

  #encode(launch: Launch, parts: Buffer[], contexts: FaultContext[]): void {
    const { kernel, grid } = launch;
    if (!(kernel instanceof EmulatorKernel) || kernel.device !== this) failForeignKernel(kernel);
    const { descriptor, built } = kernel;
    const ranges = checkLaunch(launch, descriptor, this.limits, this.#own);
    checkNarrowAxes(descriptor.entry, grid);
    if (grid.some((blocks) => blocks === 0)) return;
    const { order } = this.#options;
    const orders = orderNumber[order.blocks] + orderNumber[order.threads] * 256 + (kernel.atomics ? 65536 : 0);
    const { threads, sharedBytes } = descriptor;
    const checked = this.checks === 'full' ? 1 : 0;
    parts.push(pack(kernel.id, orders, checked, threads, sharedBytes.dynamic, ...grid, ranges.length));
    parts.push(pack(BigInt(this.#options.seed)));
    for (const [index, { buffer, offset, bytes }] of ranges.entries()) {
      const writable = descriptor.bindings[index]!.access === 'read_write';
      parts.push(pack(buffer.id, writable ? 1 : 0, BigInt(offset), BigInt(bytes)));
    }
    contexts.push({ descriptor, ...built, grid, bindingBytes: ranges.map((range) => range.bytes) });
  }

  /** Sends a request whose failure shows at the next method that waits. */
  #post(message: number, parts: readonly Uint8Array[], task: string): void {
    this.#process.request(message, parts, task).catch((error: unknown) => {
      this.#deferred ??= error;
    });
  }

  #throwDeferred(): void {
    const error = this.#deferred;
    if (error === undefined) return;
    this.#deferred = undefined;
    if (!(error instanceof Error) || error.name === 'KvforgeError') throw error;
    failMemory(error.message);
  }

  #check(): void {
    checkOpen('emulator device', !this.#closed);
    this.#process.check();
  }

  readonly #own = (buffer: DeviceBuffer): EmulatorBuffer | undefined =>
    buffer instanceof EmulatorBuffer && buffer.device === this ? buffer : undefined;
}

/** Numbers as 32-bit words, big integers as 64-bit words, little-endian. */
function pack(...values: readonly (number | bigint)[]): Buffer {
  const buffer = Buffer.alloc(values.reduce<number>((sum, value) => sum + (typeof value === 'bigint' ? 8 : 4), 0));
  let at = 0;
  for (const value of values) {
    at = typeof value === 'bigint' ? buffer.writeBigUInt64LE(value, at) : buffer.writeUInt32LE(value, at);
  }
  return buffer;
}

/** Maps with at most `limit` calls under way. */
async function inParallel<T, R>(items: readonly T[], limit: number, map: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = new Array(items.length);
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < items.length) {
      const index = next++;
      results[index] = await map(items[index]!);
    }
  };
  await Promise.all(Array.from({ length: limit }, worker));
  return results;
}
