import type { Geometry } from '../dsl/geometry.js';
import { ropeTables } from '../dsl/rope.js';
import { fastPairsOf, splitRope } from '../dsl/ropeSplit.js';

/**
 * The constant tables every kernel shares: stream levels, fine angles, the split of RoPE, coarse angles (see
 * `tablesOf` in `codegen/plan/layout.ts`).
 *
 * @param positions tokens the angles must cover
 * @param frequencies of the layer's RoPE, for the longest prompt
 */
export function buildTables(g: Geometry, positions: number, frequencies: readonly number[]): Float32Array {
  const levels = g.scheme.stream.levels(g.headDim);
  const { fine, coarse } = ropeTables(frequencies, g.pairs, positions, g.angleTile);
  const { functions, coefficients } = splitRope(frequencies, g.pairs, fastPairsOf(g.model));
  const parts = [levels, fine, functions, coefficients, coarse];
  const tables = new Float32Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    tables.set(part, at);
    at += part.length;
  }
  return tables;
}
