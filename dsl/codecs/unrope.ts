import type { RotaryCodec } from '../codec.js';
import { type f32, vec2f } from '../device.js';

/**
 * Takes the rotary embedding off the keys before they are coded, and puts it back when they are read
 * (rotate-half pairs: channels j and j + d/2).
 *
 * @example
 * defineScheme({ ...shard, keys: [unrope(), pca({ rank: 64, bits: 4, group: 64 })] })
 */
export function unrope(): RotaryCodec {
  return { kind: 'rotary', name: 'unrope' };
}

/** Turns the pair (a, b) by the angle whose cosine and sine are given. */
export function rotatePair(a: f32, b: f32, angle: vec2f): vec2f {
  'device';
  return vec2f(a * angle.x - b * angle.y, b * angle.x + a * angle.y);
}

/** Undoes `rotatePair`. */
export function unrotatePair(a: f32, b: f32, angle: vec2f): vec2f {
  'device';
  return vec2f(a * angle.x + b * angle.y, b * angle.x - a * angle.y);
}

/**
 * Adds two angles held as (cosine, sine). Positions are split into a coarse and a fine table, so that the tables
 * stay small enough for the caches; the product of two float32 values costs one rounding more than a full table.
 */
export function addAngles(coarse: vec2f, fine: vec2f): vec2f {
  'device';
  return vec2f(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
}
