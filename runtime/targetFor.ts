import type { Target } from '../dsl/stage.js';
import type { Device } from './device.js';

/** What of a device decides: what a tuner remembers of one is enough. */
export interface TargetFacts extends Pick<Device, 'target' | 'features'> {
  readonly identity: { readonly architecture?: Device['identity']['architecture'] | undefined };
  readonly limits: Pick<Device['limits'], 'sharedBytes'>;
}

/**
 * The target whose kernels suit a device best: its own architecture and features, where `defaultTargets` has what every
 * device runs.
 *
 * @example
 * targetFor(device).language; // 'cuda'
 * const kernels = await LoadedKernels.load(device, await generate(shard, model, targetFor(device)));
 */
export function targetFor(device: TargetFacts): Target {
  if (device.target === 'cuda') {
    return { language: 'cuda', arch: device.identity.architecture ?? 'sm_80', tensorCores: true };
  }
  const wgsl = {
    language: 'wgsl',
    f16: device.features.has('shader-f16'),
    subgroups: device.features.has('subgroups'),
    workgroupBytes: device.limits.sharedBytes,
  } as const;
  const matrices = wgsl.f16 && wgsl.subgroups && device.features.has('chromium-experimental-subgroup-matrix');
  return matrices ? { ...wgsl, subgroupMatrices: true } : wgsl;
}
