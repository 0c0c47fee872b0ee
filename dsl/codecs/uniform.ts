import type { ScalarCodec } from '../codec.js';
import { clamp, f16, f32, floor, i32, type Lookup, min, round, type Static, u32 } from '../device.js';
import { levelValue } from './lloydMax.js';

export interface UniformParams {
  readonly bits: 2 | 3 | 4 | 8;
}

/**
 * Equal steps, as many to each side of zero as the largest magnitude allows: whole numbers from -(2^(bits-1) - 1) to
 * 2^(bits-1) - 1, over the latter. The code below these is left over.
 *
 * @example
 * symmetric({ bits: 2 }).levels(128); // [-2, -1, 0, 1]
 */
export function symmetric({ bits }: UniformParams): ScalarCodec {
  const [zero, largest] = [2 ** (bits - 1), 2 ** (bits - 1) - 1];
  return {
    kind: 'scalar',
    name: 'symmetric',
    bits,
    levels: () => Array.from({ length: 2 ** bits }, (_, code) => (code - zero) / largest),
    range: [-1, 1],
    device: { scale: magnitudeScale, code: symmetricCode, value: levelValue },
  };
}

/**
 * Equal steps from the least number to the greatest, whatever lies in the middle (KIVI, Liu et al. 2024, section 3).
 *
 * @example
 * asymmetric({ bits: 2 }).levels(32)[3]; // 1
 */
export function asymmetric({ bits }: UniformParams): ScalarCodec {
  const largest = 2 ** bits - 1;
  return {
    kind: 'scalar',
    name: 'asymmetric',
    bits,
    levels: () => Array.from({ length: 2 ** bits }, (_, code) => code / largest),
    device: { offset: leastNumber, scale: magnitudeScale, code: asymmetricCode, value: levelValue },
  };
}

/**
 * As many equal intervals from the least number to the greatest as there are codes, each standing for its middle. Of
 * numbers spread evenly over a range that is the best there is: steps that reach both ends are one fewer, which matters
 * most for angles, whose ends may be one direction.
 *
 * @example
 * midRise({ bits: 2 }).levels(32); // [0.125, 0.375, 0.625, 0.875]
 */
export function midRise({ bits }: UniformParams): ScalarCodec {
  const count = 2 ** bits;
  return {
    kind: 'scalar',
    name: 'midRise',
    bits,
    levels: () => Array.from({ length: count }, (_, code) => (code + 0.5) / count),
    range: [0, 1],
    device: { offset: leastNumber, scale: magnitudeScale, code: intervalCode, value: levelValue },
  };
}

/** The least number as f16, never infinite. */
export function leastNumber(least: f32, _greatest: f32): f32 {
  'device';
  return f32(f16(clamp(least, -65504, 65504)));
}

/** The largest magnitude as f16, never infinite. */
export function magnitudeScale(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  return f32(f16(min(maxAbs, 65504)));
}

/** The nearest of the codes 1 to 2^bits - 1, whose middle stands for zero. */
export function symmetricCode(x: f32, _levels: Lookup<f32>, bits: Static<u32>): u32 {
  'device';
  const largest = f32((1 << (bits - 1)) - 1);
  return u32(i32(clamp(round(x * largest), -largest, largest)) + i32(1 << (bits - 1)));
}

/** The nearest of the codes 0 to 2^bits - 1, the first for zero and the last for one. */
export function asymmetricCode(x: f32, _levels: Lookup<f32>, bits: Static<u32>): u32 {
  'device';
  const largest = f32((1 << bits) - 1);
  return u32(clamp(round(x * largest), 0, largest));
}

/** The interval that a number from zero to one lies in, of 2^bits. */
export function intervalCode(x: f32, _levels: Lookup<f32>, bits: Static<u32>): u32 {
  'device';
  const count = f32(1 << bits);
  return u32(clamp(floor(x * count), 0, count - 1));
}
