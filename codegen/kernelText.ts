import type { BindingDescriptor, KernelPlan, Target } from '../dsl/stage.js';
import { commentLine } from './comment.js';
import { type Constant, scheduleConstant } from './constants.js';

/** Parts of a kernel's text that depend on the language and the kernel's plan alone. */

/** The language and what of it is used, for the first lines of a kernel. */
export function languageName(target: Target): string {
  return target.language === 'cuda'
    ? `CUDA for ${target.arch} on, ${target.tensorCores ? 'tensor cores' : 'plain float32'}`
    : `WGSL, ${target.f16 ? 'with' : 'without'} shader-f16, ${target.subgroups ? 'with' : 'without'} subgroups${target.subgroupMatrices ? ', with subgroup matrices' : ''}`;
}

/** One text of its parts, an empty line between them; empty parts are left out. */
export function joinSections(sections: readonly string[]): string {
  const texts = sections.map((section) => section.trim()).filter((section) => section !== '');
  return `${texts.join('\n\n')}\n`;
}

export function preamble(target: Target, { subgroupMatrices }: Pick<KernelPlan, 'subgroupMatrices'> = {}): string {
  if (target.language === 'cuda') return '#include "prelude.cuh"';
  return [
    target.f16 ? 'enable f16;' : '',
    target.subgroups ? 'enable subgroups;' : '',
    subgroupMatrices ? 'enable chromium_experimental_subgroup_matrix;' : '',
  ]
    .filter(Boolean)
    .join('\n');
}

/** Those of the constants, and of the kernel's own, that `text` names. */
export function printConstants(
  target: Target,
  constants: readonly Constant[],
  kernel: Pick<KernelPlan, 'threads' | 'constants'>,
  text: string,
): string {
  const own: Constant[] = [
    scheduleConstant('THREADS', kernel.threads),
    ...Object.entries(kernel.constants).map(([name, value]) => scheduleConstant(name, value)),
  ];
  const words = new Set(text.match(/\b[A-Z][A-Z0-9_]*\b/g));
  const named = [...constants, ...own].filter(({ name }) => words.has(name));
  const lines = named.map(({ name, type, value, comment }) => {
    const declared =
      target.language === 'cuda'
        ? `constexpr ${type === 'u32' ? `u32 ${name} = ${value}` : `float ${name} = ${float(value)}f`}`
        : `const ${name} = ${type === 'u32' ? `${value}u` : float(value)}`;
    return `${declared};  ${commentLine(comment)}`;
  });
  return lines.join('\n');
}

/** The head of the entry point: its name, parameters or built-in values, and threads. */
export function printSignature(kernel: KernelPlan, target: Target): string {
  return target.language === 'cuda' ? cudaSignature(kernel) : wgslSignature(kernel, target.subgroups);
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
  return `extern "C" __global__ void __launch_bounds__(${kernel.threads}${kernel.blocksPerMultiprocessor ? `, ${kernel.blocksPerMultiprocessor}` : ''}) ${kernel.entry}(\n${parameters.join('\n')}\n)`;
}

function wgslSignature(kernel: KernelPlan, subgroups: boolean): string {
  const builtins = ['@builtin(workgroup_id) block: vec3u', '@builtin(local_invocation_index) thread: u32'];
  if (subgroups) {
    builtins.push('@builtin(subgroup_invocation_id) lane: u32', '@builtin(subgroup_size) lanes: u32');
  }
  if (kernel.subgroupMatrices) builtins.push('@builtin(subgroup_id) subgroup: u32');
  return `@compute @workgroup_size(${kernel.threads})\nfn ${kernel.entry}(\n${builtins.map((b) => `  ${b},`).join('\n')}\n)`;
}

export function wgslBindings(bindings: readonly BindingDescriptor[]): string {
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
