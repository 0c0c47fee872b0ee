import { defineStage, oneOf } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, writes } from './bindings.js';
import { pairFunctions } from './unrope.js';

/** How much the prompt's queries ask of every pair of channels: the weights that keys are coded with. */
export const weighStage = defineStage({
  name: 'weigh',
  summary: 'Weigh every pair of key channels by the queries of the prompt.',
  tunables: () => ({ tileTokens: oneOf(32, 16, 64) }),
  constraints: [],
  kernels: (g, { tileTokens }) => {
    if (!g.weighted) return [];
    const threads = 256;
    const { firstOfPair, secondOfPair } = pairFunctions(g);
    const channels = { firstOfPair: firstOfPair!, secondOfPair: secondOfPair! };
    return [
      {
        entry: 'weigh_queries',
        summary: 'Sums of squares of every pair, over a tile of query tokens and all query heads of the KV head.',
        bindings: [
          sequenceRecord,
          reads('queries', 'u32', `f16 [${g.heads} heads][query tokens][${g.headDim}], before or after RoPE`),
          writes('partial_squares', 'f32', `[tiles][${g.kvHeads} KV heads][${g.pairs} pairs]`),
        ],
        threads: Math.ceil(g.pairs / 32) * 32,
        grid: [{ ceilDiv: [{ dimension: 'queryTokens' }, tileTokens] }, g.kvHeads, 1],
        constants: { TILE_TOKENS: tileTokens },
        functions: channels,
        sharedBytes: { fixed: 0, dynamic: 0 },
      },
      {
        entry: 'weigh_finish',
        summary:
          'Root mean squares times the factor of the KV head, over the largest of the layer, floored; both channels of a pair get the same f16.',
        bindings: [
          sequenceRecord,
          reads('partial_squares', 'f32', `[tiles][${g.kvHeads} KV heads][${g.pairs} pairs]`),
          reads('head_factors', 'f32', `[${g.kvHeads} KV heads]`),
          cacheWrite,
          writes('weights', 'f32', `[${g.width}], rounded to f16`),
        ],
        threads,
        grid: [1, 1, 1],
        constants: { TILE_TOKENS: tileTokens },
        functions: { ...channels, pairWeight: { name: 'pairWeight' } },
        sharedBytes: { fixed: threads * 4, dynamic: 0 },
      },
    ];
  },
});
