import { KvforgeError } from './errors.js';
import type { Geometry, LowRankGeometry } from './geometry.js';

/** How a kernel uses a buffer. In CUDA a binding is a pointer parameter, in WGSL a storage buffer of group 0. */
export interface BindingDescriptor {
  readonly name: string;
  readonly access: 'read' | 'read_write';
  /** Element type of the binding; 16-bit and packed data travel as `u32` words. */
  readonly element: 'u32' | 'f32' | 'atomic_u32';
  /** What it holds, with its shape: printed as a comment beside the binding. */
  readonly holds: string;
}

/** A size known only at launch: a number, a named dimension, or an expression over them. */
export type Extent =
  | number
  | { readonly dimension: string }
  | { readonly ceilDiv: readonly [Extent, Extent] }
  | { readonly product: readonly Extent[] };

/**
 * The architectures of CUDA, and the shared memory that one block may use there, in KB (CUDA Programming Guide, "Technical
 * Specifications per Compute Capability", maximum amount of shared memory per thread block).
 */
export const sharedKilobytes = {
  sm_80: 163,
  sm_86: 99,
  sm_87: 163,
  sm_89: 99,
  sm_90: 227,
  sm_90a: 227,
  sm_100: 227,
  sm_103: 227,
  sm_110: 227,
  sm_120: 99,
} as const;

export type Architecture = keyof typeof sharedKilobytes;

export const architectures = Object.keys(sharedKilobytes) as readonly Architecture[];

/** What the generator emits for. */
export type Target =
  | {
      readonly language: 'cuda';
      /** Lowest architecture the text compiles for; its limits are those that kernels must fit. */
      readonly arch: Architecture;
      /** Matrix products through mma.sync with f16 operands; without, plain float32 arithmetic. */
      readonly tensorCores: boolean;
    }
  | {
      readonly language: 'wgsl';
      /** Uses `shader-f16` for tiles in workgroup memory. */
      readonly f16: boolean;
      /** Uses subgroup reductions, at any subgroup size. */
      readonly subgroups: boolean;
      /**
       * Uses products of subgroup matrices of 16 x 16 x 16, f16 to f32, in subgroups of 32: the experimental feature
       * `chromium-experimental-subgroup-matrix`. Needs `f16` and `subgroups`; attention goes through them where 48 KB of
       * workgroup storage and up to 1024 threads a block hold the schedule.
       */
      readonly subgroupMatrices?: boolean;
      /** Workgroup storage the device offers; 16384 is what every WebGPU device has. */
      readonly workgroupBytes: number;
    };

/** Declared (static) shared memory ends here on every architecture; the rest is for launches that ask for it. */
const declaredSharedBytes = 48 * 1024;

/** Whether kernels may multiply on tensor cores. */
export function usesTensorCores(target: Target): boolean {
  return target.language === 'cuda' && target.tensorCores;
}

/** Bytes of shared memory that one block may use. */
export function sharedLimit(target: Target): number {
  return target.language === 'wgsl' ? target.workgroupBytes : sharedKilobytes[target.arch] * 1024;
}

/** @throws KvforgeError `wrong-use` for a target that does not exist: types do not reach everyone */
export function checkTarget(target: Target): void {
  const refuse = (at: string, expected: string, received: unknown): never => {
    const hint = 'See the type Target.';
    throw new KvforgeError('wrong-use', { at, expected, received: JSON.stringify(received) ?? 'undefined', hint });
  };
  const { language } = target;
  if (language !== 'cuda' && language !== 'wgsl') refuse('target.language', 'cuda or wgsl', language);
  if (target.language === 'cuda' && !architectures.includes(target.arch)) {
    refuse('target.arch', `one of ${architectures.join(', ')}`, target.arch);
  }
  if (target.language === 'wgsl' && !(Number.isInteger(target.workgroupBytes) && target.workgroupBytes > 0)) {
    refuse('target.workgroupBytes', 'a whole number of bytes', target.workgroupBytes);
  }
  if (target.language === 'wgsl' && target.subgroupMatrices && !(target.f16 && target.subgroups)) {
    refuse('target.subgroupMatrices', 'true only with f16 and subgroups', target.subgroupMatrices);
  }
}

/** What of a kernel the target has no room for, with both numbers. */
export function excessOf(kernel: KernelPlan, target: Target): string | undefined {
  const { entry, bindings, threads } = kernel;
  const { fixed, dynamic } = kernel.sharedBytes;
  const wgsl = target.language === 'wgsl';
  // What every WebGPU device has.
  // Devices with subgroup matrices take more threads than WebGPU promises.
  const mostThreads = wgsl && target.subgroupMatrices !== true ? 256 : 1024;
  if (threads > mostThreads) return `${entry} needs ${threads} threads a block, ${target.language} has ${mostThreads}`;
  if (wgsl && bindings.length > 8) return `${entry} needs ${bindings.length} storage buffers, wgsl has 8`;
  const limit = sharedLimit(target);
  if (!wgsl && fixed > declaredSharedBytes) {
    return `${entry} needs ${fixed} bytes of declared shared memory, cuda has ${declaredSharedBytes}`;
  }
  const needed = fixed + dynamic;
  return needed > limit ? `${entry} needs ${needed} bytes of shared memory, the device has ${limit}` : undefined;
}

/** A tunable: the values it may take, the default first. */
export interface Tunable {
  readonly values: readonly number[];
  /** Values after the first give accuracy for time: the tuner tries them only where it is told to. */
  readonly tradesAccuracy?: true;
}

/**
 * Declares the values of a tunable; the first is the default.
 *
 * @example
 * oneOf(32, 16, 64).values[0]; // 32
 */
export function oneOf(...values: readonly number[]): Tunable {
  return { values };
}

/**
 * Declares a tunable whose first value is the most accurate; the others give accuracy for time.
 *
 * @example
 * fasterBeyond(2, 1).tradesAccuracy; // true
 */
export function fasterBeyond(...values: readonly number[]): Tunable {
  return { values, tradesAccuracy: true };
}

/** A device function as a template calls it: `fn.ROLE` prints the emitted name. */
export interface FunctionUse {
  readonly name: string;
  readonly statics?: Readonly<Record<string, number>>;
  /** In WGSL, the module function that serves each lookup parameter. */
  readonly lookups?: Readonly<Record<string, string>>;
}

/** One entry point of a stage, before it has a text. */
export interface KernelPlan {
  readonly entry: string;
  readonly summary: string;
  readonly bindings: readonly BindingDescriptor[];
  readonly threads: number;
  /** Blocks that a multiprocessor is to hold: what the compiler may give registers for (CUDA). */
  readonly blocksPerMultiprocessor?: number;
  readonly grid: readonly [Extent, Extent, Extent];
  /** Numbers the template names in capitals, beside those of the geometry. */
  readonly constants: Readonly<Record<string, number>>;
  readonly functions: Readonly<Record<string, FunctionUse>>;
  /** Bytes of shared (workgroup) memory; dynamic is for CUDA launches that pass 48 KB. */
  readonly sharedBytes: { readonly fixed: number; readonly dynamic: number };
  /** What the kernel is for, where keys and values have one template. */
  readonly operand?: 'keys' | 'values';
  /** Template file without its ending, when several schedules serve the entry. */
  readonly template?: string;
  /** Lists of numbers, or of named ones, that the template writes statements for, one each: `unrolled.NAME`. */
  readonly unrolled?: Readonly<Record<string, readonly (number | Readonly<Record<string, number>>)[]>>;
  /** The WGSL text multiplies subgroup matrices. */
  readonly subgroupMatrices?: true;
}

/** Tunables by name. */
export type TunableSpace = Readonly<Record<string, Tunable>>;

/** A value for every tunable of a space; of a union, for every tunable of one of its members. */
export type Chosen<Space> = { readonly [Name in keyof Space]: number };

/** A constraint returns nothing when it holds, else the reason with both numbers. */
export type Constraint<Space extends TunableSpace = TunableSpace, Sizes = LowRankGeometry> = (
  geometry: Sizes,
  tunables: Chosen<Space>,
  target: Target,
) => string | undefined;

/** `Space` is a union where targets have schedules with other tunables; `Sizes` is what the kernels are specialised to. */
export interface Stage<Space extends TunableSpace = TunableSpace, Sizes = LowRankGeometry> {
  readonly name: string;
  readonly summary: string;
  readonly tunables: (target: Target) => Space;
  readonly constraints: readonly Constraint<Space, Sizes>[];
  readonly kernels: (geometry: Sizes, tunables: Chosen<Space>, target: Target) => readonly KernelPlan[];
}

/**
 * Declares a stage: what it reads and writes, its tunables and the constraints between them.
 *
 * @example
 * const stage = defineStage({
 *   name: 'clear', summary: 'Zeros a sequence.', kernels: () => [],
 *   tunables: ({ language }) => ({ threads: language === 'cuda' ? oneOf(1024, 256) : oneOf(256) }),
 *   constraints: [({ width }, { threads }) => (width % 2 === 0 ? undefined : `${width} channels for ${threads} threads`)],
 * });
 * stage.tunables(defaultTargets.cuda).threads.values; // [1024, 256]
 */
export function defineStage<Space extends TunableSpace, Sizes = LowRankGeometry>(
  stage: Stage<Space, Sizes>,
): Stage<Space, Sizes> {
  return stage;
}

/**
 * Picks the tunables of a stage: what the caller names, else the first values, in order, that meet every constraint and
 * whose kernels the target has room for.
 *
 * @throws KvforgeError `does-not-fit` with the reason of the best candidate, or `wrong-use` for an unknown name or value
 * @example
 * chooseTunables(gramStage, geometry, target, {}).tile; // 32
 */
export function chooseTunables<Space extends TunableSpace, Sizes extends Pick<Geometry, 'model'>>(
  stage: Stage<Space, Sizes>,
  geometry: Sizes,
  target: Target,
  chosen: Readonly<Record<string, number>>,
): Chosen<Space> {
  const space = stage.tunables(target);
  for (const [name, value] of Object.entries(chosen)) {
    const tunable = Object.hasOwn(space, name) ? space[name] : undefined;
    if (!tunable?.values.includes(value)) {
      throw new KvforgeError('wrong-use', {
        at: `${stage.name}.${name}`,
        expected: tunable
          ? `one of ${tunable.values.join(', ')}`
          : `a tunable of ${stage.name}: ${Object.keys(space).join(', ')}`,
        received: String(value),
        hint: 'Leave it out for the default.',
      });
    }
  }
  let firstReason: string | undefined;
  for (const combination of combinations(space, chosen)) {
    const candidate = combination as Chosen<Space>;
    const reason = exclusionOf(stage, geometry, target, candidate);
    if (reason === undefined) return candidate;
    firstReason ??= reason;
  }
  throw new KvforgeError('does-not-fit', {
    at: stage.name,
    expected: `a schedule that fits ${geometry.model.name} on ${target.language}`,
    received: firstReason ?? 'no candidate',
    hint: fitsWithoutTensorCores(stage, geometry, target)
      ? 'Without tensor cores it fits: give --plain, or tensorCores: false.'
      : 'Change the scheme, the tunables or the target.',
  });
}

/** Whether float32 arithmetic has a schedule where matrix products have none. */
function fitsWithoutTensorCores<Space extends TunableSpace, Sizes>(
  stage: Stage<Space, Sizes>,
  geometry: Sizes,
  target: Target,
): boolean {
  if (target.language !== 'cuda' || !target.tensorCores) return false;
  const plain = { ...target, tensorCores: false };
  for (const tunables of combinations(stage.tunables(plain))) {
    if (exclusionOf(stage, geometry, plain, tunables as Chosen<Space>) === undefined) return true;
  }
  return false;
}

/** Why these tunables cannot be: the constraint that fails, or what the target has no room for; undefined if they can. */
export function exclusionOf<Space extends TunableSpace, Sizes>(
  stage: Stage<Space, Sizes>,
  geometry: Sizes,
  target: Target,
  tunables: Chosen<Space>,
): string | undefined {
  return (
    stage.constraints.map((holds) => holds(geometry, tunables, target)).find((text) => text !== undefined) ??
    stage
      .kernels(geometry, tunables, target)
      .map((kernel) => excessOf(kernel, target))
      .find((text) => text !== undefined)
  );
}

/** Every combination of a search space, the defaults first; named values are held. */
export function* combinations(
  space: TunableSpace,
  held: Readonly<Record<string, number>> = {},
): Generator<Record<string, number>> {
  const names = Object.keys(space);
  const walk = function* (depth: number, partial: Record<string, number>): Generator<Record<string, number>> {
    const name = names[depth];
    if (name === undefined) {
      yield { ...partial };
      return;
    }
    const values = held[name] === undefined ? space[name]!.values : [held[name]];
    for (const value of values) yield* walk(depth + 1, { ...partial, [name]: value });
  };
  yield* walk(0, {});
}
