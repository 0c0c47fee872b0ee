import type { Geometry, LowRankGeometry } from '../dsl/geometry.js';

/** A geometry of which a test is sure that it is of a scheme with low-rank keys. */
export function lowRankOf(geometry: Geometry): LowRankGeometry {
  if (geometry.family !== 'low-rank') throw new Error(`${geometry.scheme.name} has no low-rank keys`);
  return geometry;
}
