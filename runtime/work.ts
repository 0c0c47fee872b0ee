import type { Geometry } from '../dsl/geometry.js';
import { workItemWords } from '../dsl/stages/attendPlan.js';

export interface WorkPlan {
  readonly sequences: number;
  /** Query tokens of each sequence: its last ones, so that the first of them does not see the others. */
  readonly queries: number;
  /** Blocks that share the tokens of one query and KV head. */
  readonly splits: number;
}

/** Rows of the query, and KV heads of them: each is merged by itself, so a launch takes any whole number of them. */
export function planRows(g: Pick<Geometry, 'kvHeads'>, { sequences, queries }: WorkPlan): number {
  return sequences * queries * g.kvHeads;
}

/**
 * The work list of one attention launch: every (sequence, query, KV head) in `splits` neighbouring items. It holds no
 * lengths, so it stays valid while sequences grow; each block finds its tokens from the record in device memory.
 *
 * @param range of (sequence, query, KV head), counted in this order; all of them if left out
 * @example
 * planWork(geometry, { sequences: 1, queries: 1, splits: 2 }).length; // kvHeads * 2 * 6
 */
export function planWork(
  g: Pick<Geometry, 'kvHeads'>,
  plan: WorkPlan,
  range: { readonly first: number; readonly end: number } = { first: 0, end: planRows(g, plan) },
): Uint32Array {
  const { queries, splits } = plan;
  const work = new Uint32Array((range.end - range.first) * splits * workItemWords);
  let word = 0;
  for (let index = range.first; index < range.end; index++) {
    const [row, kvHead] = [Math.floor(index / g.kvHeads), index % g.kvHeads];
    const [sequence, after] = [Math.floor(row / queries), queries - 1 - (row % queries)];
    for (let split = 0; split < splits; split++) {
      work.set([sequence, kvHead, row, after, split, splits], word);
      word += workItemWords;
    }
  }
  return work;
}
