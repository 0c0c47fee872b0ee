import { readdir, readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { builtinsFile } from '../codegen/builtins.js';
import { defaultTargets, generate, manifestText } from '../codegen/generate.js';
import { generateFp16 } from '../codegen/generateFp16.js';
import { packagePath } from '../codegen/packageRoot.js';
import { presetModel } from '../dsl/model.js';
import { fp8E4M3 } from '../dsl/schemes/fp8.js';
import { int4Hadamard, int8 } from '../dsl/schemes/integer.js';
import { kivi4 } from '../dsl/schemes/kivi.js';
import { kvquant3 } from '../dsl/schemes/kvquant.js';
import { latentInt4Hadamard, latentInt8 } from '../dsl/schemes/latent.js';
import { normalFloat4 } from '../dsl/schemes/nf4.js';
import { polarQuant4 } from '../dsl/schemes/polarquant.js';
import { shard } from '../dsl/schemes/shard.js';
import { shardPlus } from '../dsl/schemes/shardPlus.js';
import { tiltFast, tiltSafe } from '../dsl/schemes/tilt.js';
import { turboQuant3 } from '../dsl/schemes/turboquant.js';
import { turboQuantProd4 } from '../dsl/schemes/turboquantProd.js';
import { lowerBuiltins } from './lowerBuiltins.js';

/** The kernels that are checked in: every change of a template or a codec shows in review as a change of these. */
const goldens = [
  { scheme: shard, model: 'llama-3.1-8b' },
  { scheme: shard, model: 'smollm2-135m' },
  // Seven query heads on a KV head; heads of 96 channels, each with its own KV head; heads of 256, capped and sliding.
  { scheme: shard, model: 'qwen2.5-7b' },
  { scheme: shard, model: 'phi-3-mini' },
  { scheme: shard, model: 'gemma-2-9b' },
  { scheme: shardPlus, model: 'llama-3.1-8b' },
  { scheme: shardPlus, model: 'smollm2-135m' },
  // Attention over latents on tensor cores, and without.
  { scheme: latentInt8, model: 'deepseek-v3' },
  { scheme: latentInt4Hadamard, model: 'deepseek-v2-lite' },
  { scheme: tiltFast, model: 'llama-3.1-8b' },
  { scheme: tiltFast, model: 'smollm2-135m' },
  { scheme: tiltSafe, model: 'smollm2-135m' },
] as const;

/** Of every file of scalar presets one, for both models; the others differ from it in bits or in a table. */
const scalarGoldens = [
  kivi4,
  kvquant3,
  polarQuant4,
  turboQuant3,
  turboQuantProd4,
  int8,
  int4Hadamard,
  normalFloat4,
  fp8E4M3,
];
const scalarModels = ['llama-3.1-8b', 'smollm2-135m'] as const;
/** Kernels that all schemes have alike. */
const sharedKernels = /^(copy_exact|copy_words|move_words|mass_scores|mass_tokens|append_token|attend_merge)\./;

/** Models whose uncompressed attention is checked in too. */
const fp16Goldens = ['llama-3.1-8b', 'smollm2-135m'] as const;

/** Every file of `generated/` as the sources give it, by path below that folder. */
export async function wantedGoldens(): Promise<Map<string, string>> {
  const files = new Map([[relative(packagePath('generated'), builtinsFile), await lowerBuiltins()]]);
  for (const { scheme, model } of goldens) {
    for (const target of Object.values(defaultTargets)) {
      const kernels = await generate(scheme, presetModel(model), target);
      const folder = join(scheme.name, model, target.language);
      for (const [name, text] of kernels.files) files.set(join(folder, name), text);
      files.set(join(folder, 'manifest.json'), manifestText(kernels.manifest));
    }
  }
  for (const scheme of scalarGoldens) {
    for (const model of scalarModels) {
      for (const target of Object.values(defaultTargets)) {
        const kernels = await generate(scheme, presetModel(model), target);
        const folder = join(scheme.name, model, target.language);
        for (const [name, text] of kernels.files) if (!sharedKernels.test(name)) files.set(join(folder, name), text);
        files.set(join(folder, 'manifest.json'), manifestText(kernels.manifest));
      }
    }
  }
  // Of Hopper only what differs: attention that turns queries, for slow pairs, or for tiles.
  const hopper = await generate(shard, presetModel('llama-3.1-8b'), {
    language: 'cuda',
    arch: 'sm_90a',
    tensorCores: true,
  });
  for (const name of ['attend.cu', 'prelude.cuh']) {
    files.set(join(shard.name, 'llama-3.1-8b', 'cuda-sm_90a', name), hopper.files.get(name)!);
  }
  const tilted = await generate(tiltFast, presetModel('llama-3.1-8b'), {
    language: 'cuda',
    arch: 'sm_90a',
    tensorCores: true,
  });
  for (const name of ['attend.cu', 'prelude.cuh']) {
    files.set(join(tiltFast.name, 'llama-3.1-8b', 'cuda-sm_90a', name), tilted.files.get(name)!);
  }
  for (const model of fp16Goldens) {
    for (const target of Object.values(defaultTargets)) {
      const kernels = await generateFp16(presetModel(model), target);
      const folder = join('fp16', model, target.language);
      for (const [name, text] of kernels.files) files.set(join(folder, name), text);
      files.set(join(folder, 'manifest.json'), manifestText(kernels.manifest));
    }
  }
  return files;
}

/** Every file that is checked in under `generated/`. */
export async function presentGoldens(): Promise<Map<string, string>> {
  const root = packagePath('generated');
  const entries = await readdir(root, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  return new Map(
    await Promise.all(files.map(async (file) => [relative(root, file), await readFile(file, 'utf8')] as const)),
  );
}
