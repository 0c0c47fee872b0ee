import type { Geometry } from '../dsl/geometry.js';
import type { KernelPlan, Stage, Target } from '../dsl/stage.js';
import { commentLine } from './comment.js';
import { geometryConstants } from './constants.js';
import { cudaVectorHelpers, printCuda } from './emit/cuda.js';
import { printWgsl } from './emit/wgsl.js';
import type { FunctionIr } from './ir.js';
import { joinSections, languageName, preamble, printConstants, printSignature, wgslBindings } from './kernelText.js';
import { specializeRoots } from './specialize.js';
import type { TemplateSet } from './templates.js';

export interface RenderInput {
  readonly geometry: Geometry;
  readonly target: Target;
  readonly stage: Stage;
  readonly tunables: Readonly<Record<string, number>>;
  readonly kernel: KernelPlan;
  readonly library: ReadonlyMap<string, FunctionIr>;
  readonly templates: TemplateSet;
}

/**
 * Renders one kernel: the template's schedule below what it needs, in this order: a comment that says what it came
 * from, the constants the text names, the bindings (WGSL), and the device functions.
 */
export function renderKernel(input: RenderInput): string {
  const { geometry, target, kernel, library, templates } = input;
  const uses = Object.entries(kernel.functions);
  const { functions, names: emitted } = specializeRoots(
    uses.map(([, use]) => ({
      name: use.name,
      statics: use.statics ?? {},
      ...(target.language === 'wgsl' && use.lookups ? { lookups: use.lookups } : {}),
    })),
    library,
    namesAround(input),
  );
  const names: Readonly<Record<string, string>> = Object.fromEntries(uses.map(([role], i) => [role, emitted[i]!]));
  const body = templates.render(kernel.template ?? kernel.entry, {
    signature: printSignature(kernel, target),
    fn: names,
    keyGroups: geometry.keyGroups.map((group) => ({
      ...group,
      stored: group.bits > 0,
      nibbles: group.bits === 4,
      unpack: names[`unpack${group.bits}`],
      value: names[`value${group.bits}`],
      field: names[`field${group.bits}`],
      scale: names[`scale${group.bits}`],
      pack: names[`pack${group.bits}`],
    })),
    allocated: geometry.allocatedGroups > 0,
    weighted: geometry.weighted,
    unbiased: geometry.scheme.values[2].unbiased,
    capped: geometry.model.scoreCap !== undefined,
    f16: target.language === 'wgsl' && target.f16,
    subgroups: target.language === 'wgsl' && target.subgroups,
    unrolled: kernel.unrolled ?? {},
  });
  const printed = target.language === 'cuda' ? printWithHelpers(functions) : printWgsl(functions, body);
  return joinSections([
    header(input),
    preamble(target, kernel),
    printConstants(target, geometryConstants(geometry), kernel, `${body}\n${printed}`),
    target.language === 'wgsl' ? wgslBindings(kernel.bindings) : '',
    printed,
    body,
  ]);
}

/** Every name that the kernel's text has besides its device functions and constants, which are in capitals. */
function namesAround({ kernel, templates }: RenderInput): ReadonlySet<string> {
  return new Set([
    ...templates.names,
    ...kernel.bindings.map(({ name }) => name),
    ...Object.values(kernel.functions).flatMap(({ lookups }) => Object.values(lookups ?? {})),
    ...[kernel.entry, 'block', 'thread', 'lane', 'lanes', 'round_to_half'],
  ]);
}

/** CUDA has no operators on vectors; the functions that stand for them are printed only where a codec needs them. */
function printWithHelpers(functions: Parameters<typeof printCuda>[0]): string {
  const printed = printCuda(functions);
  return /\bvector_\w+\(/.test(printed) ? `${cudaVectorHelpers}\n${printed}` : printed;
}

function header({ geometry: g, target, stage, tunables, kernel }: RenderInput): string {
  const [, pca] = g.scheme.keys;
  const [, , quantizer] = g.scheme.values;
  const widths =
    g.allocatedGroups > 0
      ? `${g.keyRowWords * 32} bits a token`
      : `bits ${g.keyGroups.map((group) => group.bits).join('/')}`;
  const chosen = Object.entries(tunables).map(([name, value]) => `${name} = ${value}`);
  const lines = [
    `${kernel.entry}: ${kernel.summary}`,
    `Stage ${stage.name} of scheme ${g.scheme.name} for ${g.model.name}. ${languageName(target)}. Written by kvforge; edit the template, not this file.`,
    `keys:   ${g.scheme.keys[0].name}, ${pca.name}(rank ${g.rank}, ${widths}, group ${pca.group}, i8 basis${g.weighted ? ', weighted by queries' : ''})`,
    `values: ${g.scheme.values.map((codec) => codec.name).join(', ')}(${quantizer.channels} channels, ${quantizer.entries} entries${quantizer.unbiased ? ', unbiased' : ''})`,
    `stream: ${g.scheme.stream.name}(${g.streamBits} bits); sinks ${g.scheme.sinks}, window ${g.scheme.window}`,
    ...(chosen.length > 0 ? [`tunables: ${chosen.join(', ')}`] : []),
  ];
  return lines.map(commentLine).join('\n');
}
