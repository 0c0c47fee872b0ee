import type { VectorQuantizer } from '../codec.js';
import {
  clamp,
  type FixedArray,
  f32,
  type Lookup,
  min,
  type Static,
  u32,
  vec4f,
  vec4u,
  vectorAdd,
  vectorMultiply,
  vectorSubtract,
} from '../device.js';

/** Entries an index type can name. */
export type EntriesFor<Index extends 'u8'> = Index extends 'u8' ? 16 | 32 | 64 | 128 | 256 : never;

export interface VqParams<Index extends 'u8' = 'u8'> {
  /** Channels of a vector; 4 is Shard's. */
  readonly channels: 2 | 4 | 8;
  /** Codebook entries: at most what the index type can name. */
  readonly entries: EntriesFor<Index>;
  readonly index?: Index;
  /**
   * Multiplies every (head, channel) by sum(y^2) / sum(y * coded y): a code of least error shrinks what it codes, and
   * attention averages that instead of cancelling it. False as published; costs no byte and no time to read.
   */
  readonly unbiased?: boolean;
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
  return { kind: 'vector-quantizer', name: 'vq', index: 'u8', unbiased: false, iterations: 30, seed: 1, ...params };
}

/** The factor that makes a channel's code unbiased: sum(y^2) over sum(y * coded y); 1 where that says nothing. */
export function unbiasedGain(squares: f32, products: f32): f32 {
  'device';
  let gain: f32 = 1;
  if (products > 0) {
    gain = f32(squares / products);
  }
  return clamp(gain, 0.25, 4);
}

/** Squared distances between four points (channel k of all four in `points[k]`) and one codebook entry. */
export function centroidDistances(
  points: FixedArray<vec4f, typeof channels>,
  entry: u32,
  centroids: Lookup<f32>,
  channels: Static<u32>,
): vec4f {
  'device';
  let distances = vec4f(0, 0, 0, 0);
  for (let k = 0; k < channels; k++) {
    const centroid = centroids(u32(entry * channels + k));
    const differences = vectorSubtract(points[k]!, vec4f(centroid, centroid, centroid, centroid));
    distances = vectorAdd(distances, vectorMultiply(differences, differences));
  }
  return distances;
}

/**
 * Indices of the nearest codebook entries of four points; the lowest on ties. Four at a time, so that an entry is
 * loaded once for all of them.
 */
export function nearestCentroids(
  points: FixedArray<vec4f, typeof channels>,
  centroids: Lookup<f32>,
  channels: Static<u32>,
  entries: Static<u32>,
): vec4u {
  'device';
  let best = vec4u(0, 0, 0, 0);
  let least = centroidDistances(points, 0, centroids, channels);
  for (let entry = 1; entry < entries; entry++) {
    const distances = centroidDistances(points, entry, centroids, channels);
    best = vec4u(
      distances.x < least.x ? entry : best.x,
      distances.y < least.y ? entry : best.y,
      distances.z < least.z ? entry : best.z,
      distances.w < least.w ? entry : best.w,
    );
    least = vec4f(
      min(distances.x, least.x),
      min(distances.y, least.y),
      min(distances.z, least.z),
      min(distances.w, least.w),
    );
  }
  return best;
}
