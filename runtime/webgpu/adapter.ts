import { KvforgeError } from '../../dsl/errors.js';
import type { DeviceIdentity } from '../device.js';

/** Optional WebGPU features that kernels or reports use. No others are asked for, so that kernels stay portable. */
export const USED_FEATURES = [
  'shader-f16',
  'subgroups',
  'timestamp-query',
  'chromium-experimental-subgroup-matrix',
] as const;

/** What Dawn tells of subgroup matrices, which are no part of WebGPU's types yet. */
interface MatrixInfo {
  readonly subgroupMatrixConfigs?: readonly {
    readonly componentType: string;
    readonly resultComponentType: string;
    readonly M: number;
    readonly N: number;
    readonly K: number;
  }[];
}

/** Whether the adapter has the one product of matrices that kernels use: f16 to f32, 16 x 16 x 16, in subgroups of 32. */
function multipliesMatrices({ info }: GPUAdapter): boolean {
  const { subgroupMinSize, subgroupMaxSize } = info;
  const { subgroupMatrixConfigs = [] } = info as MatrixInfo;
  return (
    subgroupMinSize === 32 &&
    subgroupMaxSize === 32 &&
    subgroupMatrixConfigs.some(
      ({ componentType, resultComponentType, M, N, K }) =>
        componentType === 'f16' && resultComponentType === 'f32' && M === 16 && N === 16 && K === 16,
    )
  );
}

/** Those of USED_FEATURES that kernels can use on the adapter. */
export function usableFeatures(adapter: GPUAdapter): readonly (typeof USED_FEATURES)[number][] {
  return USED_FEATURES.filter(
    (name) =>
      adapter.features.has(name) && (name !== 'chromium-experimental-subgroup-matrix' || multipliesMatrices(adapter)),
  );
}

export type FeatureChoice = 'all' | readonly string[];

/**
 * Browsers and Dawn mark software adapters as fallback adapters; the known rasterisers are named too, since a driver
 * reached through a translation layer loses that mark.
 */
export function isSoftware({ info }: GPUAdapter): boolean {
  return (
    info.isFallbackAdapter || namesSoftware(`${info.vendor} ${info.architecture} ${info.device} ${info.description}`)
  );
}

/** Whether a text about an adapter names a rasteriser that runs on a CPU. */
export function namesSoftware(text: string): boolean {
  return /swiftshader|llvmpipe|lavapipe|softpipe|basic render|\bwarp\b/i.test(text);
}

/** Name for reports, which always says when the adapter is software. */
export function describeAdapter(adapter: GPUAdapter): string {
  const { vendor, architecture, device, description } = adapter.info;
  const family = [vendor, architecture].filter((part) => part !== '').join(' ') || 'unnamed adapter';
  const detail = description || device;
  return `${family}${detail === '' ? '' : `: ${detail}`} (${isSoftware(adapter) ? 'software' : 'hardware'})`;
}

/** Browsers keep most of this to themselves, and then what is missing is said to be unknown. */
export function identifyAdapter({ info }: GPUAdapter): DeviceIdentity {
  const family = [info.vendor, info.architecture].filter((part) => part !== '').join(' ');
  return { name: info.device || family || 'unknown', driver: info.description || 'unknown' };
}

/**
 * Opens a device with the limits of its adapter, since the default ones are those of the smallest phone, and with the
 * features asked for.
 *
 * @example
 * const adapter = (await navigator.gpu.requestAdapter())!;
 * const device = await requestGpuDevice(adapter);
 * device.limits.maxBufferSize; // adapter.limits.maxBufferSize
 */
export async function requestGpuDevice(adapter: GPUAdapter, features: FeatureChoice = 'all'): Promise<GPUDevice> {
  const wanted = features === 'all' ? usableFeatures(adapter) : features;
  const absent = wanted.filter((name) => !adapter.features.has(name));
  if (absent.length > 0) {
    throw new KvforgeError('missing-capability', {
      at: 'webgpu device',
      expected: `an adapter with ${absent.join(', ')}`,
      received: describeAdapter(adapter),
      hint: "Open another adapter, or ask for features: 'all' to take what there is.",
    });
  }
  const requiredLimits: Record<string, number> = {};
  // The limits are getters of the prototype, which `for in` lists and `Object.entries` does not.
  for (const name in adapter.limits) {
    const value = adapter.limits[name as keyof GPUSupportedLimits];
    if (typeof value === 'number') requiredLimits[name] = value;
  }
  return adapter.requestDevice({
    label: 'kvforge',
    requiredLimits,
    requiredFeatures: wanted as Iterable<GPUFeatureName>,
  });
}
