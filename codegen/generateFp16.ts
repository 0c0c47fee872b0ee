import type { ModelShape } from '../dsl/model.js';
import type { Target } from '../dsl/stage.js';
import { diskAssets } from './assetsDisk.js';
import { type Fp16Kernels, generateFp16From } from './generateFp16From.js';

export type { Fp16Kernels, Fp16Manifest } from './generateFp16From.js';

/**
 * Specialises attention over f16 keys (after RoPE) and values to a model and a target. It depends on no scheme: it is
 * what a compressed cache is measured against.
 *
 * @param choice tunables of the stage by name: `{ warps: 4 }`
 * @throws KvforgeError `wrong-use` (an unknown tunable or target), `does-not-fit` (with the reason)
 * @example
 * const fp16 = await generateFp16(presetModel('llama-3.1-8b'), { language: 'cuda', arch: 'sm_90', tensorCores: true });
 * fp16.files.get('attend_fp16.cu')!.includes('__global__'); // true
 */
export function generateFp16(
  model: ModelShape,
  target: Target,
  choice: Readonly<Record<string, number>> = {},
): Promise<Fp16Kernels> {
  return generateFp16From(diskAssets, model, target, choice);
}
