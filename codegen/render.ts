import type { Geometry } from '../dsl/geometry.js';
import type { BindingDescriptor, KernelPlan, Stage, Target } from '../dsl/stage.js';
import { commentLine } from './comment.js';
import { type Constant, geometryConstants, scheduleConstant } from './constants.js';
import { cudaVectorHelpers, printCuda } from './emit/cuda.js';
import { printWgsl } from './emit/wgsl.js';
import type { FunctionIr } from './ir.js';
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
    signature: target.language === 'cuda' ? cudaSignature(kernel) : wgslSignature(kernel, target.subgroups),
    fn: names,
    keyGroups: geometry.keyGroups.map((group) => ({
      ...group,
      stored: group.bits > 0,
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
  });
  const printed = target.language === 'cuda' ? printWithHelpers(functions) : printWgsl(functions, { f16: target.f16 });
  const sections = [
    header(input),
    preamble(target),
    constants(input, `${body}\n${printed}`),
    target.language === 'wgsl' ? wgslBindings(kernel.bindings) : '',
    printed.trim(),
    body.trim(),
  ];
  return `${sections.filter((section) => section !== '').join('\n\n')}\n`;
}

/** Every name that the kernel's text has besides its device functions and constants, which are in capitals. */
function namesAround({ kernel, templates }: RenderInput): ReadonlySet<string> {
  return new Set([
    ...templates.names,
    ...kernel.bindings.map(({ name }) => name),
    ...Object.values(kernel.functions).flatMap(({ lookups }) => Object.values(lookups ?? {})),
    ...[kernel.entry, 'block', 'thread', 'lane', 'lanes'],
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
  const flavour =
    target.language === 'cuda'
      ? `CUDA for ${target.arch} on, ${target.tensorCores ? 'tensor cores' : 'plain float32'}`
      : `WGSL, ${target.f16 ? 'with' : 'without'} shader-f16, ${target.subgroups ? 'with' : 'without'} subgroups`;
  const chosen = Object.entries(tunables).map(([name, value]) => `${name} = ${value}`);
  const lines = [
    `${kernel.entry}: ${kernel.summary}`,
    `Stage ${stage.name} of scheme ${g.scheme.name} for ${g.model.name}. ${flavour}. Written by kvforge; edit the template, not this file.`,
    `keys:   ${g.scheme.keys[0].name}, ${pca.name}(rank ${g.rank}, ${widths}, group ${pca.group}, i8 basis${g.weighted ? ', weighted by queries' : ''})`,
    `values: ${g.scheme.values.map((codec) => codec.name).join(', ')}(${quantizer.channels} channels, ${quantizer.entries} entries${quantizer.unbiased ? ', unbiased' : ''})`,
    `stream: ${g.scheme.stream.name}(${g.streamBits} bits); sinks ${g.scheme.sinks}, window ${g.scheme.window}`,
    ...(chosen.length > 0 ? [`tunables: ${chosen.join(', ')}`] : []),
  ];
  return lines.map(commentLine).join('\n');
}

function preamble(target: Target): string {
  if (target.language === 'cuda') return '#include "prelude.cuh"';
  return [target.f16 ? 'enable f16;' : '', target.subgroups ? 'enable subgroups;' : ''].filter(Boolean).join('\n');
}

function constants({ geometry, target, kernel }: RenderInput, text: string): string {
  const own: Constant[] = [
    scheduleConstant('THREADS', kernel.threads),
    ...Object.entries(kernel.constants).map(([name, value]) => scheduleConstant(name, value)),
  ];
  const words = new Set(text.match(/\b[A-Z][A-Z0-9_]*\b/g));
  const named = [...geometryConstants(geometry), ...own].filter(({ name }) => words.has(name));
  const lines = named.map(({ name, type, value, comment }) => {
    const declared =
      target.language === 'cuda'
        ? `constexpr ${type === 'u32' ? `u32 ${name} = ${value}` : `float ${name} = ${float(value)}f`}`
        : `const ${name} = ${type === 'u32' ? `${value}u` : float(value)}`;
    return `${declared};  ${commentLine(comment)}`;
  });
  return lines.join('\n');
}

/** A float as both languages read it, with nine digits, which name every float32. */
function float(value: number): string {
  const text = Number(Math.fround(value).toPrecision(9)).toString();
  return text.includes('.') || text.includes('e') ? text : `${text}.0`;
}

function cudaSignature(kernel: KernelPlan): string {
  const types: Readonly<Record<BindingDescriptor['element'], string>> = {
    u32: 'u32',
    f32: 'float',
    atomic_u32: 'u32',
  };
  const parameters = kernel.bindings.map((binding, i) => {
    const pointer =
      binding.access === 'read'
        ? `const ${types[binding.element]}* __restrict__ ${binding.name}`
        : `${types[binding.element]}* ${binding.name}`;
    return `    ${pointer}${i < kernel.bindings.length - 1 ? ',' : ''}  ${commentLine(binding.holds)}`;
  });
  return `extern "C" __global__ void __launch_bounds__(${kernel.threads}) ${kernel.entry}(\n${parameters.join('\n')}\n)`;
}

function wgslSignature(kernel: KernelPlan, subgroups: boolean): string {
  const builtins = ['@builtin(workgroup_id) block: vec3u', '@builtin(local_invocation_index) thread: u32'];
  if (subgroups) {
    builtins.push('@builtin(subgroup_invocation_id) lane: u32', '@builtin(subgroup_size) lanes: u32');
  }
  return `@compute @workgroup_size(${kernel.threads})\nfn ${kernel.entry}(\n${builtins.map((b) => `  ${b},`).join('\n')}\n)`;
}

function wgslBindings(bindings: readonly BindingDescriptor[]): string {
  const types: Readonly<Record<BindingDescriptor['element'], string>> = {
    u32: 'u32',
    f32: 'f32',
    atomic_u32: 'atomic<u32>',
  };
  return bindings
    .map(
      ({ name, access, element, holds }, i) =>
        `${commentLine(holds)}\n@group(0) @binding(${i}) var<storage, ${access}> ${name}: array<${types[element]}>;`,
    )
    .join('\n');
}
