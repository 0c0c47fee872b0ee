import { hadamard } from './hadamard.js';
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
  /** What the coded vectors are: as the cache has them, after the Hadamard transform, or keys before RoPE. */
  readonly form: 'cached' | 'turned' | 'unrotated';
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
 * `x_hat = offset + scale * value[code]`, plus its residual for an outlier, then the transform or RoPE that the form asks
 * for.
 *
 * @param transform the Hadamard transform of one vector, its own inverse
 */
export function scalarDecoder(
  { middle, rope, kvHeads, headDim: d }: ScalarParts,
  { form, block, codes, scales, offsets, values, outliers }: ScalarCodes,
  transform: (x: Float64Array) => Float64Array,
): TokenDecoder {
  return (head, token) => {
    const row = block.tokens === 'prompt' ? 0 : Math.floor(token / block.tokens);
    const coded = new Float64Array(d);
    for (let i = 0; i < d; i++) {
      const at = (row * kvHeads + head) * (d / block.channels) + Math.floor(i / block.channels);
      coded[i] = (offsets?.[at] ?? 0) + scales[at]! * values[codes[(token * kvHeads + head) * d + i]!]!;
    }
    for (let i = 0; outliers && i < outliers.cap; i++) {
      const at = (token * kvHeads + head) * outliers.cap + i;
      coded[outliers.channels[at]!]! += outliers.residuals[at]!;
    }
    if (form === 'turned') return transform(coded);
    return form === 'unrotated' ? rotate(coded, middle.firstPosition + token, rope) : coded;
  };
}
