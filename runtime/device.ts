import type { KernelDescriptor } from '../codegen/manifest.js';
import type { Architecture } from '../dsl/stage.js';

/** Device memory. Fresh contents are undefined; the emulator fills them with NaN patterns. */
export interface DeviceBuffer {
  readonly label: string;
  /** Size asked for, in bytes: a positive multiple of 4. */
  readonly bytes: number;
  release(): void;
}

/** A buffer, or a part of one. `offset` and `bytes` are multiples of 4 (of 256 for `offset`, so that WebGPU can bind it). */
export interface BufferRange {
  readonly buffer: DeviceBuffer;
  readonly offset?: number;
  readonly bytes?: number;
}

export interface DeviceLimits {
  /** Bytes of shared (workgroup) memory one block may use. */
  readonly sharedBytes: number;
  readonly buffersPerKernel: number;
  readonly bytesPerBinding: number;
  readonly blocksPerDimension: number;
  readonly threadsPerBlock: number;
}

/** A generated kernel and the text it came from, ready to compile. */
export interface KernelText {
  readonly descriptor: KernelDescriptor;
  /** Whole text of the `.cu` or `.wgsl` file. */
  readonly source: string;
}

export interface Launch {
  readonly kernel: CompiledKernel;
  /** Blocks in x, y, z; a zero in any dimension launches nothing. */
  readonly grid: readonly [number, number, number];
  /** One range for every binding of the kernel, by name. A missing or an unknown name is an error. */
  readonly bindings: Readonly<Record<string, BufferRange>>;
}

export interface CompiledKernel {
  readonly descriptor: KernelDescriptor;
}

export type DeviceKind = 'emulator' | 'webgpu' | 'cuda';

/** What identifies a device in reports and lock files, and the figures of it that predictions need. */
export interface DeviceIdentity {
  /** As its driver names it: `NVIDIA H200`. */
  readonly name: string;
  /** Version of the driver, or of what stands in for one. */
  readonly driver: string;
  /** CUDA: the architecture that kernels are best generated for. */
  readonly architecture?: Architecture;
  readonly multiprocessors?: number;
  /** Of the last-level cache; inputs of a cold timing rotate through more than this. */
  readonly cacheBytes?: number;
  readonly uuid?: string;
}

export interface TimeOptions {
  /** Samples to take, each timed as a whole; at least 1. */
  readonly samples: number;
  /**
   * Times that every list runs within one sample: enough for a sample to be far longer than the clock's quantum. By a
   * device's own clock, a sample takes no more than 2^18 launches.
   */
  readonly rounds: number;
}

/** Launches that were prepared once, to run again and again. */
export interface Recording {
  /** Runs them in order, as `Device.run` would, with the buffers that were bound when they were recorded. */
  run(): Promise<void>;
  release(): void;
}

/**
 * What kvforge asks of a machine that runs kernels. Every method that takes bad input (a range past the end of a
 * buffer, a released buffer, an unknown binding) throws a `KvforgeError`; none returns wrong data.
 */
export interface Device {
  readonly kind: DeviceKind;
  readonly target: 'cuda' | 'wgsl';
  /** Adapter or device name, for reports. */
  readonly description: string;
  readonly identity: DeviceIdentity;
  /** Whose clock `time` reads: the device's, or the host's around a run of all launches. */
  readonly clock: 'device' | 'host';
  readonly limits: DeviceLimits;
  /** Features a kernel may require: `shader-f16`, `subgroups`, `sm_80`, ... */
  readonly features: ReadonlySet<string>;
  allocate(label: string, bytes: number): DeviceBuffer;
  write(buffer: DeviceBuffer, data: ArrayBufferView, offset?: number): void;
  /** Waits for all launches before it. */
  read(buffer: DeviceBuffer, offset?: number, bytes?: number): Promise<Uint8Array>;
  compile(kernels: readonly KernelText[]): Promise<readonly CompiledKernel[]>;
  /** Runs in order: each launch sees the writes of those before it. Resolves when all are done; rejects on a fault. */
  run(launches: readonly Launch[]): Promise<void>;
  /**
   * Prepares launches to run again and again; in CUDA a graph, so that a run is one call of the driver.
   * Buffers that they bind must not be released before the recording is.
   */
  record(launches: readonly Launch[]): Promise<Recording>;
  /**
   * Times lists of launches that do the same on different buffers: a sample runs list after list, `rounds` times over,
   * so that what a list reads has left the caches when it comes again. One warm-up round is not timed.
   *
   * @returns microseconds of one list, a sample each: the device's own clock where it has one (`clock` says which)
   */
  time(lists: readonly (readonly Launch[])[], options: TimeOptions): Promise<readonly number[]>;
  close(): Promise<void>;
}
