import type { Assets } from '../../codegen/assets.js';
import { functionLibrary } from '../../codegen/library.js';
import type { KernelDescriptor } from '../../codegen/manifest.js';
import { splitPrompt } from '../../codegen/plan/layout.js';
import { sha256 } from '../../codegen/sha256.js';
import { type StageContext, stageKernels } from '../../codegen/stageKernels.js';
import { geometryOf } from '../../dsl/geometry.js';
import type { ModelShape } from '../../dsl/model.js';
import type { Scheme } from '../../dsl/scheme.js';
import type { Target } from '../../dsl/stage.js';
import type { GeometryStage } from '../../dsl/stages/index.js';
import { observedQueries } from '../../dsl/stages/observe.js';
import { predictMicroseconds, stageWork } from './predict.js';
import type { DeviceFacts } from './protocol.js';
import type { ShapeClass } from './shapeClass.js';
import { type Candidate, type NamedTunables, type Pruned, searchSpace } from './space.js';
import { splitChoices } from './splitChoices.js';
import { seenOf } from './visible.js';

/** A candidate with what is known of it before anything runs. */
export interface Planned extends Candidate {
  /** SHA-256 of its texts; candidates that differ in splits alone have the same. */
  readonly source: string;
  /** Microseconds; undefined for a device whose multiprocessors are not known. */
  readonly predicted: number | undefined;
}

export interface PlannedSpace {
  /** SHA-256 of the scheme and of the model's shape: what kernels are told at run time, a sliding window say, is not in their texts. */
  readonly sizes: string;
  readonly candidates: readonly Planned[];
  readonly pruned: readonly Pruned[];
}

/** Everything that texts are rendered from; the same for all stages. */
export async function stageContext(
  assets: Assets,
  scheme: Scheme,
  model: ModelShape,
  target: Target,
): Promise<StageContext> {
  const geometry = geometryOf(scheme, model);
  const [library, templates] = await Promise.all([functionLibrary(scheme, assets), assets.templates(target.language)]);
  return { geometry, target, library, templates };
}

/** Sizes that grids are made of. */
function dimensionsOf(context: StageContext, { sequences, tokens }: ShapeClass, splits: number) {
  const g = context.geometry;
  const { middle } = splitPrompt(g, tokens);
  return {
    ...{ promptTokens: tokens, middleTokens: middle, tokens, sequences, moves: sequences, words: sequences },
    ...{ queryTokens: g.weighted ? observedQueries : 0, workItems: sequences * g.kvHeads * splits },
  };
}

/** SHA-256 of the texts of a stage and the files they include: what a time and a winner were of. */
export async function sourceHash(
  context: StageContext,
  stage: GeometryStage,
  tunables: NamedTunables,
): Promise<string> {
  return hashOf(context, stageKernels(context, stage, tunables));
}

function hashOf({ templates }: StageContext, kernels: readonly { readonly source: string }[]): Promise<string> {
  const texts = [...kernels.map(({ source }) => source), ...[...templates.files].flat()];
  return sha256(new TextEncoder().encode(JSON.stringify(texts)));
}

function sizesHash({ geometry }: StageContext): Promise<string> {
  const { name: _, ...model } = geometry.model;
  return sha256(new TextEncoder().encode(JSON.stringify({ ...geometry, model })));
}

interface Rendered {
  readonly descriptors: readonly KernelDescriptor[];
  readonly source: string;
}

/** Texts do not depend on the shape, and take a second for some hundred of them. */
const known = new WeakMap<StageContext, Map<string, Rendered>>();

async function rendered(context: StageContext, stage: GeometryStage, tunables: NamedTunables): Promise<Rendered> {
  const texts = known.get(context) ?? new Map<string, Rendered>();
  known.set(context, texts);
  const name = `${stage.name} ${JSON.stringify(tunables)}`;
  const before = texts.get(name);
  if (before !== undefined) return before;
  const kernels = stageKernels(context, stage, tunables);
  const descriptors = kernels.map(({ descriptor }) => descriptor);
  const made = { descriptors, source: await hashOf(context, kernels) };
  texts.set(name, made);
  return made;
}

/** The search space of a stage for a shape, with predictions; without candidates where the scheme has no use for the stage. */
export async function planSpace(
  context: StageContext,
  stage: GeometryStage,
  shape: ShapeClass,
  facts: DeviceFacts,
  tradeAccuracy: boolean,
): Promise<PlannedSpace> {
  const { geometry, target } = context;
  const { multiprocessors, sharedBytes } = facts;
  const isAttend = stage.name === 'attend';
  const seen = isAttend ? seenOf(geometry.model, shape) : shape;
  const splits = isAttend ? splitChoices(geometry, seen, multiprocessors) : undefined;
  const sizes = await sizesHash(context);
  const { candidates, pruned } = searchSpace(stage, geometry, target, { splits, tradeAccuracy });
  const work = stageWork(geometry, seen, stage.name);
  const planned: Planned[] = [];
  for (const candidate of candidates) {
    const { descriptors, source } = await rendered(context, stage, candidate.tunables);
    if (descriptors.length === 0) return { sizes, candidates: [], pruned: [] };
    const dimensions = dimensionsOf(context, shape, candidate.splits ?? 1);
    const predicted =
      multiprocessors === undefined
        ? undefined
        : predictMicroseconds(descriptors, dimensions, work, { multiprocessors, sharedBytes });
    planned.push({ ...candidate, source, predicted });
  }
  return { sizes, candidates: planned, pruned };
}
