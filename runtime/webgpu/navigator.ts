import { KvforgeError } from '../../dsl/errors.js';
import { type FeatureChoice, requestGpuDevice } from './adapter.js';
import { type FromGpuDeviceOptions, GpuDevice } from './gpuDevice.js';

export interface BrowserGpuOptions extends FromGpuDeviceOptions {
  /** Which of two GPUs; the browser chooses if left out. */
  readonly powerPreference?: 'low-power' | 'high-performance';
  /** Default `all`: what the adapter has of shader-f16, subgroups and timestamp-query. */
  readonly features?: FeatureChoice;
}

/** What is used of a browser's globals, which Node's types lack. */
interface BrowserGlobals {
  readonly navigator?: { readonly gpu?: GPU };
  readonly isSecureContext?: boolean;
}

/**
 * A WebGPU device of a browser, from `navigator.gpu`; also in a worker.
 *
 * @example
 * const device = await WebGpuDevice.open();
 * const kernels = await LoadedKernels.load(device, await generate(shard, model), ['attend']);
 */
export class WebGpuDevice extends GpuDevice {
  /**
   * Opens a device with all the limits of its adapter.
   *
   * @throws KvforgeError `missing-capability` where the page has no WebGPU, or the browser no adapter
   */
  static async open({ powerPreference, features, ...options }: BrowserGpuOptions = {}): Promise<WebGpuDevice> {
    const adapter = await requestAdapter(powerPreference === undefined ? {} : { powerPreference });
    return WebGpuDevice.fromGpuDevice(adapter, await requestGpuDevice(adapter, features), options);
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

async function requestAdapter(options: GPURequestAdapterOptions): Promise<GPUAdapter> {
  const { navigator, isSecureContext } = globalThis as BrowserGlobals;
  const refuse = (expected: string, received: string, hint: string): never => {
    throw new KvforgeError('missing-capability', { at: 'webgpu device', expected, received, hint });
  };
  if (navigator?.gpu === undefined) {
    // Browsers hide WebGPU from pages that came over plain http.
    return isSecureContext === false
      ? refuse('a secure context', 'a page without one', 'Serve the page over https, or from localhost.')
      : refuse(
          'navigator.gpu',
          'a browser without WebGPU',
          'Use a browser that has it, or turn it on in its settings.',
        );
  }
  const adapter = await navigator.gpu.requestAdapter(options);
  return adapter ?? refuse('an adapter', 'none', 'Turn hardware acceleration on, or update the driver of the GPU.');
}
