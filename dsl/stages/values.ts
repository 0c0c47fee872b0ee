import { defineStage, oneOf } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, writes } from './bindings.js';

/** Hadamard-rotated middle values and the largest magnitude of every (head, channel). */
export const valuesStage = defineStage({
  name: 'values',
  summary: 'Rotate the middle values and take the channel maxima.',
  tunables: () => ({ tileTokens: oneOf(32, 16, 64) }),
  constraints: [],
  kernels: (g, { tileTokens }) => [
    {
      entry: 'rotate_values',
      summary:
        'Hadamard transform of every value vector, and the largest magnitude of every channel over a tile of tokens.',
      bindings: [
        sequenceRecord,
        reads('values', 'u32', `f16 [${g.kvHeads} KV heads][prompt tokens][${g.headDim}]`),
        writes('rotated', 'f32', `[middle tokens][${g.width}], after Hadamard`),
        writes('partial_maxima', 'f32', `[tiles][${g.width}]`),
      ],
      threads: Math.ceil(g.headDim / 32) * 32,
      grid: [{ ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, g.kvHeads, 1],
      constants: { TILE_TOKENS: tileTokens },
      functions: { butterfly: { name: 'butterfly' } },
      sharedBytes: { fixed: g.headDim * 4, dynamic: 0 },
    },
    {
      entry: 'scale_values',
      summary: 'The f16 scale of every (head, channel).',
      bindings: [
        sequenceRecord,
        reads('partial_maxima', 'f32', `[tiles][${g.width}]`),
        cacheWrite,
        writes('channel_scales', 'f32', `[${g.width}], rounded to f16, never zero`),
      ],
      threads: 64,
      grid: [Math.ceil(g.width / 2 / 64), 1, 1],
      constants: { TILE_TOKENS: tileTokens },
      functions: { channelScale: { name: 'channelScale' } },
      sharedBytes: { fixed: 0, dynamic: 0 },
    },
  ],
});
