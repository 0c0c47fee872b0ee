import { KvforgeError } from '../dsl/errors.js';
import { type Geometry, geometryOf } from '../dsl/geometry.js';
import type { ModelShape } from '../dsl/model.js';
import { defineScheme, type Scheme } from '../dsl/scheme.js';
import { checkTarget, chooseTunables, type Target } from '../dsl/stage.js';
import { stagesOf } from '../dsl/stages/index.js';
import type { Assets } from './assets.js';
import { checkArguments } from './checkArguments.js';
import type { Fp16Manifest } from './generateFp16From.js';
import { functionLibrary } from './library.js';
import { type KernelDescriptor, type Manifest, schemeRecord } from './manifest.js';
import { partsOf, recordEntries, recordWords, tablesOf } from './plan/layout.js';
import { sha256 } from './sha256.js';
import { stageKernels } from './stageKernels.js';

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
 * Specialises a scheme to a model and a target, from the assets of Node or of a browser. Nothing in it knows either.
 *
 * @throws KvforgeError `wrong-use` (an unknown stage, tunable or target), `invalid-scheme`, `does-not-fit` (with the reason), and what the assets throw
 * @example
 * const kernels = await generateFrom(bundledAssets, shard, presetModel('llama-3.1-8b'), defaultTargets.wgsl);
 */
export async function generateFrom(
  assets: Assets,
  scheme: Scheme,
  model: ModelShape,
  target: Target,
  choice: TunableChoice = {},
): Promise<GeneratedKernels> {
  defineScheme(scheme);
  checkArguments(model, target, choice);
  checkTarget(target);
  const geometry = geometryOf(scheme, model);
  const stages = stagesOf[geometry.family];
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
  const [library, templates] = await Promise.all([functionLibrary(scheme, assets), assets.templates(target.language)]);
  const context = { geometry, target, library, templates };
  const files = new Map<string, string>();
  const kernels: KernelDescriptor[] = [];
  for (const stage of stages) {
    const tunables = chooseTunables(stage, geometry, target, choice[stage.name] ?? {});
    for (const { descriptor, source } of stageKernels(context, stage, tunables)) {
      files.set(descriptor.file, source);
      kernels.push(descriptor);
    }
  }
  for (const [name, text] of templates.files) files.set(name, text);
  const manifest: Manifest = {
    format: 1,
    scheme: schemeRecord(geometry),
    model,
    target,
    geometry: {
      ...(geometry.family === 'low-rank' ? { rank: geometry.rank, keyGroups: geometry.keyGroups } : {}),
      keyRowWords: geometry.keyRowWords,
      valueRowWords: geometry.valueRowWords,
      streamWords: geometry.streamWords,
    },
    record: { words: recordWords, entries: recordEntries(geometry) },
    parts: partsOf(geometry),
    tables: tablesOf(geometry),
    kernels,
    files: Object.fromEntries(
      await Promise.all([...files].map(async ([name, text]) => [name, await fingerprint(text)] as const)),
    ),
  };
  return { geometry, target, manifest, files };
}

async function fingerprint(text: string): Promise<{ bytes: number; sha256: string }> {
  const bytes = new TextEncoder().encode(text);
  return { bytes: bytes.length, sha256: await sha256(bytes) };
}

/**
 * Engines differ in the last digit of a power or a sine, and from version to version; 13 digits are those they share,
 * and more than a float32 angle can tell.
 */
const sharedDigits = 13;

/**
 * The manifest as it is written: two spaces, keys in the order above, a final newline.
 *
 * @example
 * const { manifest } = await generate(shard, model, defaultTargets.wgsl);
 * manifestText(manifest).startsWith('{\n  "format": 1,'); // true
 */
export function manifestText(manifest: Manifest | Fp16Manifest): string {
  // A float32 is written as it is: rounding to it has made it the same everywhere.
  const shared = (_key: string, value: unknown) =>
    typeof value === 'number' && Math.fround(value) !== value ? Number(value.toPrecision(sharedDigits)) : value;
  return `${JSON.stringify(manifest, shared, 2)}\n`;
}
