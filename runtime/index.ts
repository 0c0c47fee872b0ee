export { type ArchivedPart, type ArchiveSummary, inspectArchive } from './archive/inspect.js';
export { type ArchiveInput, type ArchiveLayer, type PackOptions, packArchive } from './archive/pack.js';
export { type UnpackedArchive, type UnpackedLayer, type UnpackOptions, unpackArchive } from './archive/unpack.js';
export {
  type AppendOptions,
  type AttendOptions,
  type CacheCapacity,
  type ClampedOutliers,
  type DecodedTokens,
  type Decoder,
  type DecoderBuffers,
  type DecoderOptions,
  evictionBlocks,
  evictionUnit,
  type KeptTokens,
  KvCache,
  type Prompt,
  type TokenBlock,
  type TokenWeights,
  type TokenWeightsOptions,
} from './cache.js';
export { loadCache, saveCache } from './cacheFile.js';
export { type Calibration, packCalibration, parseCalibration } from './calibrate/file.js';
export { type CalibrationText, fitTexts } from './calibrate/fit.js';
export { CudaDevice, type CudaOptions } from './cuda/cudaDevice.js';
export type { CudaDeviceFacts } from './cuda/driver.js';
export type {
  BufferRange,
  Device,
  DeviceBuffer,
  DeviceIdentity,
  DeviceKind,
  DeviceLimits,
  Launch,
  Recording,
  TimeOptions,
} from './device.js';
export { EmulatorDevice } from './emulator/emulator.js';
export { type FitLevelsOptions, fitLevels } from './fitLevels.js';
export { Fp16Attention, type Fp16Capacity, type Fp16Options, type Fp16Tokens } from './fp16Attention.js';
export { LoadedKernels, type LoadOptions } from './kernels.js';
export { Evictor } from './policies/evictor.js';
export { type HeavyHitterBudget, heavyHitters } from './policies/heavyHitters.js';
export type { CachePolicy, HeldTokens } from './policies/policy.js';
export { type SlidingSinks, slidingSinks } from './policies/slidingSinks.js';
export type { SequenceLengths } from './record.js';
export * as reference from './reference/index.js';
export { parseSafetensors, type Tensor, tensorValues } from './safetensors.js';
export { type TargetFacts, targetFor } from './targetFor.js';
export type { LockEntry } from './tune/lock/format.js';
export type { Locked } from './tune/lock/lookup.js';
export { readTuned, type Tuned, type TunedFor } from './tune/lock/tuned.js';
export type { TunedSplits } from './tune/nearest.js';
export type { ShapeClass } from './tune/shapeClass.js';
export { type VerifyFailure, type VerifyOptions, type VerifyResult, verifyScheme } from './verify/verifyScheme.js';
export { requestGpuDevice } from './webgpu/adapter.js';
export { WebGpuDevice } from './webgpu/webgpu.js';
