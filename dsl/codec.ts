import type { f32, Lookup, Static, u32 } from './device.js';

/** Widths a coefficient group may have; 0 drops the group. */
export type FieldBits = 0 | 2 | 4 | 6 | 8;

/** Takes the rotary embedding off and puts it back. */
export interface RotaryCodec {
  readonly kind: 'rotary';
  readonly name: string;
}

/** The signs of a random projection of what the codes of a key leave, and its length. */
export interface QjlCodec {
  readonly kind: 'qjl';
  readonly name: string;
  readonly seed: number;
}

/** Radius and angle of each pair of channels that RoPE turns together, in their place. */
export interface PolarCodec {
  readonly kind: 'polar';
  readonly name: string;
}

/**
 * Widths that each prompt's own variances decide: whole groups of components get the 0 to 8 bits of least expected error under
 * a budget, and codes are mid-rise.
 */
export interface AllocatedBits {
  /** Bits of one token's codes, a multiple of 32; `'auto'` is 4 for every component, as Shard's. */
  readonly budget: number | 'auto';
}

/** Rotates keys that have no rotary embedding to their places within a tile of tokens, so that attention rotates queries. */
export interface TileRotation {
  readonly kind: 'tile-rotation';
  readonly name: string;
  /** Tokens of a tile; tiles are aligned to positions. */
  readonly tile: 16 | 32 | 64 | 128;
}

/**
 * Transform coding of each KV head, weighted pair by pair by the prompt's queries: the eigenvectors of its keys' second moments, widths that the variances decide, and
 * mid-rise codes.
 */
export interface TransformCode {
  readonly kind: 'transform-code';
  readonly name: string;
  /** Mean bits of a channel; widths differ from head to head and from component to component. */
  readonly bits: number;
  /** Positions that share a step a component; 0 for the whole prompt. */
  readonly rangeBlock: number;
}

/** A gain a (head, channel) that takes back what the code of the values shrinks, applied to the output once. */
export interface GainCodec {
  readonly kind: 'gain';
  readonly name: string;
}

/** A linear code over all KV heads of a layer: a basis, and coefficients with a scale a component. */
export interface LowRankCodec {
  readonly kind: 'low-rank';
  readonly name: string;
  readonly rank: number | 'auto';
  readonly bits: FieldBits | readonly FieldBits[] | AllocatedBits;
  readonly group: number;
  /** `'queries'`: keys are weighted, pair by pair, by the prompt's queries before the basis is fitted. */
  readonly weight: 'none' | 'queries';
  readonly iterations: number;
  readonly seed: number;
}

/** An orthonormal transform over the head dimension. */
export interface TransformCodec {
  readonly kind: 'transform';
  readonly name: string;
}

/** A scale a (head, channel), fitted on the compressed tokens. */
export interface NormalizeCodec {
  readonly kind: 'normalize';
  readonly name: string;
}

/** An index into a fitted codebook for every group of channels. */
export interface VectorQuantizer {
  readonly kind: 'vector-quantizer';
  readonly name: string;
  readonly channels: number;
  readonly entries: number;
  readonly index: 'u8';
  /** A gain a (head, channel) takes back the shrinking of the code; folded into the scale of the channel. */
  readonly unbiased: boolean;
  readonly iterations: number;
  readonly seed: number;
}

/**
 * A code a number, and an f16 scale that several of them share: those of a vector where a generated token is coded, those
 * that a `Quantizer` names elsewhere. The device functions are the codec's whole arithmetic; the schedule calls them and
 * nothing else.
 */
export interface ScalarCodec {
  readonly kind: 'scalar';
  readonly name: string;
  /** Bits of a code. */
  readonly bits: 2 | 3 | 4 | 8;
  /**
   * The table of values handed to the device functions as `levels`, for so many numbers that share a scale (of a block of
   * the whole prompt, those of one token): `2^bits` finite numbers, ascending where `code` finds the nearest one by
   * bisection.
   */
  readonly levels: (channels: number) => readonly number[];
  /** From where to where a number over the scale is not clamped: from the first level to the last if left out. */
  readonly range?: readonly [number, number];
  readonly device: {
    /**
     * From the least and the greatest x to what is stored and taken off every x before anything else (a finite f16);
     * nothing is where it is left out. The stream has no room for it.
     */
    readonly offset?: (least: f32, greatest: f32) => f32;
    /** From the sum of squares of x/maxAbs and maxAbs = max|x| to the stored scale (a finite f16, >= 0). */
    readonly scale: (sumOfSquares: f32, maxAbs: f32) => f32;
    /** From a number over the scale to its code, below `2^bits`. */
    readonly code: (x: f32, levels: Lookup<f32>, bits: Static<u32>) => u32;
    /** From a code to the number over the scale. */
    readonly value: (code: u32, levels: Lookup<f32>) => f32;
  };
  /** URL of the file that defines the device functions, when it is not part of kvforge: `import.meta.url`. */
  readonly source?: string;
}

/** Which numbers of the compressed middle share a scale: a block of consecutive tokens and channels of one KV head. */
export interface ScaleBlock {
  /** Tokens, counted from the first of the middle; `'prompt'` is all of them. */
  readonly tokens: number | 'prompt';
  /** Channels of a head; `'head'` is all of them. */
  readonly channels: number | 'head';
}

/** A scalar code for every channel of every token of the middle. */
export interface Quantizer {
  readonly kind: 'quantizer';
  readonly name: string;
  readonly codec: ScalarCodec;
  readonly block: ScaleBlock;
  /**
   * Share of the numbers of a block that its range leaves out at each end, in ten thousandths of it: trim * count of
   * them, rounded; none if left out. Offset and scale are those of the others, and the numbers left out are clamped.
   */
  readonly trim?: number;
}

/**
 * Numbers beyond the range of their code, kept beside it: a channel and an f16 residual for at most so many of each token
 * and KV head (dense and sparse).
 */
export interface OutlierCodec {
  readonly kind: 'outliers';
  readonly name: string;
  readonly cap: number;
}

/**
 * Declares a codec of your own. The types hold the contract; `source: import.meta.url` tells the generator which file
 * to lower.
 *
 * @example
 * export function largestMagnitude(_sumOfSquares: f32, maxAbs: f32): f32 {
 *   'device';
 *   return f32(f16(maxAbs));
 * }
 * export const uniform8 = defineCodec({
 *   kind: 'scalar', name: 'uniform8', bits: 8, source: import.meta.url,
 *   levels: () => Array.from({ length: 256 }, (_, i) => (i - 127.5) / 127.5),
 *   device: { ...lloydMax({ bits: 8 }).device, scale: largestMagnitude },
 * });
 * const { files } = await generate({ ...shard, stream: uniform8 }, model, defaultTargets.wgsl);
 * files.get('append_token.wgsl')!.includes('fn largest_magnitude('); // true
 */
export function defineCodec(codec: ScalarCodec): ScalarCodec {
  return codec;
}
