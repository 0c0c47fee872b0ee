import type { Matrix } from './shapes.js';

/** Which tokens the rows of scores see, and whose rows they are. */
export interface MassRule {
  readonly kvHeads: number;
  /** Query tokens of each head, in order. */
  readonly queries: number;
  /** Tokens that come after the last query token. */
  readonly after: number;
  /** Tokens that a query sees, itself included; 0 for all. */
  readonly slidingWindow: number;
}

/**
 * Softmax of every row over the tokens that its query sees, summed over the query tokens and heads of a KV head.
 *
 * @param scores in nats, [heads * queries][tokens]
 * @returns [kvHeads][tokens]
 * @example
 * const scores = { rows: 2, columns: 2, data: Float64Array.of(0, 9, 0, 0) };
 * tokenMasses(scores, { kvHeads: 1, queries: 2, after: 0, slidingWindow: 0 }); // [1.5, 0.5]
 */
export function tokenMasses(scores: Matrix, { kvHeads, queries, after, slidingWindow }: MassRule): Float64Array {
  const { rows, columns: tokens } = scores;
  const masses = new Float64Array(kvHeads * tokens);
  for (let row = 0; row < rows; row++) {
    const kvHead = Math.floor((row * kvHeads) / rows);
    const last = tokens - 1 - after - (queries - 1 - (row % queries));
    const seen: number[] = [];
    for (let token = 0; token <= last; token++) {
      if (slidingWindow === 0 || token > last - slidingWindow) seen.push(token);
    }
    const score = (token: number) => scores.data[row * tokens + token]!;
    const largest = seen.reduce((most, token) => Math.max(most, score(token)), Number.NEGATIVE_INFINITY);
    const total = seen.reduce((sum, token) => sum + Math.exp(score(token) - largest), 0);
    for (const token of seen) masses[kvHead * tokens + token]! += Math.exp(score(token) - largest) / total;
  }
  return masses;
}
