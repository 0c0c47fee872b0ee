import { f16, f32, min, type Static, u32 } from '../device.js';

/*
 * Where the codes of a row of 64 positions lie (docs/tilt.md, "Bytes"): in the order in which the lanes of a tensor core's
 * product take them. A reader asks by position within the row.
 */

/** Byte of a byte plane that holds the fields of a component of its group. */
export function planeByte(position: u32, component: u32, components: Static<u32>): u32 {
  'device';
  const inHalf = u32(position % 32);
  const row = u32(u32(u32(position / 32) * 8) + u32(inHalf % 8));
  const word = u32(u32(u32(row * u32(components / 4)) + u32(component / 4)) * 4 + u32(inHalf / 8));
  return u32(word * 4 + u32(component % 4));
}

/** Byte of a nibble plane; positions 0 to 31 of the row have its low nibble, the others its high one. */
export function nibbleByte(position: u32, component: u32, components: Static<u32>): u32 {
  'device';
  const inHalf = u32(position % 32);
  const word = u32(u32(u32(u32(inHalf % 8) * u32(components / 4)) + u32(component / 4)) * 4 + u32(inHalf / 8));
  return u32(word * 4 + u32(component % 4));
}

/**
 * Bit of a head's value codes at which the code of a channel begins.
 *
 * @param abreast words of one lane side by side: 4, 2 or 1, the most of these whose 32 channels each divide the head
 */
export function valueBit(position: u32, channel: u32, headDim: Static<u32>, abreast: Static<u32>): u32 {
  'device';
  const inHalf = u32(position % 32);
  const quad = u32(channel / 4);
  const word = u32(quad / 8);
  const rows = u32(u32(headDim / 32) / abreast);
  const lane = u32(u32(quad % 8) * 4 + u32(u32(inHalf / 2) % 4));
  const row = u32(u32(u32(inHalf % 2) * rows) + u32(word / abreast));
  const at = u32(
    u32(u32(position / 32) * u32(headDim * 2)) + u32(u32(u32(row * 32) + lane) * abreast + u32(word % abreast)),
  );
  return u32(u32(at * 32) + u32(u32(inHalf / 8) * 8) + u32(u32(channel % 4) * 2));
}

/** Place of a position's norm among the 64 of a head. */
export function normPlace(position: u32): u32 {
  'device';
  const inHalf = u32(position % 32);
  return u32(u32(u32(position / 32) * 32) + u32(u32(inHalf % 8) * 4) + u32(inHalf / 8));
}

/** The position of the row whose norm lies at a place: the inverse of `normPlace`. */
export function normPosition(place: u32): u32 {
  'device';
  const inHalf = u32(place % 32);
  return u32(u32(u32(place / 32) * 32) + u32(u32(inHalf % 4) * 8) + u32(inHalf / 4));
}

/**
 * The step of a component as it is stored: 128 times its range over 2^bits (twice the mean magnitude with one bit), times
 * the scale of its column of the basis, so that a reader multiplies once. Saturated; zero without bits.
 */
export function foldedStep(maxAbs: f32, meanAbs: f32, bits: u32, columnScale: f32): f32 {
  'device';
  let step: f32 = 0;
  if (bits === 1) {
    step = f32(2 * meanAbs);
  } else if (bits > 1) {
    step = f32((2 * maxAbs) / f32(u32(1 << bits)));
  }
  return f32(f16(min(f32(128 * columnScale) * step, 65504)));
}
