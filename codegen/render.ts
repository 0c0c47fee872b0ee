import type { Geometry, LowRankGeometry, ScalarGeometry, ScalarGroups } from '../dsl/geometry.js';
import type { LatentGeometry } from '../dsl/latentGeometry.js';
import { outlierCap, quantizerOf, type ScalarChain } from '../dsl/scheme.js';
import type { KernelPlan, Target } from '../dsl/stage.js';
import type { GeometryStage } from '../dsl/stages/index.js';
import { commentLine } from './comment.js';
import { geometryConstants } from './constants.js';
import { cudaVectorHelpers, printCuda } from './emit/cuda.js';
import { printWgsl } from './emit/wgsl.js';
import type { FunctionIr } from './ir.js';
import { joinSections, languageName, preamble, printConstants, printSignature, wgslBindings } from './kernelText.js';
import { tiltFlags, tiltHeader } from './plan/tiltFlags.js';
import { specializeRoots } from './specialize.js';
import type { TemplateSet } from './templates.js';

export interface RenderInput {
  readonly geometry: Geometry;
  readonly target: Target;
  readonly stage: GeometryStage;
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
    ...(geometry.family === 'tilt'
      ? {
          ...tiltFlags(geometry),
          values: groupFlags(geometry.values),
          ...(kernel.operand ? { ...groupFlags(geometry.values), OPERAND: 'VALUE', operand: 'values' } : {}),
        }
      : geometry.family === 'latent'
        ? latentFlags(geometry)
        : geometry.family === 'low-rank'
          ? lowRankFlags(geometry, names)
          : scalarFlags(geometry, kernel)),
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

/** What templates of low-rank keys ask. */
function lowRankFlags(g: LowRankGeometry, names: Readonly<Record<string, string>>): Readonly<Record<string, unknown>> {
  return {
    keyGroups: g.keyGroups.map((group) => ({
      ...group,
      stored: group.bits > 0,
      nibbles: group.bits === 4,
      unpack: names[`unpack${group.bits}`],
      value: names[`value${group.bits}`],
      field: names[`field${group.bits}`],
      scale: names[`scale${group.bits}`],
      pack: names[`pack${group.bits}`],
    })),
    allocated: g.allocatedGroups > 0,
    weighted: g.weighted,
    unbiased: g.scheme.values[2].unbiased,
  };
}

/** What templates of latents ask: of latents, and of rotary parts where they are coded. */
function latentFlags({ latent, rotary }: LatentGeometry): Readonly<Record<string, unknown>> {
  const flags = ({ turned, codec }: ScalarGroups) => ({ turned, offset: codec.device.offset !== undefined });
  const offsets = [latent, rotary].some((groups) => groups?.codec.device.offset !== undefined);
  return { latent: flags(latent), ...(rotary ? { rotary: flags(rotary) } : {}), offsets };
}

/** What templates ask of how the channels of keys, or of values, are coded. */
function groupFlags({
  unrotated,
  turned,
  polar,
  projection,
  scaleTokens,
  scaleChannels,
  codec,
  trim,
  outlierCap,
}: ScalarGroups): Readonly<Record<string, unknown>> {
  return {
    unrotated,
    turned,
    radial: polar,
    signed: projection.length > 0,
    paired: unrotated || polar,
    wholePrompt: scaleTokens === 0,
    perToken: scaleTokens === 1,
    perChannel: scaleChannels === 1,
    offset: codec.device.offset !== undefined,
    trimmed: trim > 0,
    outliers: outlierCap > 0,
  };
}

/** What templates of scalar codes ask: of keys, of values, and of the one of them that the kernel is for. */
function scalarFlags(g: ScalarGeometry, { operand }: KernelPlan): Readonly<Record<string, unknown>> {
  const own =
    operand === undefined
      ? {}
      : {
          ...groupFlags(g[operand]),
          OPERAND: operand === 'keys' ? 'KEY' : 'VALUE',
          operand,
          ofKeys: operand === 'keys',
          alone: g[operand === 'keys' ? 'values' : 'keys'].outlierCap === 0,
        };
  return { scalar: true, keys: groupFlags(g.keys), values: groupFlags(g.values), ...own };
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
  const chosen = Object.entries(tunables).map(([name, value]) => `${name} = ${value}`);
  const lines = [
    `${kernel.entry}: ${kernel.summary}`,
    `Stage ${stage.name} of scheme ${g.scheme.name} for ${g.model.name}. ${languageName(target)}. Written by kvforge; edit the template, not this file.`,
    ...(g.family === 'tilt'
      ? tiltHeader(g)
      : g.family === 'latent'
        ? latentHeader(g)
        : g.family === 'low-rank'
          ? lowRankHeader(g)
          : [scalarHeader('keys:  ', g.scheme.keys), scalarHeader('values:', g.scheme.values)]),
    `stream: ${g.scheme.stream.name}(${g.streamBits} bits); sinks ${g.scheme.sinks}, window ${g.scheme.window}`,
    ...(chosen.length > 0 ? [`tunables: ${chosen.join(', ')}`] : []),
  ];
  return lines.map(commentLine).join('\n');
}

function lowRankHeader(g: LowRankGeometry): readonly string[] {
  const [, pca] = g.scheme.keys;
  const [, , quantizer] = g.scheme.values;
  const widths =
    g.allocatedGroups > 0
      ? `${g.keyRowWords * 32} bits a token`
      : `bits ${g.keyGroups.map((group) => group.bits).join('/')}`;
  return [
    `keys:   ${g.scheme.keys[0].name}, ${pca.name}(rank ${g.rank}, ${widths}, group ${pca.group}, i8 basis${g.weighted ? ', weighted by queries' : ''})`,
    `values: ${g.scheme.values.map((codec) => codec.name).join(', ')}(${quantizer.channels} channels, ${quantizer.entries} entries${quantizer.unbiased ? ', unbiased' : ''})`,
  ];
}

function latentHeader({ scheme: { latent, rotary } }: LatentGeometry): readonly string[] {
  return [
    scalarHeader('latent:', latent),
    rotary === 'exact' ? 'rotary: f16, as it comes' : scalarHeader('rotary:', rotary),
  ];
}

function scalarHeader(title: string, chain: ScalarChain): string {
  const quantizer = quantizerOf(chain);
  const { name, codec, block, trim = 0 } = quantizer;
  const before = chain.slice(0, chain.indexOf(quantizer as never)).map((step) => `${step.name}, `);
  const range = trim > 0 ? ` without ${trim} of its numbers at each end` : '';
  const cap = outlierCap(chain);
  const beside = cap > 0 ? `, ${cap} outliers a token and KV head` : '';
  const tokens = block.tokens === 'prompt' ? 'the prompt' : `${block.tokens} token${block.tokens === 1 ? '' : 's'}`;
  const channels = block.channels === 'head' ? 'a head' : `${block.channels} channel${block.channels === 1 ? '' : 's'}`;
  return `${title} ${before.join('')}${name}(${codec.name}, ${codec.bits} bits; a scale for ${channels} of ${tokens}${range})${beside}`;
}
