import { KvforgeError } from './errors.js';

/**
 * Cosines and sines of every rotary angle, for `position = tile * hi + lo`:
 * the rotation by a position is that by `coarse[hi]` followed by that by `fine[lo]`.
 */
export interface RopeTables {
  readonly tile: number;
  /** [ceil(positions/tile)][pairs][cos, sin] of `tile * hi * frequencies[pair]`. */
  readonly coarse: Float32Array;
  /** [tile][pairs][cos, sin] of `lo * frequencies[pair]`. */
  readonly fine: Float32Array;
}

/** Products of a position below this with half a double are exact, which `cosSin` relies on. */
const positionsLimit = 2 ** 24;

/**
 * The angle tables of positions 0 .. positions-1, in float64, each entry rounded to float32 once.
 *
 * @param frequencies radians per position, [at most pairs]; pairs beyond them are not rotated (angle 0)
 * @param pairs pairs of channels of one head, headDim / 2
 * @example
 * const { coarse, fine } = ropeTables(frequenciesFor(model.rope, 8192), model.headDim / 2, 8192, 64);
 * coarse.length; // 128 * model.headDim
 * fine.length; // 64 * model.headDim
 */
export function ropeTables(frequencies: readonly number[], pairs: number, positions: number, tile: number): RopeTables {
  requireCount('positions', positions, 0);
  requireCount('tile', tile, 1);
  if (!Number.isInteger(pairs) || pairs < frequencies.length) {
    throw new KvforgeError('invalid-input', {
      at: 'pairs',
      expected: `a whole number, at least the ${frequencies.length} frequencies`,
      received: String(pairs),
      hint: 'A head of d channels has d/2 pairs.',
    });
  }
  return {
    tile,
    coarse: anglesOf(frequencies, pairs, Math.ceil(positions / tile), tile),
    fine: anglesOf(frequencies, pairs, tile, 1),
  };
}

function anglesOf(frequencies: readonly number[], pairs: number, rows: number, step: number): Float32Array {
  const table = new Float32Array(rows * pairs * 2);
  for (let row = 0; row < rows; row++) {
    for (let pair = 0; pair < pairs; pair++)
      table.set(cosSin(row * step, frequencies[pair] ?? 0), (row * pairs + pair) * 2);
  }
  return table;
}

/**
 * cos and sin of `position * frequency` as if the product had been exact: rounding it first would lose up to 2e-9 at
 * position 2^24, and Math.cos reduces modulo 2 pi exactly only what it is given.
 */
function cosSin(position: number, frequency: number): [cos: number, sin: number] {
  const shifted = frequency * (2 ** 27 + 1);
  const high = shifted - (shifted - frequency);
  const angle = position * frequency;
  const rest = position * high - angle + position * (frequency - high);
  const cos = Math.cos(angle);
  const sin = Math.sin(angle);
  return [cos - rest * sin, sin + rest * cos];
}

function requireCount(at: string, value: number, least: number): void {
  if (Number.isInteger(value) && value >= least && value <= positionsLimit) return;
  throw new KvforgeError('invalid-input', {
    at,
    expected: `a whole number from ${least} to ${positionsLimit}`,
    received: String(value),
    hint: 'Positions count tokens of one sequence.',
  });
}

/**
 * The angles of places in a tile of positions, from -(tile - 1)/2 to (tile - 1)/2.
 *
 * @param pairs of a head; those without a frequency stay as they are
 * @returns [tile][pairs](cosine, sine)
 * @example
 * tileAngles([Math.PI], 2, 2); // [0, -1, 1, 0, 0, 1, 1, 0], to rounding
 */
export function tileAngles(frequencies: readonly number[], pairs: number, tile: number): Float32Array {
  const table = new Float32Array(tile * pairs * 2);
  for (let index = 0; index < tile * pairs; index++) {
    const angle = (frequencies[index % pairs] ?? 0) * (Math.floor(index / pairs) - (tile - 1) / 2);
    table[index * 2] = Math.cos(angle);
    table[index * 2 + 1] = Math.sin(angle);
  }
  return table;
}
