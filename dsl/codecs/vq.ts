import type { VectorQuantizer } from '../codec.js';
import { type FixedArray, type f32, type Lookup, type Static, u32 } from '../device.js';

/** Entries an index type can name. */
export type EntriesFor<Index extends 'u8'> = Index extends 'u8' ? 16 | 32 | 64 | 128 | 256 : never;

export interface VqParams<Index extends 'u8' = 'u8'> {
  /** Channels of a vector; 4 is Shard's. */
  readonly channels: 2 | 4 | 8;
  /** Codebook entries: at most what the index type can name. */
  readonly entries: EntriesFor<Index>;
  readonly index?: Index;
  /** k-means rounds (Shard: 30). */
  readonly iterations?: number;
  readonly seed?: number;
}

/**
 * Vector quantisation with one codebook a layer, shared by all heads and channel groups, fitted by seeded k-means.
 *
 * @example
 * vq({ channels: 4, entries: 256 })
 */
export function vq(params: VqParams): VectorQuantizer {
  return { kind: 'vector-quantizer', name: 'vq', index: 'u8', iterations: 30, seed: 1, ...params };
}

/** Squared distance between a point and one codebook entry. */
export function centroidDistance(
  point: FixedArray<f32, typeof channels>,
  entry: u32,
  centroids: Lookup<f32>,
  channels: Static<u32>,
): f32 {
  'device';
  let distance: f32 = 0;
  for (let k = 0; k < channels; k++) {
    const difference = point[k]! - centroids(u32(entry * channels + k));
    distance += difference * difference;
  }
  return distance;
}

/** Index of the nearest codebook entry; the lowest on ties. */
export function nearestCentroid(
  point: FixedArray<f32, typeof channels>,
  centroids: Lookup<f32>,
  channels: Static<u32>,
  entries: Static<u32>,
): u32 {
  'device';
  let best: u32 = 0;
  let bestDistance = centroidDistance(point, 0, centroids, channels);
  for (let entry = 1; entry < entries; entry++) {
    const distance = centroidDistance(point, entry, centroids, channels);
    if (distance < bestDistance) {
      best = entry;
      bestDistance = distance;
    }
  }
  return best;
}
