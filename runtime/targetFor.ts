import type { Target } from '../dsl/stage.js';
import type { Device } from './device.js';

/**
 * The target whose kernels suit a device best: its own architecture and features, where `defaultTargets` has what every
 * device runs.
 *
 * @example
 * targetFor(device).language; // 'cuda'
 * const kernels = await LoadedKernels.load(device, await generate(shard, model, targetFor(device)));
 */
export function targetFor(device: Device): Target {
  if (device.target === 'cuda') {
    return { language: 'cuda', arch: device.identity.architecture ?? 'sm_80', tensorCores: true };
  }
  return {
    language: 'wgsl',
    f16: device.features.has('shader-f16'),
    subgroups: device.features.has('subgroups'),
    workgroupBytes: device.limits.sharedBytes,
  };
}
