/** What the addon (`runtime/cuda/addon/`) exports: the driver and NVRTC without judgement. Only `runtime/cuda` calls it. */
export interface NativeAddon {
  /** Opens the first of the libraries that loads; a process has one driver. Rejects with a `NativeFailure`. */
  openDriver(paths: readonly string[]): Promise<{ readonly path: string; readonly version: number }>;
  /** Throws a `NativeFailure`. */
  devices(): readonly NativeDeviceFacts[];
  /** As `openDriver`. */
  openNvrtc(paths: readonly string[]): Promise<NvrtcFacts>;
  /** Each call compiles on a thread of its own. Rejects with a `NativeFailure` whose text is the compiler's log. */
  compile(request: CompileRequest): Promise<Uint8Array>;
  readonly Device: new (index: number) => NativeDevice;
}

export interface NvrtcFacts {
  readonly path: string;
  readonly version: string;
  /** Compute capabilities it compiles for: 80, 90, ... */
  readonly architectures: readonly number[];
}

export interface CompileRequest {
  readonly name: string;
  readonly source: string;
  readonly headerName: string;
  readonly header: string;
  readonly options: readonly string[];
  /** PTX for the driver to compile, in place of machine code. */
  readonly ptx: boolean;
}

export interface NativeDeviceFacts {
  readonly index: number;
  readonly name: string;
  readonly uuid: string;
  readonly bytes: number;
  readonly major: number;
  readonly minor: number;
  readonly multiprocessors: number;
  /** Of the L2 cache. */
  readonly cacheBytes: number;
  readonly sharedBytes: number;
  readonly threadsPerBlock: number;
  /** In x. */
  readonly blocks: number;
}

/**
 * One device. Methods that give promises run in the order they were called, on a thread of the device. Addresses are
 * device pointers as numbers; a launch list is `launchList.ts`'s.
 */
export interface NativeDevice {
  open(): Promise<void>;
  /** Throws a `NativeFailure` with `free`. */
  allocate(bytes: number): number;
  /** Does nothing for an address that was freed before. */
  free(address: number): void;
  /** Sets every byte to 0xff. */
  fill(address: number, bytes: number): Promise<void>;
  /** Copies the bytes before it returns. */
  write(address: number, offset: number, bytes: Uint8Array): Promise<void>;
  read(address: number, offset: number, into: Uint8Array): Promise<void>;
  load(image: Uint8Array, entry: string, threads: number, dynamicBytes: number): Promise<number>;
  run(launches: Float64Array, limitMs: number): Promise<void>;
  record(launches: Float64Array): Promise<number>;
  replay(graph: number, limitMs: number): Promise<void>;
  dropGraph(graph: number): Promise<void>;
  /** Milliseconds of `rounds` runs of the list, for each sample. */
  time(launches: Float64Array, rounds: number, samples: number, limitMs: number): Promise<Float64Array>;
  /** Frees what was allocated and not freed. An object that is collected unclosed does the same. */
  close(): Promise<void>;
}

/** What the addon throws and rejects with. */
export interface NativeFailure extends Error {
  /** The function of the driver or of NVRTC; or `library`, `symbol`, `timeout`, `lost`, `threads`. */
  readonly call: string;
  /** What the function gave; the limit in milliseconds of `timeout`, what there is room for of `threads`. */
  readonly code: number;
  /** As CUDA names the code; empty for what the addon found itself. */
  readonly cudaName: string;
  readonly text: string;
  /** Index of the launch that was refused, in its list; -1 for what is no launch. */
  readonly launch: number;
  /** Bytes free on the device; of allocations. */
  readonly free?: number;
}

export function isNativeFailure(error: unknown): error is NativeFailure {
  return error instanceof Error && 'call' in error && 'cudaName' in error;
}
