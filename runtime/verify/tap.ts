import type {
  CompiledKernel,
  Device,
  DeviceBuffer,
  DeviceIdentity,
  DeviceKind,
  DeviceLimits,
  KernelText,
  Launch,
  Recording,
  TimeOptions,
} from '../device.js';
import { RepeatedLaunches } from '../recorded.js';

/** A device that also reads back one binding of some kernels after they ran: scratch that the cache does not keep. */
export class Tap implements Device {
  readonly #device: Device;
  readonly #bindings: Readonly<Record<string, string>>;
  readonly #apart: boolean;
  readonly #bytes = new Map<string, Uint8Array>();

  /** @param tapped `apart` runs launches one by one, each with the time that the device gives to a whole list */
  constructor(
    device: Device,
    tapped: { readonly bindings: Readonly<Record<string, string>>; readonly apart: boolean },
  ) {
    this.#device = device;
    this.#bindings = tapped.bindings;
    this.#apart = tapped.apart;
  }

  /** The tapped binding of a kernel as the last run left it. */
  bytesOf(entry: string): Uint8Array | undefined {
    return this.#bytes.get(entry);
  }

  get kind(): DeviceKind {
    return this.#device.kind;
  }
  get target(): 'cuda' | 'wgsl' {
    return this.#device.target;
  }
  get description(): string {
    return this.#device.description;
  }
  get identity(): DeviceIdentity {
    return this.#device.identity;
  }
  get clock(): 'device' | 'host' {
    return this.#device.clock;
  }
  get limits(): DeviceLimits {
    return this.#device.limits;
  }
  get features(): ReadonlySet<string> {
    return this.#device.features;
  }
  allocate(label: string, bytes: number): DeviceBuffer {
    return this.#device.allocate(label, bytes);
  }
  write(buffer: DeviceBuffer, data: ArrayBufferView, offset?: number): void {
    this.#device.write(buffer, data, offset);
  }
  read(buffer: DeviceBuffer, offset?: number, bytes?: number): Promise<Uint8Array> {
    return this.#device.read(buffer, offset, bytes);
  }
  compile(kernels: readonly KernelText[]): Promise<readonly CompiledKernel[]> {
    return this.#device.compile(kernels);
  }
  async run(launches: readonly Launch[]): Promise<void> {
    if (this.#apart) for (const launch of launches) await this.#device.run([launch]);
    else await this.#device.run(launches);
    for (const { kernel, bindings } of launches) {
      const { entry } = kernel.descriptor;
      // Schemes differ in what their kernels bind.
      const range = bindings[this.#bindings[entry] ?? ''];
      if (range !== undefined) this.#bytes.set(entry, await this.#device.read(range.buffer));
    }
  }
  /** Its runs are tapped too, so the launches run one list at a time as `run` does them. */
  async record(launches: readonly Launch[]): Promise<Recording> {
    // The device checks the launches now, as it would on its own.
    (await this.#device.record(launches)).release();
    return new RepeatedLaunches(launches, (kept) => this.run(kept));
  }
  time(lists: readonly (readonly Launch[])[], options: TimeOptions): Promise<readonly number[]> {
    return this.#device.time(lists, options);
  }
  close(): Promise<void> {
    return this.#device.close();
  }
}

/**
 * What the cases of a whole prompt need: the basis before it is int8, the variances that widths are allocated by, and
 * what the queries made of tokens and heads.
 */
export const promptTaps = {
  basis_store: 'columns',
  basis_jacobi: 'values',
  gram_keys: 'token_weights',
  weigh_finish: 'head_factors',
  tilt_store: 'vectors',
} as const;
