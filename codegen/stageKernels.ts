import type { Geometry } from '../dsl/geometry.js';
import type { KernelPlan, Target } from '../dsl/stage.js';
import type { GeometryStage } from '../dsl/stages/index.js';
import type { FunctionIr } from './ir.js';
import type { KernelDescriptor } from './manifest.js';
import { renderKernel } from './render.js';
import type { TemplateSet } from './templates.js';

/** What the texts of all stages are made from. */
export interface StageContext {
  readonly geometry: Geometry;
  readonly target: Target;
  readonly library: ReadonlyMap<string, FunctionIr>;
  readonly templates: TemplateSet;
}

/** One kernel of a stage: what the manifest says about it, and its text. */
export interface StageKernel {
  readonly descriptor: KernelDescriptor;
  readonly source: string;
}

/** The kernels of one stage with all of its tunables chosen; what is generated does not depend on the order they come in. */
export function stageKernels(
  context: StageContext,
  stage: GeometryStage,
  tunables: Readonly<Record<string, number>>,
): readonly StageKernel[] {
  const { geometry, target } = context;
  // Texts name them, and are hashed: a lock file sorts its names, and would seem to be of another text.
  const declared = Object.keys(stage.tunables(target));
  const ordered = Object.fromEntries(declared.map((name) => [name, tunables[name]!]));
  return stage.kernels(geometry, ordered, target).map((kernel) => ({
    descriptor: describeKernel(stage.name, kernel, target, ordered),
    source: renderKernel({ ...context, stage, tunables: ordered, kernel }),
  }));
}

/** A kernel as a manifest records it. */
export function describeKernel(
  stage: string,
  kernel: KernelPlan,
  target: Target,
  tunables: Readonly<Record<string, number>>,
): KernelDescriptor {
  return {
    stage,
    entry: kernel.entry,
    file: `${kernel.entry}.${target.language === 'cuda' ? 'cu' : 'wgsl'}`,
    target: target.language,
    bindings: kernel.bindings,
    threads: kernel.threads,
    grid: kernel.grid,
    sharedBytes: kernel.sharedBytes,
    requires: requirements(target, kernel),
    tunables,
  };
}

function requirements(target: Target, { subgroupMatrices }: KernelPlan): readonly string[] {
  if (target.language === 'cuda') return [target.arch];
  return [
    ...(target.f16 ? ['shader-f16'] : []),
    ...(target.subgroups ? ['subgroups'] : []),
    ...(subgroupMatrices ? ['chromium-experimental-subgroup-matrix'] : []),
  ];
}
