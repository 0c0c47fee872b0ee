import type { LowRankGeometry } from '../../dsl/geometry.js';
import { type Cache, type ShardParts, unrotatedRows } from '../reference/index.js';
import { checkKeys } from './checkKeys.js';
import { checkObserved } from './checkObserved.js';
import { checkValues } from './checkValues.js';
import type { Judge } from './judge.js';
import type { PromptQueries } from './promptQueries.js';
import { asFloats } from './run.js';
import type { promptTaps, Tap } from './tap.js';

/** A compressed prompt, and what its kernels had on the way. */
export interface ShardEvidence {
  readonly parts: ShardParts;
  readonly tap: Tap;
  /** Where they weigh the prompt. */
  readonly queries: PromptQueries | undefined;
  /** Of the layer. */
  readonly slidingWindow: number | undefined;
}

/** Holds every part of a middle with low-rank keys to float64, each to what the kernels had before it. */
export function checkShard(g: LowRankGeometry, evidence: ShardEvidence, prompt: Cache, judge: Judge): void {
  const { parts, tap, queries, slidingWindow } = evidence;
  const { tokens, firstPosition } = parts.middle;
  checkFinite(parts, judge);
  const plain = unrotatedRows(prompt.keys, firstPosition, tokens, parts.rope);
  const tapped = (entry: keyof typeof promptTaps, count: number) => asFloats(tap.bytesOf(entry)!).subarray(0, count);
  const columns = tapped('basis_store', g.width * g.rank);
  const eigenvalues = tapped('basis_jacobi', g.rank);
  const observed = queries && {
    queries: queries.exact,
    tokenWeights: tapped('gram_keys', tokens),
    headFactors: tapped('weigh_finish', g.kvHeads),
  };
  if (observed) {
    const { scoreScale: scale, scoreCap: cap } = g.model;
    const rule = { scale, cap, slidingWindow };
    checkObserved(g, { ...prompt, firstToken: firstPosition, middle: tokens, rule }, observed, judge);
  }
  checkKeys(g, { middle: parts.middle, plain, observed, columns, eigenvalues }, judge);
  checkValues(g, parts.middle, prompt.values, judge);
}

function checkFinite({ middle }: ShardParts, judge: Judge): void {
  for (const name of ['coefficientScales', 'basisScales', 'mean', 'weights', 'codebook', 'channelMax'] as const) {
    const at = middle[name].findIndex((x) => !Number.isFinite(x));
    judge.check(`prefill: ${name}[${at}] is not finite`, at < 0 ? 0 : Number.POSITIVE_INFINITY, 0);
  }
}
