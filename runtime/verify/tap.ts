import type { CompiledKernel, Device, DeviceBuffer, DeviceKind, DeviceLimits, KernelText, Launch } from '../device.js';

/** A device that also reads back one binding of one kernel after it ran: scratch that the cache does not keep. */
export class Tap implements Device {
  readonly #device: Device;
  readonly #entry: string;
  readonly #binding: string;
  readonly #apart: boolean;
  /** As the last run left it. */
  bytes: Uint8Array | undefined;

  /** @param tapped `apart` runs launches one by one, each with the time that the device gives to a whole list */
  constructor(device: Device, tapped: { readonly entry: string; readonly binding: string; readonly apart: boolean }) {
    this.#device = device;
    this.#entry = tapped.entry;
    this.#binding = tapped.binding;
    this.#apart = tapped.apart;
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
    const tapped = launches.find(({ kernel }) => kernel.descriptor.entry === this.#entry);
    if (tapped) this.bytes = await this.#device.read(tapped.bindings[this.#binding]!.buffer);
  }
  close(): Promise<void> {
    return this.#device.close();
  }
}
