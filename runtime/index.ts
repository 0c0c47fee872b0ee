export { type CacheCapacity, KvCache } from './cache.js';
export type { BufferRange, Device, DeviceBuffer, DeviceKind, DeviceLimits, Launch } from './device.js';
export { EmulatorDevice } from './emulator/emulator.js';
export { LoadedKernels } from './kernels.js';
export * as reference from './reference/index.js';
export { parseSafetensors, type Tensor, tensorValues } from './safetensors.js';
export { WebGpuDevice } from './webgpu/webgpu.js';
