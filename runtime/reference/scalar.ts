import { hadamard } from './hadamard.js';
import { fromPolarForm } from './polar.js';
import { type ResidualSigns, residualOf } from './residualSigns.js';
import { rotate } from './rope.js';
import { decodeSegments, type SequenceParts, type TokenDecoder } from './segments.js';
import type { Cache } from './shapes.js';

/** Which numbers share a scale: consecutive tokens, counted from the first of the middle, and channels of one KV head. */
export interface ScalarBlock {
  /** The last block of a middle may have fewer; `'prompt'` is the whole middle. */
  readonly tokens: number | 'prompt';
  /** A divisor of d. */
  readonly channels: number;
}

/** The keys, or the values, of the middle, with a code for every number. */
export interface ScalarCodes {
  /**
   * What the coded vectors are: as the cache has them, after the Hadamard transform, keys before RoPE, or keys as radii
   * and angles.
   */
  readonly form: 'cached' | 'turned' | 'unrotated' | 'polar';
  readonly block: ScalarBlock;
  /** [M][kvHeads][d] */
  readonly codes: Uint8Array;
  /** [blocks of tokens][kvHeads][blocks of a head], float16. */
  readonly scales: Float64Array;
  /** Of the same shape, float16; left out where nothing is taken off. */
  readonly offsets?: Float64Array;
  /** What each code stands for, over its scale; 2^bits of them. */
  readonly values: Float64Array;
  /** Left out where nothing is kept beside the codes. */
  readonly outliers?: ScalarOutliers;
  /** The signs of what the codes leave; left out where they are not kept. */
  readonly residuals?: ResidualSigns;
}

/** What is added to the numbers that the codes of a middle stand for: some channels of each token and head. */
export interface ScalarOutliers {
  /** Of one token and head, c of them. */
  readonly cap: number;
  /** [M][kvHeads][c]; zero where there is no outlier. */
  readonly channels: Uint16Array;
  /** Of the same shape, float16, largest magnitude first; zero where there is no outlier. */
  readonly residuals: Float64Array;
}

/** The compressed middle of one sequence's cache in one layer, M tokens, every channel coded by itself. */
export interface ScalarMiddle {
  readonly tokens: number;
  /** Position of the first of them. */
  readonly firstPosition: number;
  readonly keys: ScalarCodes;
  readonly values: ScalarCodes;
  /** Outliers past the caps; left out where the scheme has no outliers. */
  readonly clamped?: { readonly keys: number; readonly values: number };
}

export type ScalarParts = SequenceParts<ScalarMiddle>;

/**
 * The cache that a sequence stands for whose middle is coded channel by channel, straight from the definitions, in the
 * order sinks, middle, stream, window.
 *
 * @example
 * const rule = { levels: [-1, 0, 1], offset: 'none', scale: 'largest' } as const;
 * const coding = { rule, form: 'cached', block: { tokens: 1, channels: 8 } } as const;
 * const parts = encodeScalar(exact, model, { keys: coding, values: coding, sinks: 4, window: 8 });
 * decodeScalar(parts).keys.tokens; // 48
 */
export function decodeScalar(parts: ScalarParts): Cache {
  const { keys, values } = parts.middle;
  return decodeSegments(parts, scalarDecoder(parts, keys, hadamard), scalarDecoder(parts, values, hadamard));
}

/**
 * What the codes of one vector stand for, in the form that is coded: `offset + scale * value[code]`.
 *
 * @example
 * const codes = { form: 'cached', block: { tokens: 1, channels: 2 }, codes: Uint8Array.of(0, 2) } as const;
 * const stored = { ...codes, scales: Float64Array.of(3), values: Float64Array.of(-1, 0, 1) };
 * codedVector(stored, { token: 0, head: 0, heads: 1, channels: 2 }); // [-3, 3]
 */
export function codedVector(
  { block, codes, scales, offsets, values }: ScalarCodes,
  at: { readonly token: number; readonly head: number; readonly heads: number; readonly channels: number },
): Float64Array {
  const { token, head, heads, channels: d } = at;
  const row = block.tokens === 'prompt' ? 0 : Math.floor(token / block.tokens);
  return Float64Array.from({ length: d }, (_, i) => {
    const index = (row * heads + head) * (d / block.channels) + Math.floor(i / block.channels);
    return (offsets?.[index] ?? 0) + scales[index]! * values[codes[(token * heads + head) * d + i]!]!;
  });
}

/**
 * `x_hat = offset + scale * value[code]`, plus its residual for an outlier, then the transform, RoPE or change of
 * coordinates that the form asks for.
 *
 * @param transform the Hadamard transform of one vector, its own inverse
 */
export function scalarDecoder(
  { middle, rope, kvHeads, headDim: d }: ScalarParts,
  codes: ScalarCodes,
  transform: (x: Float64Array) => Float64Array,
): TokenDecoder {
  const { form, outliers, residuals } = codes;
  return (head, token) => {
    const coded = codedVector(codes, { token, head, heads: kvHeads, channels: d });
    if (residuals) {
      const at = token * kvHeads + head;
      const left = residualOf(
        residuals.signs.subarray(at * d, (at + 1) * d),
        residuals.norms[at]!,
        residuals.projection,
      );
      for (let i = 0; i < d; i++) coded[i]! += left[i]!;
    }
    for (let i = 0; outliers && i < outliers.cap; i++) {
      const at = (token * kvHeads + head) * outliers.cap + i;
      coded[outliers.channels[at]!]! += outliers.residuals[at]!;
    }
    if (form === 'turned') return transform(coded);
    if (form === 'polar') return fromPolarForm(coded, rope);
    return form === 'unrotated' ? rotate(coded, middle.firstPosition + token, rope) : coded;
  };
}
