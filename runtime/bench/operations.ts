import type { Geometry } from '../../dsl/geometry.js';

/** Multiplications and additions of scores and of the weighted sum of values, of one query token. */
export function attendOperations({ heads, headDim }: Pick<Geometry, 'heads' | 'headDim'>, tokens: number): number {
  return tokens * heads * headDim * 4;
}

/** Of rebuilding every key of the middle from its coefficients, once for all the query heads that share it. */
export function rebuildOperations(g: Geometry, middleTokens: number): number {
  return g.family === 'low-rank' ? middleTokens * g.rank * g.width * 2 : 0;
}
