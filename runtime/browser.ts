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
import { defaultTargets, type GeneratedKernels, generateFrom, type TunableChoice } from '../codegen/generateFrom.js';
import type { ModelShape } from '../dsl/model.js';
import type { Scheme } from '../dsl/scheme.js';
import type { Target } from '../dsl/stage.js';

export { defaultTargets, type GeneratedKernels, manifestText, type TunableChoice } from '../codegen/generateFrom.js';
export type { KernelDescriptor, Manifest } from '../codegen/manifest.js';
export { type SequenceLayout, splitPrompt } from '../codegen/plan/layout.js';
export * from '../dsl/index.js';
export {
  type AppendOptions,
  type AttendOptions,
  type CacheCapacity,
  type DecodedTokens,
  KvCache,
  type Prompt,
} from './cache.js';
export type { BufferRange, Device, DeviceBuffer, DeviceLimits, Launch } from './device.js';
export { LoadedKernels } from './kernels.js';
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
