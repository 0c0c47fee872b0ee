import type { Geometry } from '../../dsl/geometry.js';
import { type Cache, emptyTensor, type HeadTensor, vectorAt } from '../reference/shapes.js';
import { attendVisible } from '../verify/visible.js';

export interface AskedOf {
  /** [heads][queries][head dim], after RoPE. */
  readonly queries: HeadTensor;
  /** Tokens that each query sees, counted from the first. */
  readonly visible: readonly number[];
  /** The last of these that it sees at all; 0 for all. */
  readonly slidingWindow: number;
}

/**
 * Attention outputs of recorded queries over a cache, in float64.
 *
 * @returns [heads][queries][head dim]
 */
export function outputsOver(
  g: Pick<Geometry, 'groupSize' | 'model'>,
  cache: Cache,
  { queries, visible, slidingWindow }: AskedOf,
): Float64Array {
  const outputs = emptyTensor(queries.heads, queries.tokens, queries.channels);
  for (let head = 0; head < queries.heads; head++) {
    const kvHead = Math.floor(head / g.groupSize);
    for (const [index, seen] of visible.entries()) {
      const asked = { query: vectorAt(queries, head, index), kvHead, after: cache.keys.tokens - seen, slidingWindow };
      vectorAt(outputs, head, index).set(attendVisible(g, cache, asked));
    }
  }
  return outputs.data;
}
