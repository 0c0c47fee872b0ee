import { defineStage, oneOf } from '../stage.js';
import { keyWeights, reads, sequenceRecord, tokenWeights, writes } from './bindings.js';

/** The second-moment matrix of the un-rotated keys, centred (and weighted), over all KV heads together. */
export const gramStage = defineStage({
  name: 'gram',
  summary: 'Second-moment matrix of the centred middle keys.',
  tunables: () => ({ tile: oneOf(32, 16), tileTokens: oneOf(16, 32) }),
  constraints: [],
  kernels: (g, { tile, tileTokens }) => [
    {
      entry: 'gram_keys',
      summary:
        'One tile of the matrix a block; only tiles on or above the diagonal are computed, both halves are written.',
      bindings: [
        sequenceRecord,
        reads('plain', 'f32', `[middle tokens][${g.width}], before RoPE`),
        reads('mean', 'f32', `[${g.width}]`),
        ...(g.weighted ? [keyWeights(g), tokenWeights] : []),
        writes('gram', 'f32', `[${g.width}][${g.width}], divided by the middle tokens; zero for an empty middle`),
      ],
      threads: 256,
      grid: [Math.ceil(g.width / tile), Math.ceil(g.width / tile), 1],
      constants: { TILE: tile, TILE_TOKENS: tileTokens, PER_THREAD: (tile * tile) / 256 },
      functions: {},
      sharedBytes: { fixed: 2 * tile * tileTokens * 4, dynamic: 0 },
    },
  ],
});
