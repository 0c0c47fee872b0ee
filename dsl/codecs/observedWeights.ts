import { f32, max, sqrt } from '../device.js';

/*
 * What the observed queries, the last ones of the prompt, make of its tokens. All three weights are 1 where the sums say
 * nothing: a window that sees none of the middle, or so little that float32 cannot tell.
 */

/**
 * The weight of a token in the fit of the key basis, from the root of its sensitivity and the mean of these roots. A
 * quarter at least: what comes after the prompt will ask for other tokens too.
 */
export function tokenWeight(root: f32, mean: f32): f32 {
  'device';
  let weight: f32 = 1;
  if (mean > 1e-15) {
    weight = max(root / mean, 0.25);
  }
  return weight;
}

/** The weight of a (token, KV head) in the fit of the value codebook: half alike for all, half by attention. */
export function valueWeight(mass: f32, mean: f32): f32 {
  'device';
  let weight: f32 = 1;
  if (mean > 1e-30) {
    weight = f32(0.5 + (0.5 * mass) / mean);
  }
  return weight;
}

/** What the weights of a KV head's channels are multiplied by: the root of its sensitivity over the largest of the layer. */
export function headFactor(sensitivity: f32, largest: f32): f32 {
  'device';
  let factor: f32 = 1;
  if (largest > 1e-30) {
    factor = sqrt(sensitivity / largest);
  }
  return factor;
}
