import type { Geometry } from '../../dsl/geometry.js';
import { attend, type Cache, headRows, type Matrix } from '../reference/index.js';

export interface VisibleQuery {
  /** [d], after RoPE. */
  readonly query: Float64Array;
  readonly kvHead: number;
  /** Tokens of the sequence that come after the query's own. */
  readonly after: number;
  /** Tokens that the query sees, its own included; 0 for all. */
  readonly slidingWindow: number;
}

/** Attention of one query head as the model defines it, in float64: its scale and cap, causal, within its window. */
export function attendVisible(g: Pick<Geometry, 'model'>, decoded: Cache, input: VisibleQuery): Float64Array {
  const { query, kvHead, after, slidingWindow } = input;
  const end = Math.max(0, decoded.keys.tokens - after);
  const begin = slidingWindow === 0 ? 0 : Math.max(0, end - slidingWindow);
  const rows = (tensor: Cache['keys']): Matrix => {
    const all = headRows(tensor, kvHead, end);
    return { rows: end - begin, columns: all.columns, data: all.data.subarray(begin * all.columns) };
  };
  const { scoreScale, scoreCap } = g.model;
  const { output } = attend({
    query,
    keys: rows(decoded.keys),
    values: rows(decoded.values),
    scale: scoreScale,
    cap: scoreCap,
  });
  return output;
}
