import { KvforgeError } from '../../../dsl/errors.js';
import type { BufferRange, CompiledKernel, Device, DeviceBuffer, KernelText, Launch } from '../../../runtime/device.js';
import { type ConformanceKernels, conformanceKernels } from './kernels.js';

/** A demand on every device. It throws where a device does not meet it, and gives a reason where it does not apply. */
export interface ConformanceCase {
  readonly name: string;
  run(bench: DeviceBench): Promise<string | undefined>;
}

/** `code: message` of the KvforgeError that an action throws or rejects with; other errors pass through. */
export async function faultOf(action: () => unknown): Promise<string> {
  try {
    await action();
  } catch (error) {
    if (error instanceof KvforgeError) return `${error.code}: ${error.message}`;
    throw error;
  }
  return 'no error';
}

export const words = (bytes: Uint8Array): number[] => [...new Uint32Array(bytes.slice().buffer)];

/** An open device with what the cases have in common. */
export class DeviceBench {
  readonly device: Device;
  /** Opens another device of the same kind. */
  readonly open: () => Promise<Device>;
  readonly texts: ConformanceKernels;
  readonly affine: CompiledKernel;
  readonly ones: DeviceBuffer;

  private constructor(device: Device, open: () => Promise<Device>, affine: CompiledKernel) {
    this.device = device;
    this.open = open;
    this.texts = conformanceKernels(device.target);
    this.affine = affine;
    this.ones = this.filled('ones', [1, 1, 1, 1]);
  }

  static async start(open: () => Promise<Device>): Promise<DeviceBench> {
    const device = await open();
    const [affine] = await device.compile([conformanceKernels(device.target).affine]);
    return new DeviceBench(device, open, affine!);
  }

  filled(label: string, values: ArrayLike<number>): DeviceBuffer {
    const buffer = this.device.allocate(label, values.length * 4);
    this.device.write(buffer, Uint32Array.from(values));
    return buffer;
  }

  zeros(label: string, count: number): DeviceBuffer {
    return this.filled(label, new Uint32Array(count));
  }

  async compileOne(text: KernelText): Promise<CompiledKernel> {
    return (await this.device.compile([text]))[0]!;
  }

  launch(bindings: Record<string, BufferRange>, grid: readonly [number, number, number] = [1, 1, 1]): Promise<void> {
    return this.device.run([{ kernel: this.affine, grid, bindings }]);
  }

  /** `output = 3 input + 1` on the first `count` words. */
  step(input: DeviceBuffer, output: DeviceBuffer, count: number): Launch {
    const params = { buffer: this.filled('params', [count]) };
    const bindings = { params, input: { buffer: input }, output: { buffer: output } };
    return { kernel: this.affine, grid: [Math.ceil(count / 64), 1, 1], bindings };
  }

  async read(buffer: DeviceBuffer): Promise<number[]> {
    return words(await this.device.read(buffer));
  }
}
