/**
 * kvforge in a browser: everything of `kvforge`, and the kernels in WGSL, generated and run in the page. No module from
 * here on knows Node, ts-morph or a file.
 *
 * @example
 * import { generate, KvCache, LoadedKernels, presetModel, shard, WebGpuDevice } from 'kvforge/browser';
 * const kernels = await generate(shard, presetModel('smollm2-135m'));
 * const loaded = await LoadedKernels.load(await WebGpuDevice.open(), kernels);
 * const cache = KvCache.open(loaded, { sequences: 1, tokens: 2048, generated: 64 });
 */
import { bundledAssets } from '../codegen/assetsBundled.js';
import { type Fp16Kernels, generateFp16From } from '../codegen/generateFp16From.js';
import { defaultTargets, type GeneratedKernels, generateFrom, type TunableChoice } from '../codegen/generateFrom.js';
import type { ModelShape } from '../dsl/model.js';
import type { Scheme } from '../dsl/scheme.js';
import type { Target } from '../dsl/stage.js';

export type { Fp16Kernels, Fp16Manifest } from '../codegen/generateFp16From.js';
export { defaultTargets, type GeneratedKernels, manifestText, type TunableChoice } from '../codegen/generateFrom.js';
export type { KernelDescriptor, Manifest } from '../codegen/manifest.js';
export { type SequenceLayout, splitPrompt } from '../codegen/plan/layout.js';
export * from '../dsl/index.js';
export {
  type AppendOptions,
  type AttendOptions,
  type CacheCapacity,
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
export { type Calibration, packCalibration, parseCalibration } from './calibrate/file.js';
export type {
  BufferRange,
  Device,
  DeviceBuffer,
  DeviceIdentity,
  DeviceLimits,
  Launch,
  Recording,
  TimeOptions,
} from './device.js';
export { Fp16Attention, type Fp16Capacity, type Fp16Options, type Fp16Tokens } from './fp16Attention.js';
export { LoadedKernels } from './kernels.js';
export { Evictor } from './policies/evictor.js';
export { type HeavyHitterBudget, heavyHitters } from './policies/heavyHitters.js';
export type { CachePolicy, HeldTokens } from './policies/policy.js';
export { type SlidingSinks, slidingSinks } from './policies/slidingSinks.js';
export type { SequenceLengths } from './record.js';
export { requestGpuDevice } from './webgpu/adapter.js';
export { type BrowserGpuOptions, WebGpuDevice } from './webgpu/navigator.js';

/**
 * Specialises a scheme to a model, in WGSL: byte for byte what `generate` of `kvforge/codegen` gives in Node. Codecs of
 * a file of one's own have to be lowered, which only Node can.
 *
 * @throws KvforgeError `missing-capability` (another language, a codec with a source), `wrong-use` (an unknown stage, tunable or target), `invalid-scheme`, `does-not-fit` (with the reason)
 * @example
 * const { files } = await generate(shard, presetModel('smollm2-135m'));
 * files.get('attend.wgsl')!.includes('@compute'); // true
 */
export function generate(
  scheme: Scheme,
  model: ModelShape,
  target: Target = defaultTargets.wgsl,
  choice: TunableChoice = {},
): Promise<GeneratedKernels> {
  return generateFrom(bundledAssets, scheme, model, target, choice);
}

/**
 * Attention over an uncompressed cache, in WGSL: byte for byte what `generateFp16` of `kvforge/codegen` gives in Node.
 *
 * @param choice tunables of the stage by name: `{ tileTokens: 16 }`
 * @throws KvforgeError `missing-capability` (another language), `wrong-use` (an unknown tunable or target), `does-not-fit`
 * (with the reason)
 * @example
 * const uncompressed = await generateFp16(presetModel('smollm2-135m'));
 * uncompressed.files.get('attend_fp16.wgsl')!.includes('@compute'); // true
 */
export function generateFp16(
  model: ModelShape,
  target: Target = defaultTargets.wgsl,
  choice: Readonly<Record<string, number>> = {},
): Promise<Fp16Kernels> {
  return generateFp16From(bundledAssets, model, target, choice);
}
