import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { KvforgeError } from '../dsl/errors.js';
import { type Geometry, geometryOf } from '../dsl/geometry.js';
import type { ModelShape } from '../dsl/model.js';
import { defineScheme, type Scheme } from '../dsl/scheme.js';
import { checkTarget, chooseTunables, type Target } from '../dsl/stage.js';
import { stages } from '../dsl/stages/index.js';
import { deviceFunctions } from './builtins.js';
import { type KernelDescriptor, type Manifest, schemeRecord } from './manifest.js';
import { packagePath } from './packageRoot.js';
import { partsOf, recordEntries, recordWords, tablesOf } from './plan/layout.js';
import { renderKernel } from './render.js';
import { loadTemplates } from './templates.js';

/** Tunables by stage name: `{ attend: { warps: 8 } }`. */
export type TunableChoice = Readonly<Record<string, Readonly<Record<string, number>>>>;

/** Kernels of one scheme for one model and target: texts, and the manifest that says how to run them. */
export interface GeneratedKernels {
  readonly geometry: Geometry;
  readonly target: Target;
  readonly manifest: Manifest;
  /** File name to text, without the manifest. */
  readonly files: ReadonlyMap<string, string>;
}

/** The target every machine can run, for each language. */
export const defaultTargets = {
  cuda: { language: 'cuda', arch: 'sm_80', tensorCores: true },
  wgsl: { language: 'wgsl', f16: false, subgroups: false, workgroupBytes: 16384 },
} as const satisfies Readonly<Record<string, Target>>;

/**
 * Specialises a scheme to a model and a target. The same input gives the same bytes.
 *
 * @throws KvforgeError `wrong-use` (an unknown stage, tunable or target), `invalid-scheme`, `does-not-fit` (with the reason), `lowering` (at the line of a device function)
 * @example
 * const kernels = await generate(shard, presetModel('llama-3.1-8b'), { language: 'cuda', arch: 'sm_90', tensorCores: true });
 * kernels.files.get('attend.cu');
 */
export async function generate(
  scheme: Scheme,
  model: ModelShape,
  target: Target,
  choice: TunableChoice = {},
): Promise<GeneratedKernels> {
  checkTarget(target);
  const names = stages.map(({ name }) => name);
  for (const name of Object.keys(choice)) {
    if (names.includes(name)) continue;
    throw new KvforgeError('wrong-use', {
      at: `choice.${name}`,
      expected: `a stage of ${names.join(', ')}`,
      received: name,
      hint: 'Name the stage that has the tunable.',
    });
  }
  const geometry = geometryOf(defineScheme(scheme), model);
  const [library, templates] = await Promise.all([deviceFunctions(scheme), loadTemplates(target.language)]);
  const ending = target.language === 'cuda' ? 'cu' : 'wgsl';
  const files = new Map<string, string>();
  const kernels: KernelDescriptor[] = [];
  for (const stage of stages) {
    const tunables = chooseTunables(stage, geometry, target, choice[stage.name] ?? {});
    for (const kernel of stage.kernels(geometry, tunables, target)) {
      const file = `${kernel.entry}.${ending}`;
      files.set(file, renderKernel({ geometry, target, stage, tunables, kernel, library, templates }));
      kernels.push({
        stage: stage.name,
        entry: kernel.entry,
        file,
        target: target.language,
        bindings: kernel.bindings,
        threads: kernel.threads,
        grid: kernel.grid,
        sharedBytes: kernel.sharedBytes,
        requires: requirements(target, kernel.requires ?? []),
        tunables,
      });
    }
  }
  if (target.language === 'cuda') {
    files.set('prelude.cuh', await readFile(packagePath('templates', 'cuda', 'prelude.cuh'), 'utf8'));
  }
  const manifest: Manifest = {
    format: 1,
    scheme: schemeRecord(scheme, geometry.headDim),
    model,
    target,
    geometry: {
      rank: geometry.rank,
      keyGroups: geometry.keyGroups,
      keyRowWords: geometry.keyRowWords,
      valueRowWords: geometry.valueRowWords,
      streamWords: geometry.streamWords,
    },
    record: { words: recordWords, entries: recordEntries(geometry) },
    parts: partsOf(geometry),
    tables: tablesOf(geometry),
    kernels,
    files: Object.fromEntries(
      [...files].map(([name, text]) => [
        name,
        { bytes: Buffer.byteLength(text), sha256: createHash('sha256').update(text).digest('hex') },
      ]),
    ),
  };
  return { geometry, target, manifest, files };
}

function requirements(target: Target, own: readonly string[]): readonly string[] {
  if (target.language === 'cuda') return [target.arch, ...own];
  return [...(target.f16 ? ['shader-f16'] : []), ...(target.subgroups ? ['subgroups'] : []), ...own];
}

/** The manifest as it is written: two spaces, keys in the order above, a final newline. */
export function manifestText(manifest: Manifest): string {
  return `${JSON.stringify(manifest, null, 2)}\n`;
}
