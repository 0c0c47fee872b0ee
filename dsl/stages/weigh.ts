import type { CacheGeometry } from '../geometry.js';
import { defineStage, type KernelPlan } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, writes } from './bindings.js';
import { observedQueries } from './observe.js';
import { pairFunctions } from './unrope.js';

/** The kernel that sums up what the last queries of the prompt, at most so many, ask of every pair. */
export function weighQueries(g: CacheGeometry, observed: number): KernelPlan {
  const { firstOfPair, secondOfPair } = pairFunctions(g);
  return {
    entry: 'weigh_queries',
    summary: 'Sums of squares of every pair, over the observed queries of all query heads of the KV head.',
    bindings: [
      sequenceRecord,
      reads('queries', 'u32', `f16 [${g.heads} heads][query tokens][${g.headDim}], the last of the prompt, after RoPE`),
      writes('squares', 'f32', `[${g.kvHeads} KV heads][${g.pairs} pairs]`),
    ],
    threads: Math.ceil(g.pairs / 32) * 32,
    grid: [g.kvHeads, 1, 1],
    constants: { OBSERVED_QUERIES: observed },
    functions: { firstOfPair: firstOfPair!, secondOfPair: secondOfPair! },
    sharedBytes: { fixed: 0, dynamic: 0 },
  };
}

/** How much the prompt's last queries, those that are observed, ask of every pair of channels: the weights of keys. */
export const weighStage = defineStage({
  name: 'weigh',
  summary: 'Weigh every pair of key channels by the last queries of the prompt.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g) => {
    if (!g.weighted) return [];
    const threads = 256;
    const { firstOfPair, secondOfPair } = pairFunctions(g);
    const window = { OBSERVED_QUERIES: observedQueries };
    const squares = `[${g.kvHeads} KV heads][${g.pairs} pairs]`;
    const channels = { firstOfPair: firstOfPair!, secondOfPair: secondOfPair! };
    return [
      weighQueries(g, observedQueries),
      {
        entry: 'weigh_finish',
        summary:
          'Root mean squares times the factor of the KV head, over the largest of the layer, floored; both channels of a pair get the same f16.',
        bindings: [
          sequenceRecord,
          reads('squares', 'f32', squares),
          reads('head_factors', 'f32', `[${g.kvHeads} KV heads]`),
          cacheWrite,
          writes('weights', 'f32', `[${g.width}], rounded to f16`),
        ],
        threads,
        grid: [1, 1, 1],
        constants: window,
        functions: { ...channels, pairWeight: { name: 'pairWeight' } },
        sharedBytes: { fixed: threads * 4, dynamic: 0 },
      },
    ];
  },
});
