import type { AllocatedBits, FieldBits, LowRankCodec } from '../codec.js';
import { clamp, f16, f32, i32, max, min, round, type Static, u32 } from '../device.js';

/** Ranks the tensor cores take without a remainder. */
export type Rank =
  | 16
  | 32
  | 48
  | 64
  | 80
  | 96
  | 112
  | 128
  | 144
  | 160
  | 176
  | 192
  | 208
  | 224
  | 240
  | 256
  | 272
  | 288
  | 304
  | 320
  | 336
  | 352
  | 368
  | 384
  | 400
  | 416
  | 432
  | 448
  | 464
  | 480
  | 496
  | 512
  | 528
  | 544
  | 560
  | 576
  | 592
  | 608
  | 624
  | 640
  | 656
  | 672
  | 688
  | 704
  | 720
  | 736
  | 752
  | 768
  | 784
  | 800
  | 816
  | 832
  | 848
  | 864
  | 880
  | 896
  | 912
  | 928
  | 944
  | 960
  | 976
  | 992
  | 1008
  | 1024;

export interface PcaParams {
  /** Components kept: at most the width kvHeads * headDim. `'auto'` is 3/16 of it, rounded to a multiple of 16. */
  readonly rank: Rank | 'auto';
  /**
   * Bits of a component's code: one width for all, one per group of components (symmetric codes, as Shard), or
   * `{ budget }`: widths 0 to 8 that every prompt's own variances decide, with mid-rise codes.
   */
  readonly bits: FieldBits | readonly FieldBits[] | AllocatedBits;
  /** Components that share a width. */
  readonly group: 16 | 32 | 64 | 128;
  /**
   * `'queries'`: codes are fitted to what the prompt's last queries ask, and `prefill` needs these. The basis minimises
   * the error of scores, not of keys: every rotary pair is weighted by the root mean square of the queries there. Tokens
   * that the queries attend to count more, in the fit of the basis and of the value codebook.
   */
  readonly weight?: 'none' | 'queries';
  /** Subspace iterations of the eigenproblem; 24 leave 0.1 % variance over seeds (Shard write-up). */
  readonly iterations?: number;
  readonly seed?: number;
}

/**
 * Joint low-rank coding over all KV heads of a layer: the eigenvectors of the keys' second-moment matrix, an int8
 * basis with one scale a column, and symmetric integer coefficients with one scale a component (Shard, "Keys").
 *
 * @example
 * pca({ rank: 192, bits: 4, group: 64 })
 * pca({ rank: 128, bits: [6, 4], group: 64 })
 * pca({ rank: 'auto', bits: { budget: 'auto' }, group: 16, weight: 'queries' })
 */
export function pca(params: PcaParams): LowRankCodec {
  return { kind: 'low-rank', name: 'pca', weight: 'none', iterations: 24, seed: 1, ...params };
}

/**
 * The weight of a pair of channels: the root mean square that queries have there, over the largest of the layer. Floored,
 * as reading divides by it, and some models never ask for some pairs. 1 where there is nothing to weigh by.
 */
export function pairWeight(rootMeanSquare: f32, largest: f32): f32 {
  'device';
  let weight: f32 = 1;
  if (largest > 0) {
    weight = max(rootMeanSquare / largest, 0.001);
  }
  return f32(f16(weight));
}

/** The scale that maps a component's largest magnitude to the largest code; stored as f16, saturated. */
export function coefficientScale(maxAbs: f32, bits: Static<u32>): f32 {
  'device';
  return f32(f16(min(maxAbs / f32((1 << (bits - 1)) - 1), 65504)));
}

/** The code of a coefficient as an unsigned field (offset binary): code + 2^(bits-1), code in [-limit, limit]. */
export function coefficientField(coefficient: f32, scale: f32, bits: Static<u32>): u32 {
  'device';
  const limit = f32((1 << (bits - 1)) - 1);
  let code: f32 = 0;
  if (scale > 0) {
    code = clamp(round(coefficient / scale), -limit, limit);
  }
  return u32(i32(code) + i32(1 << (bits - 1)));
}

/** The integer a field stands for; times the component's scale it is the coefficient. */
export function coefficientValue(field: u32, bits: Static<u32>): f32 {
  'device';
  return f32(i32(field) - i32(1 << (bits - 1)));
}

/** One scale a basis column: its largest magnitude over 127, stored as f16. */
export function basisScale(maxAbs: f32): f32 {
  'device';
  return f32(f16(min(maxAbs / 127, 65504)));
}

/** The int8 code of a basis entry. */
export function basisCode(entry: f32, scale: f32): i32 {
  'device';
  let code: f32 = 0;
  if (scale > 0) {
    code = clamp(round(entry / scale), -127, 127);
  }
  return i32(code);
}

/** Byte `lane` (0 to 3) of a word as a signed integer. */
export function signedByte(word: u32, lane: u32): f32 {
  'device';
  const byte = i32(u32(word >>> u32(lane * 8)) & 255);
  return f32(byte > 127 ? byte - 256 : byte);
}
