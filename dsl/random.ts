import { f32, u32, uadd, umul } from './device.js';

/** A hash of 32 bits with full avalanche (the PCG RXS-M-XS permutation; O'Neill 2014, section 6.3.4). */
export function hashBits(seed: u32): u32 {
  'device';
  const state = uadd(umul(seed, 747796405), 2891336453);
  const word = umul(u32(u32(state >>> u32(u32(state >>> 28) + 4)) ^ state), 277803737);
  return u32(u32(word >>> 22) ^ word);
}

/** A uniform number in [0, 1) from 24 bits of the hash of `seed` and `index`, equal on every target. */
export function uniformRandom(seed: u32, index: u32): f32 {
  'device';
  return f32(u32(hashBits(u32(hashBits(seed) ^ index)) >>> 8)) * 5.9604644775390625e-8;
}
