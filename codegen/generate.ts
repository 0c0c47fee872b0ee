import type { ModelShape } from '../dsl/model.js';
import type { Scheme } from '../dsl/scheme.js';
import type { Target } from '../dsl/stage.js';
import { diskAssets } from './assetsDisk.js';
import { type GeneratedKernels, generateFrom, type TunableChoice } from './generateFrom.js';

export { defaultTargets, type GeneratedKernels, manifestText, type TunableChoice } from './generateFrom.js';

/**
 * Specialises a scheme to a model and a target. The same input gives the same bytes.
 *
 * @param target always to be told, as there are two languages here; `generate` of `kvforge/browser` takes WGSL if left out
 * @throws KvforgeError `wrong-use` (an unknown stage, tunable or target), `invalid-scheme`, `does-not-fit` (with the reason), `lowering` (at the line of a device function)
 * @example
 * const kernels = await generate(shard, presetModel('llama-3.1-8b'), { language: 'cuda', arch: 'sm_90', tensorCores: true });
 * kernels.files.get('attend.cu')!.includes('__global__'); // true
 */
export function generate(
  scheme: Scheme,
  model: ModelShape,
  target: Target,
  choice: TunableChoice = {},
): Promise<GeneratedKernels> {
  return generateFrom(diskAssets, scheme, model, target, choice);
}
