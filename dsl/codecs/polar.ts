import type { PolarCodec } from '../codec.js';
import { abs, type f32, i32, max, min, round, sqrt, u32, vec2f } from '../device.js';

/**
 * Keys as a radius and an angle for each pair that RoPE turns together (PolarQuant, Wu et al. 2025, section 3). RoPE makes
 * the two channels of a pair a circle that many tokens go round, on which a scale for each channel is spent; their radius
 * it leaves alone, and channels of outliers are one radius that varies little. Channels that are not rotated are pairs too.
 *
 * What is coded afterwards is, in place of the pair's first channel its radius, in place of the second one its angle over
 * pi, from -1 to 1. They have nothing in common that a scale could be for: the quantizer is by channel.
 *
 * @example
 * [polar(), perChannel(midRise({ bits: 4 }), { tokens: 128 })]
 */
export function polar(): PolarCodec {
  return { kind: 'polar', name: 'polar' };
}

/*
 * Polynomials of least largest error, by Remez's exchange. WGSL allows its own sin and cos an error of 2^-11 and atan2 one
 * of 4096 units in the last place; float32 is left with 1e-7 here, and every device with the same.
 */

/** The arctangent of a slope from 0 to 1, over pi; 1.6e-8 of it is the polynomial's error. */
export function arctangent(slope: f32): f32 {
  'device';
  const square = slope * slope;
  let sum: f32 = 0.0009071471664;
  sum = sum * square - 0.005114799083;
  sum = sum * square + 0.01358912389;
  sum = sum * square - 0.02388690234;
  sum = sum * square + 0.03387113979;
  sum = sum * square - 0.04521160291;
  sum = sum * square + 0.06363848378;
  sum = sum * square - 0.1061024678;
  sum = sum * square + 0.3183098813;
  return slope * sum;
}

/** The radius of the point (a, b) and its angle over pi, from -1 to 1: 0 for the origin, and 1 for (-1, -0) as for (-1, 0). */
export function toPolar(a: f32, b: f32): vec2f {
  'device';
  const longer = max(abs(a), abs(b));
  const shorter = min(abs(a), abs(b));
  let angle: f32 = 0;
  if (longer > 0) {
    angle = arctangent(shorter / longer);
  }
  if (abs(b) > abs(a)) {
    angle = 0.5 - angle;
  }
  if (a < 0) {
    angle = 1 - angle;
  }
  return vec2f(sqrt(a * a + b * b), b < 0 ? -angle : angle);
}

/**
 * Undoes `toPolar`. A radius below zero, which a level of a codec may stand for, is zero: it would point the other way.
 *
 * @param angle over pi, a few turns at most
 */
export function fromPolar(radius: f32, angle: f32): vec2f {
  'device';
  // From the nearest multiple of a quarter turn, whose difference is exact, the rest is an eighth at most.
  const quarters = round(angle * 2);
  const rest = angle - quarters * 0.5;
  const square = rest * rest;
  let sine: f32 = -0.5890122101;
  sine = sine * square + 2.549761049;
  sine = sine * square - 5.167707682;
  sine = sine * square + 3.141592643;
  sine = sine * rest;
  let cosine: f32 = 0.231329716;
  cosine = cosine * square - 1.335044564;
  cosine = cosine * square + 4.058707263;
  cosine = cosine * square - 4.934802163;
  cosine = cosine * square + 1;
  const side = u32(u32(i32(quarters)) & 3);
  const isOdd = (side & 1) === 1;
  const length = max(radius, 0);
  const along = isOdd ? sine : cosine;
  const across = isOdd ? cosine : sine;
  return vec2f(
    side === 1 || side === 2 ? -length * along : length * along,
    side >= 2 ? -length * across : length * across,
  );
}
