import type { Matrix } from '../reference/shapes.js';
import type { GroupChoice, PartChoices } from './allocate.js';
import { codeGroup, widths } from './quantize.js';

/** Components that may share a scale: a large variance deserves one of its own, many small ones cannot afford it. */
export const groupSizes = [1, 2, 4, 8, 16, 32, 64] as const;

/** What entropy coding adds to the entropy: the tables of two streams. */
const streamBits = 8 * 90;

/**
 * What every group that a part may have would cost and lose, from its own codes of some rows. Groups begin at multiples of
 * their size (the last is cut off), which leaves few enough to code all of them.
 *
 * @param coefficients [components][sampled rows], components of decreasing variance
 * @param weight of a square, so that parts of different magnitude may be added
 * @param tokens coded in all, which share what a group costs once
 * @param componentBits of the basis, for each of its components
 */
export function choicesOf(
  coefficients: Matrix,
  {
    weight,
    tokens,
    componentBits,
  }: { readonly weight: number; readonly tokens: number; readonly componentBits: number },
): PartChoices {
  const { rows: width, columns: rows, data } = coefficients;
  const tail = new Float64Array(width + 1);
  for (let component = width - 1; component >= 0; component--) {
    let squares = 0;
    for (let row = 0; row < rows; row++) squares += data[component * rows + row]! ** 2;
    tail[component] = tail[component + 1]! + (squares * weight) / rows;
  }
  const choices: GroupChoice[] = [];
  for (const size of groupSizes) {
    for (let start = 0; start < width; start += size) {
      const components = Math.min(size, width - start);
      for (const bits of widths) {
        const { coded, error } = codeGroup(coefficients, { start, components, bits });
        const perToken = entropy(coded.scales) + components * entropy(coded.codes);
        const cost = perToken + (streamBits + components * componentBits) / tokens;
        choices.push({ start, components, bits, cost, error: (error * weight) / rows });
      }
    }
  }
  return { width, tail, choices };
}

/** Bits of a symbol, by how often each occurs. */
export function entropy(symbols: Uint8Array): number {
  const counts = new Float64Array(256);
  for (let i = 0; i < symbols.length; i++) counts[symbols[i]!]!++;
  let bits = 0;
  for (const count of counts) {
    if (count > 0) bits -= (count / symbols.length) * Math.log2(count / symbols.length);
  }
  return bits;
}
