import { type FeatureChoice, requestGpuDevice } from './adapter.js';
import { type FromGpuDeviceOptions, GpuDevice } from './gpuDevice.js';

export type { FromGpuDeviceOptions } from './gpuDevice.js';

export interface WebGpuOptions extends FromGpuDeviceOptions {
  /** Default `any`: hardware where there is some, else software; `description` says which. */
  readonly adapter?: 'software' | 'hardware' | 'any';
  /** Default `all`: what the adapter has of shader-f16, subgroups and timestamp-query. */
  readonly features?: FeatureChoice;
}

/**
 * A WebGPU device of this process (Dawn).
 *
 * @example
 * const device = await WebGpuDevice.open({ adapter: 'software' });
 * // doubling.wgsl: the descriptor and the text of a kernel that doubles four words.
 * const [kernel] = await device.compile([doubling.wgsl]);
 * const [input, output] = [device.allocate('input', 16), device.allocate('output', 16)];
 * device.write(input, Uint32Array.of(1, 2, 3, 4));
 * const bindings = { input: { buffer: input }, output: { buffer: output } };
 * await device.run([{ kernel: kernel!, grid: [1, 1, 1], bindings }]);
 * new Uint32Array((await device.read(output)).buffer); // [2, 4, 6, 8]
 * await device.close();
 */
export class WebGpuDevice extends GpuDevice {
  /** Opens a device. Needs the npm package `webgpu`, and `@sparticuz/chromium` for the software adapter. */
  static async open(options: WebGpuOptions = {}): Promise<WebGpuDevice> {
    const { findAdapter } = await import('./dawn.js');
    const adapter = await findAdapter(options.adapter);
    return WebGpuDevice.fromGpuDevice(adapter, await requestGpuDevice(adapter, options.features), options);
  }

  /**
   * Wraps a device that is open; `requestGpuDevice(adapter)` asks for one with all that kernels may need.
   *
   * @example
   * const adapter = (await navigator.gpu.requestAdapter())!;
   * const device = WebGpuDevice.fromGpuDevice(adapter, await requestGpuDevice(adapter));
   * device.kind; // 'webgpu'
   */
  static fromGpuDevice(adapter: GPUAdapter, device: GPUDevice, options: FromGpuDeviceOptions = {}): WebGpuDevice {
    return new WebGpuDevice(adapter, device, options);
  }
}
