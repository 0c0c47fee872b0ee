import type { GainCodec, TileRotation, TransformCode } from '../codec.js';

/**
 * Rotates keys before RoPE by their place t = p mod tile - (tile - 1) / 2 within a tile of positions. Keys of a tile then
 * need one rotation, that of its centre, which attention gives the query instead; slow pairs hardly move within a tile, so
 * that a transform of the channels still finds nearly all that keys have in common.
 *
 * @example
 * [unrope(), tileRotation({ tile: 64 }), transformCode({ bits: 1.5 })]
 */
export function tileRotation({ tile }: Pick<TileRotation, 'tile'>): TileRotation {
  return { kind: 'tile-rotation', name: 'tileRotation', tile };
}

export interface TransformCodeParams {
  /** Mean bits of a channel, a multiple of 1/4 from 1/4 to 6; the widths of components are 0 to 6 or 8. */
  readonly bits: number;
  /** Positions that share a step a component, a multiple of the tile; 0 for the whole prompt. 512 if left out. */
  readonly rangeBlock?: 0 | 128 | 256 | 512 | 1024 | 2048;
}

/**
 * Transform coding (Huang and Schultheiss 1963) of the keys of every KV head: their mean is taken off, every rotary pair is
 * weighted by what the prompt's queries ask of it, so that errors of scores are least and not those of keys, the
 * eigenvectors of their second moments make components of them, and widths of groups of components are those of least
 * expected error under a budget for all heads of the layer. `prefill` needs the queries, or a calibration.
 *
 * @example
 * transformCode({ bits: 1.5 }).rangeBlock; // 512
 */
export function transformCode({ bits, rangeBlock = 512 }: TransformCodeParams): TransformCode {
  return { kind: 'transform-code', name: 'transformCode', bits, rangeBlock };
}

/**
 * Makes coded values unbiased: levels of least error shrink what they code, and attention averages that instead of
 * cancelling it. The gain of a (head, channel) is the sum of y * y over that of y * coded y.
 *
 * @example
 * [hadamard(), perToken(uniformNormal({ bits: 2 })), gain()]
 */
export function gain(): GainCodec {
  return { kind: 'gain', name: 'gain' };
}
