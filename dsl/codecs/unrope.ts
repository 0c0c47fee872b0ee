import type { RotaryCodec } from '../codec.js';
import { type f32, type Static, u32, vec2f } from '../device.js';

/**
 * Takes the rotary embedding off the keys before they are coded, and puts it back when they are read
 * (pairs as the model forms them: rotate-half or interleaved, over all channels or some).
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

/*
 * A head has d/2 pairs: the `rotated` first ones are the model's rotary pairs, the others join channels that are not
 * rotated, whose angle is zero. So a schedule deals with pairs alone, whatever the model's RoPE.
 */

/** The first channel of a pair. */
export function firstOfPair(pair: u32, rotated: Static<u32>, pairs: Static<u32>, interleaved: Static<u32>): u32 {
  'device';
  let channel = pair;
  if (interleaved === 1) {
    if (rotated === pairs) {
      channel = u32(pair * 2);
    } else {
      channel = pair < rotated ? u32(pair * 2) : u32(pair + rotated);
    }
  } else if (rotated !== pairs) {
    channel = pair < rotated ? pair : u32(pair + rotated);
  }
  return channel;
}

/** The second channel of a pair. */
export function secondOfPair(pair: u32, rotated: Static<u32>, pairs: Static<u32>, interleaved: Static<u32>): u32 {
  'device';
  let channel = u32(pair + pairs);
  if (interleaved === 1) {
    if (rotated === pairs) {
      channel = u32(pair * 2 + 1);
    } else {
      channel = pair < rotated ? u32(pair * 2 + 1) : u32(pair + pairs);
    }
  } else if (rotated !== pairs) {
    channel = pair < rotated ? u32(pair + rotated) : u32(pair + pairs);
  }
  return channel;
}
