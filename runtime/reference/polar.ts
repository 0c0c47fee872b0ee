import { pairChannels, type Rotation } from './rope.js';

/**
 * Every pair of channels of a head: those that RoPE turns, then of the channels that it leaves alone the first half with
 * the second.
 *
 * @example
 * pairsOf({ invFreq: [1], pairing: 'half' }, 6); // [[0, 1], [2, 4], [3, 5]]
 */
export function pairsOf(rope: Rotation, headDim: number): readonly (readonly [number, number])[] {
  const rotated = rope.invFreq.map((_, j) => pairChannels(rope, j));
  const first = 2 * rotated.length;
  const rest = headDim / 2 - rotated.length;
  return [...rotated, ...Array.from({ length: rest }, (_, j) => [first + j, first + rest + j] as const)];
}

/**
 * A key as PolarQuant codes it (Wu et al. 2025): of each pair of channels (a, b) the radius sqrt(a^2 + b^2) in place of a,
 * and in place of b the angle atan2(b, a) over pi, above -1 and at most 1.
 *
 * @param x [d], after RoPE
 * @example
 * polarForm(Float64Array.of(0, -2), { invFreq: [1], pairing: 'half' }); // [2, -0.5]
 */
export function polarForm(x: Float64Array, rope: Rotation): Float64Array {
  const coded = new Float64Array(x.length);
  for (const [a, b] of pairsOf(rope, x.length)) {
    coded[a] = Math.hypot(x[a]!, x[b]!);
    // Adding zero takes the sign off a zero: atan2 tells both apart, and a code need not.
    coded[b] = Math.atan2(x[b]! + 0, x[a]! + 0) / Math.PI;
  }
  return coded;
}

/**
 * Takes back `polarForm`, of any angle. A radius below zero, as codes may stand for, is zero.
 *
 * @example
 * fromPolarForm(Float64Array.of(2, 1), { invFreq: [1], pairing: 'half' }); // [-2, 0], to rounding
 */
export function fromPolarForm(coded: Float64Array, rope: Rotation): Float64Array {
  const x = new Float64Array(coded.length);
  for (const [a, b] of pairsOf(rope, coded.length)) {
    const radius = Math.max(0, coded[a]!);
    x[a] = radius * Math.cos(Math.PI * coded[b]!);
    x[b] = radius * Math.sin(Math.PI * coded[b]!);
  }
  return x;
}
