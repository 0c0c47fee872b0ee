import type { Quantizer, ScalarCodec } from '../dsl/codec.js';
import { KvforgeError } from '../dsl/errors.js';
import type { Geometry, KeyGroup, ScalarGroups } from '../dsl/geometry.js';
import { levelsOf } from '../dsl/levels.js';
import type { ModelShape } from '../dsl/model.js';
import type { KeyChain, LatentChain, SchemeSegments, ValueChain } from '../dsl/scheme.js';
import type { BindingDescriptor, Extent, Target } from '../dsl/stage.js';
import type { PartDescriptor, RecordEntry, TableDescriptor } from './plan/layout.js';

export type { BindingDescriptor, Extent };

/** One entry point, as the manifest records it. */
export interface KernelDescriptor {
  readonly stage: string;
  readonly entry: string;
  /** File name beside the manifest. */
  readonly file: string;
  readonly target: 'cuda' | 'wgsl';
  /** In binding order: parameter order in CUDA, `@binding` number in WGSL. */
  readonly bindings: readonly BindingDescriptor[];
  /** Threads of a block, all in x. */
  readonly threads: number;
  readonly grid: readonly [Extent, Extent, Extent];
  /** Shared (workgroup) memory of a block, in bytes; dynamic is what a CUDA launch must ask for. */
  readonly sharedBytes: { readonly fixed: number; readonly dynamic: number };
  /** Device features without which the kernel cannot run. */
  readonly requires: readonly string[];
  /** Named tunables it was generated with. */
  readonly tunables: Readonly<Record<string, number | string>>;
}

/**
 * Evaluates a launch extent.
 *
 * @example
 * evaluateExtent({ ceilDiv: [{ dimension: 'tokens' }, 64] }, { tokens: 100 }); // 2
 */
export function evaluateExtent(extent: Extent, dimensions: Readonly<Record<string, number>>): number {
  if (typeof extent === 'number') return extent;
  if ('dimension' in extent) {
    const value = dimensions[extent.dimension];
    if (value === undefined) {
      throw new KvforgeError('wrong-use', {
        at: `dimension ${extent.dimension}`,
        expected: `one of ${Object.keys(dimensions).join(', ')}`,
        received: 'nothing of that name',
        hint: 'Pass it with the launch.',
      });
    }
    return value;
  }
  if ('ceilDiv' in extent) {
    return Math.ceil(evaluateExtent(extent.ceilDiv[0], dimensions) / evaluateExtent(extent.ceilDiv[1], dimensions));
  }
  return extent.product.reduce<number>((product, factor) => product * evaluateExtent(factor, dimensions), 1);
}

/** A scalar codec as data: functions by their names, the levels as float32. */
export interface ScalarCodecRecord {
  readonly kind: 'scalar';
  readonly name: string;
  readonly bits: number;
  readonly device: Readonly<Partial<Record<'offset' | 'scale' | 'code' | 'value', string>>>;
  /** By code, as the kernels read them in the tables. */
  readonly levels: readonly number[];
}

/** A step of a chain as data. */
export type CodecRecord = Exclude<KeyChain[number] | ValueChain[number], Quantizer> | QuantizerRecord;

export interface QuantizerRecord extends Omit<Quantizer, 'codec'> {
  readonly codec: ScalarCodecRecord;
}

/** A scheme as data, and nothing of the machine it was written on. */
export interface SchemeRecord extends Omit<SchemeSegments, 'stream'> {
  /** Left out for a scheme of latents, which has the two after them instead. */
  readonly keys?: readonly CodecRecord[];
  readonly values?: readonly CodecRecord[];
  readonly latent?: readonly CodecRecord[];
  readonly rotary?: readonly CodecRecord[] | 'exact';
  readonly stream: ScalarCodecRecord;
}

function codecRecord({ kind, name, bits, device }: ScalarCodec, levels: readonly number[]): ScalarCodecRecord {
  const { offset, scale, code, value } = device;
  const names = { ...(offset ? { offset: offset.name } : {}), scale: scale.name, code: code.name, value: value.name };
  return { kind, name, bits, device: names, levels };
}

/** The data of a scheme for a model. */
export function schemeRecord(g: Geometry): SchemeRecord {
  const { name, sinks, window, stream } = g.scheme;
  const record = (
    chain: KeyChain | ValueChain | LatentChain,
    groups: ScalarGroups | undefined,
  ): readonly CodecRecord[] =>
    chain.map((step) =>
      step.kind === 'quantizer'
        ? { ...step, codec: codecRecord(step.codec, levelsOf(step.codec, groups!.levelChannels)) }
        : step,
    );
  const codes =
    g.family === 'latent'
      ? {
          latent: record(g.scheme.latent, g.latent),
          rotary: g.scheme.rotary === 'exact' ? g.scheme.rotary : record(g.scheme.rotary, g.rotary),
        }
      : {
          keys: record(g.scheme.keys, g.family === 'scalar' ? g.keys : undefined),
          values: record(g.scheme.values, g.family === 'scalar' || g.family === 'tilt' ? g.values : undefined),
        };
  return {
    name,
    ...codes,
    sinks,
    window,
    stream: codecRecord(stream, levelsOf(stream, g.family === 'latent' ? g.latentDim : g.headDim)),
  };
}

/** What was generated from what, and how to run it: everything a runtime needs besides the texts. */
export interface Manifest {
  /** Version of this form. */
  readonly format: 1;
  readonly scheme: SchemeRecord;
  readonly model: ModelShape;
  readonly target: Target;
  /** Sizes in elements or words that the layout and the kernels share. */
  readonly geometry: {
    readonly rank?: number;
    readonly keyGroups?: readonly KeyGroup[];
    readonly keyRowWords: number;
    readonly valueRowWords: number;
    readonly streamWords: number;
  };
  /** The u32 words that describe one sequence: lengths, then where each part begins in the cache, in words. */
  readonly record: { readonly words: number; readonly entries: readonly RecordEntry[] };
  /** Parts of one sequence and layer in the cache, in memory order. */
  readonly parts: readonly PartDescriptor[];
  /** The f32 buffer `tables`, in memory order. */
  readonly tables: readonly TableDescriptor[];
  readonly kernels: readonly KernelDescriptor[];
  /** By file name. */
  readonly files: Readonly<Record<string, { readonly bytes: number; readonly sha256: string }>>;
}
