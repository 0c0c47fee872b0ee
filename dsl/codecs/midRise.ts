import { clamp, f16, f32, floor, i32, min, u32 } from '../device.js';

/*
 * Mid-rise codes: levels at odd multiples of half a step, so that one bit is worth having and nothing shrinks towards
 * zero as with the levels of least error. Widths are 0 to 8 bits and known when the kernel runs, not when it is written.
 */

/**
 * The step of a component, stored as f16 and saturated: its range over 2^bits levels. With one bit the two levels are
 * plus and minus the mean magnitude. Zero without bits.
 */
export function midRiseStep(maxAbs: f32, meanAbs: f32, bits: u32): f32 {
  'device';
  let step: f32 = 0;
  if (bits === 1) {
    step = f32(2 * meanAbs);
  } else if (bits > 1) {
    step = f32((2 * maxAbs) / f32(u32(1 << bits)));
  }
  return f32(f16(min(step, 65504)));
}

/** The code of a coefficient as an unsigned field: floor(coefficient / step), clamped, plus 2^(bits-1). */
export function midRiseField(coefficient: f32, step: f32, bits: u32): u32 {
  'device';
  const half = i32(1 << (bits - 1));
  let code: f32 = 0;
  if (step > 0) {
    code = clamp(floor(coefficient / step), -f32(half), f32(half - 1));
  }
  return u32(i32(code) + half);
}

/** What a field stands for, in steps. */
export function midRiseValue(field: u32, bits: u32): f32 {
  'device';
  return f32(i32(field) - i32(1 << (bits - 1))) + 0.5;
}

/** The widths that bits are allocated from, as `choice` goes from 0 to 7: every one to 6 bits, then 8. */
export function midRiseWidth(choice: u32): u32 {
  'device';
  return choice < 7 ? choice : 8;
}

/**
 * The share of a component's variance that is left as error at a width, for normal coefficients; 7 bits are never given.
 * One bit: 1 - 2/pi, what the mean magnitude leaves. More bits: the twelfth of a squared step that uniform levels leave,
 * of a step that is the range over 2^bits, and the range is that of a few thousand samples: 3.7 standard deviations to
 * each side, the mean over draws of the largest of 4096.
 */
export function midRiseDistortion(bits: u32): f32 {
  'device';
  let left: f32 = 1;
  if (bits === 1) {
    left = 0.3633802;
  } else if (bits > 1) {
    const step = f32(7.4 / f32(u32(1 << bits)));
    left = f32((step * step) / 12);
  }
  return left;
}
