import type { Geometry } from '../dsl/geometry.js';
import { ropeTables } from '../dsl/rope.js';

/**
 * The constant tables every kernel shares: stream levels, fine angles, coarse angles (see `codegen/constants.ts`).
 *
 * @param positions tokens the angles must cover
 * @param frequencies of the layer's RoPE, for the longest prompt
 */
export function buildTables(g: Geometry, positions: number, frequencies: readonly number[]): Float32Array {
  const levels = g.scheme.stream.levels(g.headDim);
  const { fine, coarse } = ropeTables(frequencies, g.pairs, positions, g.angleTile);
  const tables = new Float32Array(levels.length + fine.length + coarse.length);
  tables.set(levels, 0);
  tables.set(fine, levels.length);
  tables.set(coarse, levels.length + fine.length);
  return tables;
}
