import { hadamard } from './hadamard.js';
import { rotate } from './rope.js';
import { decodeSegments, type SequenceParts, type TokenDecoder } from './segments.js';
import type { Cache } from './shapes.js';

/** The compressed middle of one sequence's cache in one layer, M tokens, keys tile-rotated and transform coded. */
export interface TiltMiddle {
  readonly tokens: number;
  /** Position of the first of them. */
  readonly firstPosition: number;
  /** Positions of a tile. */
  readonly tile: number;
  /** Positions that share the steps of the components; 0 for all. */
  readonly rangeBlock: number;
  /** Components that share a width. */
  readonly group: number;
  /** Bits of each group of each head, [kvHeads][d/group]. */
  readonly widths: readonly number[];
  /** [M][kvHeads][d], mid-rise codes from -2^(bits-1) to 2^(bits-1) - 1; zero without bits. */
  readonly keyCodes: Int32Array;
  /** [range blocks from position 0 on][kvHeads][d components], float16: 128 times the step and the scale of the basis. */
  readonly steps: Float64Array;
  /** [kvHeads][d components][d channels] */
  readonly basisCodes: Int8Array;
  /** [kvHeads][d], mean of the keys before RoPE, float16. */
  readonly mean: Float64Array;
  /** [kvHeads][d], float16 above 0: what the keys were multiplied with before they were transformed. */
  readonly weights: Float64Array;
  readonly tiltValues: TiltValueCodes;
}

/** Values of the middle, channel by channel after the Hadamard transform. */
export interface TiltValueCodes {
  /** Channels that share a scale; a divisor of d. */
  readonly scaleChannels: number;
  /** [M][kvHeads][d] */
  readonly codes: Uint8Array;
  /** [M][kvHeads][d/scaleChannels], float16. */
  readonly scales: Float64Array;
  /** Of the same shape, float16; left out where nothing is taken off. */
  readonly offsets?: Float64Array;
  /** What each code stands for, over its scale. */
  readonly levels: Float64Array;
  /** [kvHeads][d], float16; left out where the code is taken as it is. */
  readonly gains?: Float64Array;
}

export type TiltParts = SequenceParts<TiltMiddle>;

/** Where a position lies in its tile, from -(tile - 1)/2 to (tile - 1)/2. */
export function placeInTile(position: number, tile: number): number {
  return (position % tile) - (tile - 1) / 2;
}

/** The range block of a position. */
export function rangeBlockOf(position: number, rangeBlock: number): number {
  return rangeBlock === 0 ? 0 : Math.floor(position / rangeBlock);
}

/**
 * The cache that a sequence stands for whose keys are transform coded within tiles, straight from the definitions, in the
 * order sinks, middle, stream, window.
 *
 * @example
 * const values = { levels: [-1, 0, 1], scale: 'largest', offset: 'none' } as const;
 * const parts = encodeTilt(exact, model, {
 *   bits: 2, tile: 16, rangeBlock: 128, group: 8, gains: true, values: { rule: values, channels: 8 }, sinks: 4, window: 8,
 * });
 * decodeTilt(parts).keys.tokens; // 48
 */
export function decodeTilt(parts: TiltParts): Cache {
  return decodeSegments(parts, middleKey(parts), middleValue(parts));
}

/**
 * `k_hat = R(p) (mu + R(-t) ((1/w) * sum over r of step_r / 128 * (code_r + 1/2) * B8[r, :]))`, t the place of p in its tile.
 */
function middleKey({ middle, kvHeads, headDim: d, rope }: TiltParts): TokenDecoder {
  const { firstPosition, tile, rangeBlock, group, widths, keyCodes, steps, basisCodes } = middle;
  return (head, token) => {
    const position = firstPosition + token;
    const block = rangeBlockOf(position, rangeBlock);
    const difference = new Float64Array(d);
    for (let r = 0; r < d; r++) {
      if (widths[head * (d / group) + Math.floor(r / group)] === 0) continue;
      const step = steps[(block * kvHeads + head) * d + r]!;
      const component = step * (keyCodes[(token * kvHeads + head) * d + r]! + 0.5);
      for (let i = 0; i < d; i++) {
        const entry = basisCodes[(head * d + r) * d + i]! / 128;
        difference[i]! += (component * entry) / middle.weights[head * d + i]!;
      }
    }
    const key = rotate(difference, -placeInTile(position, tile), rope).map((x, i) => x + middle.mean[head * d + i]!);
    return rotate(key, position, rope);
  };
}

/** `v_hat = H (gain * (offset + scale * level[code]))`, H its own inverse. */
function middleValue({ middle, kvHeads, headDim: d }: TiltParts): TokenDecoder {
  const { scaleChannels, codes, scales, offsets, levels, gains } = middle.tiltValues;
  return (head, token) => {
    const turned = new Float64Array(d);
    for (let i = 0; i < d; i++) {
      const at = (token * kvHeads + head) * (d / scaleChannels) + Math.floor(i / scaleChannels);
      const coded = (offsets?.[at] ?? 0) + scales[at]! * levels[codes[(token * kvHeads + head) * d + i]!]!;
      turned[i] = (gains?.[head * d + i] ?? 1) * coded;
    }
    return hadamard(turned);
  };
}
