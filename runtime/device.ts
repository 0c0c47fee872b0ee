import type { KernelDescriptor } from '../codegen/manifest.js';

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

/**
 * What kvforge asks of a machine that runs kernels. Every method that takes bad input (a range past the end of a
 * buffer, a released buffer, an unknown binding) throws a `KvforgeError`; none returns wrong data.
 */
export interface Device {
  readonly kind: DeviceKind;
  readonly target: 'cuda' | 'wgsl';
  /** Adapter or device name, for reports. */
  readonly description: string;
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
  close(): Promise<void>;
}
