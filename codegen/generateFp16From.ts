import { type HeadGeometry, headGeometryOf } from '../dsl/headGeometry.js';
import type { ModelShape } from '../dsl/model.js';
import { checkTarget, chooseTunables, type KernelPlan, type Target } from '../dsl/stage.js';
import { attendFp16Stage } from '../dsl/stages/attendFp16.js';
import type { Assets } from './assets.js';
import { checkArguments } from './checkArguments.js';
import { commentLine } from './comment.js';
import { headConstants } from './constants.js';
import { joinSections, languageName, preamble, printConstants, printSignature, wgslBindings } from './kernelText.js';
import type { KernelDescriptor } from './manifest.js';
import { describeKernel } from './stageKernels.js';

/** What was generated from what, and how to run it. */
export interface Fp16Manifest {
  /** Version of this form. */
  readonly format: 1;
  readonly model: ModelShape;
  readonly target: Target;
  readonly kernels: readonly KernelDescriptor[];
}

/** Kernels of attention over an uncompressed cache, for one model and target. */
export interface Fp16Kernels {
  readonly geometry: HeadGeometry;
  readonly target: Target;
  readonly manifest: Fp16Manifest;
  /** File name to text, without the manifest. */
  readonly files: ReadonlyMap<string, string>;
}

/** As `generateFp16`, from the assets of Node or of a browser. */
export async function generateFp16From(
  assets: Assets,
  model: ModelShape,
  target: Target,
  choice: Readonly<Record<string, number>>,
): Promise<Fp16Kernels> {
  checkArguments(model, target, choice, 'tunables by name');
  checkTarget(target);
  const geometry = headGeometryOf(model);
  const templates = await assets.templates(target.language);
  const tunables = chooseTunables(attendFp16Stage, geometry, target, choice);
  const files = new Map<string, string>();
  const kernels: KernelDescriptor[] = [];
  for (const kernel of attendFp16Stage.kernels(geometry, tunables, target)) {
    const descriptor = describeKernel(attendFp16Stage.name, kernel, target, tunables);
    const body = templates.render(kernel.entry, {
      signature: printSignature(kernel, target),
      capped: model.scoreCap !== undefined,
    });
    const sections = [
      header(kernel, model, target, tunables),
      preamble(target),
      printConstants(target, headConstants(geometry), kernel, body),
      target.language === 'wgsl' ? wgslBindings(kernel.bindings) : '',
      body,
    ];
    files.set(descriptor.file, joinSections(sections));
    kernels.push(descriptor);
  }
  for (const [name, text] of templates.files) files.set(name, text);
  return { geometry, target, manifest: { format: 1, model, target, kernels }, files };
}

function header(
  kernel: KernelPlan,
  model: ModelShape,
  target: Target,
  tunables: Readonly<Record<string, number>>,
): string {
  const chosen = Object.entries(tunables).map(([name, value]) => `${name} = ${value}`);
  const lines = [
    `${kernel.entry}: ${kernel.summary}`,
    `Stage ${attendFp16Stage.name} for ${model.name}. ${languageName(target)}. Written by kvforge; edit the template, not this file.`,
    `tunables: ${chosen.join(', ')}`,
  ];
  return lines.map(commentLine).join('\n');
}
