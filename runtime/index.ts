export {
  type AppendOptions,
  type AttendOptions,
  type CacheCapacity,
  type DecodedTokens,
  KvCache,
  type Prompt,
} from './cache.js';
export { loadCache, saveCache } from './cacheFile.js';
export type { BufferRange, Device, DeviceBuffer, DeviceKind, DeviceLimits, Launch } from './device.js';
export { EmulatorDevice } from './emulator/emulator.js';
export { LoadedKernels } from './kernels.js';
export type { SequenceLengths } from './record.js';
export * as reference from './reference/index.js';
export { parseSafetensors, type Tensor, tensorValues } from './safetensors.js';
export { requestGpuDevice } from './webgpu/adapter.js';
export { WebGpuDevice } from './webgpu/webgpu.js';
