import { toHalf } from './quantize.js';
import type { ScalarCodes, ScalarOutliers } from './scalar.js';
import { type HeadTensor, vectorAt } from './shapes.js';

/** Which numbers are outliers, and how many of each token and head are kept. */
export interface OutlierRule {
  readonly cap: number;
  /** A number is an outlier where its difference from the offset lies outside of the scale times this. */
  readonly range: readonly [number, number];
}

/** One number of a vector that its code does not reach. */
export interface Outlier {
  readonly channel: number;
  /** The number less what the code stands for. */
  readonly residual: number;
}

/**
 * The outliers of one token and head, largest residual first; of two of one size the lower channel's first.
 *
 * @param x in the form that is coded
 * @param at index of the vector in [M][kvHeads]
 * @example
 * const codes = { form: 'cached', block: { tokens: 1, channels: 2 }, codes: Uint8Array.of(2, 1) } as const;
 * const stored = { ...codes, scales: Float64Array.of(1), values: Float64Array.of(-1, 0, 1) };
 * outliersOf(Float64Array.of(3, 0.4), { token: 0, head: 0, heads: 1 }, stored, [-1, 1]); // [{ channel: 0, residual: 2 }]
 */
export function outliersOf(
  x: Float64Array,
  at: { readonly token: number; readonly head: number; readonly heads: number },
  { block, codes, scales, offsets, values }: ScalarCodes,
  [least, greatest]: OutlierRule['range'],
): readonly Outlier[] {
  const d = x.length;
  const row = block.tokens === 'prompt' ? 0 : Math.floor(at.token / block.tokens);
  const found: Outlier[] = [];
  for (let channel = 0; channel < d; channel++) {
    const index = (row * at.heads + at.head) * (d / block.channels) + Math.floor(channel / block.channels);
    const [scale, offset] = [scales[index]!, offsets?.[index] ?? 0];
    const difference = x[channel]! - offset;
    if (difference >= scale * least && difference <= scale * greatest) continue;
    const code = codes[(at.token * at.heads + at.head) * d + channel]!;
    found.push({ channel, residual: difference - scale * values[code]! });
  }
  return found.sort((a, b) => Math.abs(b.residual) - Math.abs(a.residual) || a.channel - b.channel);
}

/**
 * Keeps the outliers of every token and head, and counts those past the cap.
 *
 * @example
 * const codes = { form: 'cached', block: { tokens: 1, channels: 2 }, codes: Uint8Array.of(2, 2) } as const;
 * const stored = { ...codes, scales: Float64Array.of(1), values: Float64Array.of(-1, 0, 1) };
 * const tensor = { heads: 1, tokens: 1, channels: 2, data: Float64Array.of(3, 4) };
 * encodeOutliers(tensor, stored, { cap: 1, range: [-1, 1] }).clamped; // 1
 */
export function encodeOutliers(
  numbers: HeadTensor,
  codes: ScalarCodes,
  { cap, range }: OutlierRule,
): { readonly kept: ScalarOutliers; readonly clamped: number } {
  const { heads, tokens } = numbers;
  const channels = new Uint16Array(tokens * heads * cap);
  const residuals = new Float64Array(tokens * heads * cap);
  let clamped = 0;
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < heads; head++) {
      const found = outliersOf(vectorAt(numbers, head, token), { token, head, heads }, codes, range);
      clamped += Math.max(0, found.length - cap);
      for (const [i, { channel, residual }] of found.slice(0, cap).entries()) {
        channels[(token * heads + head) * cap + i] = channel;
        residuals[(token * heads + head) * cap + i] = toHalf(residual);
      }
    }
  }
  return { kept: { cap, channels, residuals }, clamped };
}
