import type { Matrix } from '../reference/shapes.js';

/** Bits of a component; 2^bits - 1 levels, even ones around a zero. */
export const widths = [2, 3, 4, 5, 6, 7, 8] as const;

/** Steps of a scale in an octave: a scale is one byte, and chosen from 9 % to 9 %. */
const stepsPerOctave = 8;
/** The code of the largest scale of a group; 0 is a scale of 0. */
const largestCode = 255;
/** Halves lie within 2^16, and a basis has at most 2^16 channels: what a coefficient may be at most, and more than enough. */
export const exponentRange = { from: -64, to: 64 } as const;

/** So much below the largest magnitude a scale may lie, in its steps: fewer levels gain more by clipping the few largest. */
const clippedSteps: Readonly<Record<number, number>> = { 2: 12, 3: 7, 4: 5, 5: 4, 6: 3, 7: 2, 8: 1 };

/** Coded components: a scale for every token, a code for every component of a token. */
export interface CodedGroup {
  /** Exponent of 2 of the scale with the largest code. */
  readonly exponent: number;
  /** [tokens] */
  readonly scales: Uint8Array;
  /** [components][tokens], from 0 to 2^bits - 2. */
  readonly codes: Uint8Array;
}

/** Levels on each side of zero. */
export const sideLevels = (bits: number) => 2 ** (bits - 1) - 1;

/** Scales of a group by their codes, as the same doubles on every engine: the eight powers are rounded to float32. */
export function scaleTable(exponent: number): Float64Array {
  const table = new Float64Array(largestCode + 1);
  for (let code = 1; code <= largestCode; code++) {
    const steps = code - largestCode;
    const octaves = Math.floor(steps / stepsPerOctave);
    const fraction = steps - octaves * stepsPerOctave;
    table[code] = Math.fround(2 ** (fraction / stepsPerOctave)) * 2 ** (exponent + octaves);
  }
  return table;
}

/** Which components, and how many bits of each. */
export interface GroupPlace {
  readonly start: number;
  readonly components: number;
  readonly bits: number;
}

/**
 * Codes components of every token with a scale that they share, the one of least squared error among those that reach the
 * largest magnitude or clip it a little.
 *
 * @param coefficients [components][tokens] of the whole basis
 * @returns codes, and the squares of what is lost
 */
export function codeGroup(
  { columns: tokens, data }: Matrix,
  { start, components, bits }: GroupPlace,
): { readonly coded: CodedGroup; readonly error: number } {
  const side = sideLevels(bits);
  const rows = data.subarray(start * tokens, (start + components) * tokens);
  let most = 0;
  for (let i = 0; i < rows.length; i++) most = Math.max(most, Math.abs(rows[i]!));
  const exponent = Math.min(Math.max(Math.ceil(Math.log2(most || 1)), exponentRange.from), exponentRange.to);
  const table = scaleTable(exponent);
  const scales = new Uint8Array(tokens);
  const codes = new Uint8Array(components * tokens).fill(side);
  const vector = new Float64Array(components);
  let error = 0;
  for (let token = 0; token < tokens; token++) {
    let [squares, largest] = [0, 0];
    for (let i = 0; i < components; i++) {
      vector[i] = rows[i * tokens + token]!;
      squares += vector[i]! ** 2;
      largest = Math.max(largest, Math.abs(vector[i]!));
    }
    const reach = codeReaching(table, largest, exponent);
    let [best, chosen] = [squares, 0];
    for (let code = Math.max(1, reach - clippedSteps[bits]!); code <= reach; code++) {
      const left = lost(vector, table[code]!, side);
      if (left < best) [best, chosen] = [left, code];
    }
    scales[token] = chosen;
    error += best;
    if (chosen === 0) continue;
    const perLevel = side / table[chosen]!;
    for (let i = 0; i < components; i++) {
      codes[i * tokens + token] = side + nearest(vector[i]! * perLevel, side);
    }
  }
  return { coded: { exponent, scales, codes }, error };
}

/** The code of the least scale that is not below a magnitude. */
function codeReaching(table: Float64Array, magnitude: number, exponent: number): number {
  if (magnitude === 0) return 0;
  let code = largestCode + Math.ceil((Math.log2(magnitude) - exponent) * stepsPerOctave);
  code = Math.min(Math.max(code, 0), largestCode);
  // The logarithm may be off by a digit where the magnitude is a scale.
  if (code < largestCode && table[code]! < magnitude) code++;
  return code;
}

const nearest = (x: number, side: number) => Math.min(Math.max(Math.round(x), -side), side);

function lost(vector: Float64Array, scale: number, side: number): number {
  const [perLevel, step] = [side / scale, scale / side];
  let squares = 0;
  for (let i = 0; i < vector.length; i++) squares += (vector[i]! - nearest(vector[i]! * perLevel, side) * step) ** 2;
  return squares;
}

/**
 * Writes what a group's codes stand for into coefficients, [components][tokens] of the whole basis.
 *
 * @param group codes within 0 to 2^bits - 2
 */
export function decodeGroup(
  { exponent, scales, codes }: CodedGroup,
  { start, components, bits }: GroupPlace,
  { columns: tokens, data }: Matrix,
): void {
  const side = sideLevels(bits);
  const steps = scaleTable(exponent).map((scale) => scale / side);
  for (let i = 0; i < components; i++) {
    for (let token = 0; token < tokens; token++) {
      data[(start + i) * tokens + token] = (codes[i * tokens + token]! - side) * steps[scales[token]!]!;
    }
  }
}
