import type { Geometry } from '../../dsl/geometry.js';

/** A layer of one of the model's kinds, chosen by a case's seed: kinds differ in RoPE and sliding window. */
export function drawnLayer({ model }: Geometry, seed: number): number {
  return model.layerKinds.indexOf(seed % model.kinds.length);
}
