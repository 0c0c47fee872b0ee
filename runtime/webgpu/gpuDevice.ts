import type { KernelDescriptor } from '../../codegen/manifest.js';
import { type ErrorCode, KvforgeError } from '../../dsl/errors.js';
import {
  checkAllocation,
  checkKernel,
  checkKernelList,
  checkLaunch,
  checkLaunchList,
  checkOpen,
  checkRead,
  checkWrite,
  type OwnBuffer,
} from '../checks.js';
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
import { checkRecorded, checkSample, checkTimed, RepeatedLaunches, timeOnHost } from '../recorded.js';
import { describeAdapter, identifyAdapter, USED_FEATURES } from './adapter.js';
import { compileKernels, firstLine, type WebGpuKernel } from './compile.js';
import { Stopwatch } from './stopwatch.js';

export interface FromGpuDeviceOptions {
  /** Fills fresh buffers with 0xFF bytes, NaN as f32: WebGPU would zero them, which hides a kernel that skips words. */
  readonly poison?: boolean;
}

/** Values of GPUBufferUsage and GPUMapMode, which are globals in browsers only. */
const MAP_READ = 0x1;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const STORAGE = 0x80;

/** Dispatches per command buffer: bounds what the driver holds at once, and how long it may stay busy with one. */
const DISPATCHES_PER_SUBMIT = 512;

const AT = 'webgpu device';

class WebGpuBuffer implements OwnBuffer {
  released = false;

  constructor(
    readonly label: string,
    readonly bytes: number,
    readonly gpu: GPUBuffer,
  ) {}

  release(): void {
    this.released = true;
    // Work that was submitted before still completes; WebGPU frees the memory after it.
    this.gpu.destroy();
  }
}

/** A launch that was checked. */
interface ReadyLaunch {
  readonly kernel: WebGpuKernel;
  readonly grid: Launch['grid'];
  readonly bindGroup: GPUBindGroup;
}

function launchOf(work: readonly { readonly kernel: WebGpuKernel }[]): string {
  return `launch of ${[...new Set(work.map(({ kernel }) => kernel.descriptor.entry))].join(', ')}`;
}

const FAULT_CODES: Readonly<Record<string, ErrorCode>> = {
  GPUValidationError: 'wrong-use',
  GPUOutOfMemoryError: 'does-not-fit',
  GPUInternalError: 'kernel-fault',
};

const FAULT_HINTS: Readonly<Record<string, string>> = {
  GPUValidationError: 'Report it: kvforge should have refused this before WebGPU did.',
  GPUOutOfMemoryError: 'Release buffers, or split the work.',
  GPUInternalError: 'Check the driver, or open the software adapter.',
};

/**
 * Kernels on a `GPUDevice`, wherever that came from: `webgpu.ts` opens one in Node (Dawn), `navigator.ts` one in a
 * browser. Both call their class `WebGpuDevice`, so that a program differs only in what it imports, and in that Node's
 * `generate` has to be told the target: Node generates CUDA too, a browser WGSL alone.
 *
 * @example
 * const device = await WebGpuDevice.open();
 * // doubling.wgsl: the descriptor and the text of a kernel that doubles four words.
 * const [kernel] = await device.compile([doubling.wgsl]);
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
export abstract class GpuDevice implements Device {
  readonly kind = 'webgpu';
  readonly target = 'wgsl';
  readonly description: string;
  readonly identity: DeviceIdentity;
  readonly clock: 'device' | 'host';
  readonly limits: DeviceLimits;
  readonly features: ReadonlySet<string>;

  readonly #gpu: GPUDevice;
  readonly #poison: boolean;
  readonly #buffers = new WeakSet<DeviceBuffer>();
  readonly #kernels = new WeakMap<CompiledKernel, WebGpuKernel>();
  /** Faults of allocate() and write(), which return before WebGPU tells; the next asynchronous call throws them. */
  #faults: Promise<KvforgeError | undefined>[] = [];
  #lost: string | undefined;
  #destroyed = false;
  readonly #running = new Set<Promise<unknown>>();
  #closing: Promise<void> | undefined;

  protected constructor(adapter: GPUAdapter, device: GPUDevice, options: FromGpuDeviceOptions) {
    this.#gpu = device;
    this.#poison = options.poison ?? false;
    this.description = describeAdapter(adapter);
    this.identity = identifyAdapter(adapter);
    this.features = new Set(USED_FEATURES.filter((name) => device.features.has(name)));
    this.clock = this.features.has('timestamp-query') ? 'device' : 'host';
    this.limits = {
      sharedBytes: device.limits.maxComputeWorkgroupStorageSize,
      buffersPerKernel: Math.min(device.limits.maxStorageBuffersPerShaderStage, device.limits.maxBindingsPerBindGroup),
      bytesPerBinding: device.limits.maxStorageBufferBindingSize,
      blocksPerDimension: device.limits.maxComputeWorkgroupsPerDimension,
      threadsPerBlock: Math.min(
        device.limits.maxComputeInvocationsPerWorkgroup,
        device.limits.maxComputeWorkgroupSizeX,
      ),
    };
    device.lost.then((info) => {
      // destroy() of close() is told as a loss too.
      if (!this.#destroyed) this.#lost = firstLine(info.message) || info.reason;
    });
  }

  allocate(label: string, bytes: number): DeviceBuffer {
    this.#assertUsable();
    checkAllocation(label, bytes, this.#gpu.limits.maxBufferSize);
    const gpu = this.#scoped(`buffer '${label}'`, () => {
      const made = this.#gpu.createBuffer({
        label,
        size: bytes,
        usage: STORAGE | COPY_SRC | COPY_DST,
        mappedAtCreation: this.#poison,
      });
      if (this.#poison) {
        new Uint8Array(made.getMappedRange()).fill(0xff);
        made.unmap();
      }
      return made;
    });
    const buffer = new WebGpuBuffer(label, bytes, gpu);
    this.#buffers.add(buffer);
    return buffer;
  }

  write(buffer: DeviceBuffer, data: ArrayBufferView, offset = 0): void {
    this.#assertUsable();
    const own = checkWrite(buffer, data, offset, this.#own);
    // Browsers refuse shared memory here, so such data is copied first.
    const shared = !(data.buffer instanceof ArrayBuffer);
    const view = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    const bytes = (shared ? view.slice() : view) as Uint8Array<ArrayBuffer>;
    this.#scoped(`write of buffer '${own.label}'`, () => this.#gpu.queue.writeBuffer(own.gpu, offset, bytes));
  }

  read(buffer: DeviceBuffer, offset = 0, bytes?: number): Promise<Uint8Array> {
    return this.#track(async () => {
      const { own, size } = checkRead(buffer, offset, bytes, this.#own);
      if (size === 0) {
        await this.#finish();
        return new Uint8Array(0);
      }
      // WebGPU maps no storage buffer, so the bytes pass through one that can be mapped.
      const staging = this.#scoped(`read of buffer '${own.label}'`, () => {
        const made = this.#gpu.createBuffer({ label: 'staging', size, usage: MAP_READ | COPY_DST });
        const encoder = this.#gpu.createCommandEncoder();
        encoder.copyBufferToBuffer(own.gpu, offset, made, 0, size);
        this.#gpu.queue.submit([encoder.finish()]);
        return made;
      });
      try {
        // Both are begun in this turn: what fails first must not leave the other without a listener.
        const [fault, mapped] = await Promise.allSettled([this.#settle(), staging.mapAsync(MAP_READ)]);
        if (fault.status === 'rejected') throw fault.reason;
        if (mapped.status === 'rejected') throw mapped.reason;
        return new Uint8Array(staging.getMappedRange().slice(0));
      } finally {
        staging.destroy();
      }
    });
  }

  compile(kernels: readonly KernelText[]): Promise<readonly CompiledKernel[]> {
    return this.#track(async () => {
      checkKernelList(kernels);
      for (const kernel of kernels) checkKernel(kernel, this);
      const compiled = await compileKernels(this.#gpu, kernels);
      await this.#settle();
      return compiled.map((kernel) => {
        const handle: CompiledKernel = { descriptor: kernel.descriptor };
        this.#kernels.set(handle, kernel);
        return handle;
      });
    });
  }

  run(launches: readonly Launch[]): Promise<void> {
    return this.#track(async () => {
      checkLaunchList(launches);
      // All are checked before any is submitted: a list with a bad launch changes nothing. Everything up to the submit
      // happens in one turn, so concurrent calls, writes and reads take effect in the order they were made.
      this.#submit(this.#ready(launches));
      await this.#finish();
    });
  }

  record(launches: readonly Launch[]): Promise<Recording> {
    return this.#track(async () => {
      checkRecorded(launches);
      this.#ready(launches);
      return new RepeatedLaunches(launches, (kept) => this.run(kept));
    });
  }

  time(lists: readonly (readonly Launch[])[], options: TimeOptions): Promise<readonly number[]> {
    return this.#track(async () => {
      checkTimed(lists, options);
      const work = this.#ready(lists.flat());
      const runOnce = async (): Promise<void> => {
        this.#submit(work);
        await this.#finish();
      };
      if (this.clock === 'host') return timeOnHost(lists.length, options, runOnce);
      checkSample(work.length * options.rounds);
      await runOnce();
      const stopwatch = this.#scoped('timestamps', () => new Stopwatch(this.#gpu));
      try {
        const times: number[] = [];
        for (let sample = 0; sample < options.samples; sample++) {
          this.#scoped(launchOf(work), () => {
            // Submitted at once: encoded piece by piece, a device that is faster than this loop would wait for it.
            const commands = [...this.#encoded(work, options.rounds)];
            this.#gpu.queue.submit([stopwatch.start(), ...commands, stopwatch.stop()]);
          });
          await this.#finish();
          times.push((await stopwatch.read(options.rounds)) / (options.rounds * lists.length));
        }
        return times;
      } finally {
        stopwatch.release();
      }
    });
  }

  close(): Promise<void> {
    this.#closing ??= this.#shutDown();
    return this.#closing;
  }

  /** Checks launches, and gives those that have blocks ready to be encoded, as often as wanted. */
  #ready(launches: readonly Launch[]): readonly ReadyLaunch[] {
    const checked = launches.map((launch) => {
      const kernel = this.#kernels.get(launch.kernel);
      if (kernel === undefined) throw foreignKernel(launch.kernel.descriptor);
      return { kernel, grid: launch.grid, ranges: checkLaunch(launch, kernel.descriptor, this.limits, this.#own) };
    });
    const work = checked.filter(({ grid }) => grid.every((blocks) => blocks > 0));
    return this.#scoped(launchOf(work), () =>
      work.map(({ kernel, grid, ranges }) => {
        const entries = ranges.map(({ buffer, offset, bytes }, binding) => ({
          binding,
          resource: { buffer: buffer.gpu, offset, size: bytes },
        }));
        const { layout, descriptor } = kernel;
        return { kernel, grid, bindGroup: this.#gpu.createBindGroup({ label: descriptor.entry, layout, entries }) };
      }),
    );
  }

  /** Command buffers of bounded length, for work done `rounds` times over. */
  *#encoded(work: readonly ReadyLaunch[], rounds: number): Generator<GPUCommandBuffer> {
    const count = work.length * rounds;
    for (let start = 0; start < count; start += DISPATCHES_PER_SUBMIT) {
      const encoder = this.#gpu.createCommandEncoder();
      const pass = encoder.beginComputePass();
      for (let index = start; index < Math.min(count, start + DISPATCHES_PER_SUBMIT); index++) {
        const { kernel, grid, bindGroup } = work[index % work.length]!;
        pass.setPipeline(kernel.pipeline);
        pass.setBindGroup(0, bindGroup);
        pass.dispatchWorkgroups(...grid);
      }
      pass.end();
      yield encoder.finish();
    }
  }

  #submit(work: readonly ReadyLaunch[]): void {
    this.#scoped(launchOf(work), () => {
      for (const commands of this.#encoded(work, 1)) this.#gpu.queue.submit([commands]);
    });
  }

  async #shutDown(): Promise<void> {
    await Promise.allSettled(this.#running);
    this.#destroyed = true;
    this.#gpu.destroy();
  }

  /** Runs a call that close() must wait for. Its first turn runs at once, so that calls keep their order. */
  async #track<T>(work: () => Promise<T>): Promise<T> {
    this.#assertUsable();
    const running = work().catch(async (error: unknown) => {
      throw await this.#explain(error);
    });
    this.#running.add(running);
    try {
      return await running;
    } finally {
      this.#running.delete(running);
    }
  }

  #own = (buffer: DeviceBuffer): WebGpuBuffer | undefined =>
    this.#buffers.has(buffer) ? (buffer as WebGpuBuffer) : undefined;

  /** Runs `action` with its GPU errors caught; they are thrown by the next `#settle`. */
  #scoped<T>(at: string, action: () => T): T {
    for (const filter of ['internal', 'out-of-memory', 'validation'] as const) this.#gpu.pushErrorScope(filter);
    try {
      return action();
    } finally {
      const scopes = [1, 2, 3].map(() => this.#gpu.popErrorScope().catch(() => null));
      this.#faults.push(
        Promise.all(scopes).then((errors) =>
          asFault(
            at,
            errors.find((error) => error !== null),
          ),
        ),
      );
    }
  }

  /** Waits for everything submitted so far. */
  async #finish(): Promise<void> {
    const [fault, done] = await Promise.allSettled([this.#settle(), this.#gpu.queue.onSubmittedWorkDone()]);
    if (fault.status === 'rejected') throw fault.reason;
    if (done.status === 'rejected') throw done.reason;
    this.#assertNotLost();
  }

  async #settle(): Promise<void> {
    const faults = this.#faults;
    this.#faults = [];
    const fault = (await Promise.all(faults)).find((found) => found !== undefined);
    this.#assertNotLost();
    if (fault !== undefined) throw fault;
  }

  /** What rejected, told as a lost device where that was the cause. */
  async #explain(error: unknown): Promise<unknown> {
    if (error instanceof KvforgeError && error.code !== 'compile-failed') return error;
    // The loss is announced in a later turn than the rejections it causes.
    for (let turn = 0; turn < 5 && this.#lost === undefined; turn++) {
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    this.#assertNotLost();
    if (error instanceof KvforgeError) return error;
    const received = error instanceof Error ? firstLine(error.message) : String(error);
    return new KvforgeError(
      'kernel-fault',
      { at: AT, expected: 'the work to complete', received, hint: 'Check the driver, or open the software adapter.' },
      { cause: error },
    );
  }

  #assertUsable(): void {
    checkOpen(AT, this.#closing === undefined);
    this.#assertNotLost();
  }

  #assertNotLost(): void {
    if (this.#lost === undefined) return;
    throw new KvforgeError('device-lost', {
      at: AT,
      expected: 'a live device',
      received: `a lost one (${this.#lost})`,
      hint: 'Start a new process: a lost device cannot be revived.',
    });
  }
}

function asFault(at: string, error: GPUError | null | undefined): KvforgeError | undefined {
  if (error === null || error === undefined) return undefined;
  // Compared by name: in Node these classes are no globals.
  const kind = error.constructor.name;
  return new KvforgeError(
    FAULT_CODES[kind] ?? 'kernel-fault',
    {
      at,
      expected: 'WebGPU to accept it',
      received: firstLine(error.message),
      hint: FAULT_HINTS[kind] ?? 'Check the driver.',
    },
    { cause: error },
  );
}

function foreignKernel(descriptor: KernelDescriptor): KvforgeError {
  return new KvforgeError('wrong-use', {
    at: `${descriptor.file}: ${descriptor.entry}`,
    expected: 'a kernel that this device compiled',
    received: 'one of another device',
    hint: 'Launch what compile() of this device returned.',
  });
}
