import { defineStage, oneOf } from '../stage.js';
import { cacheRead, cacheWrite, reads, sequenceRecord, writes } from './bindings.js';

/** Takes back what the value code shrinks: a gain a (head, channel), folded into the channel's scale. */
export const unbiasStage = defineStage({
  name: 'unbias',
  summary: 'Make the code of the values unbiased.',
  tunables: () => ({ tileTokens: oneOf(32, 16, 64) }),
  constraints: [],
  kernels: (g, { tileTokens }) => {
    if (!g.scheme.values[2].unbiased) return [];
    const partial = `[tiles][2: squares, products with the coded value][${g.width}]`;
    return [
      {
        entry: 'value_products',
        summary: 'Sums of y * y and of y * coded y of every channel over a tile of tokens.',
        bindings: [
          sequenceRecord,
          reads('rotated', 'f32', `[middle tokens][${g.width}], after Hadamard`),
          reads('channel_scales', 'f32', `[${g.width}], as the codes were chosen with`),
          cacheRead,
          writes('partial_products', 'f32', partial),
        ],
        threads: Math.ceil(g.headDim / 32) * 32,
        grid: [{ ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, g.kvHeads, 1],
        constants: { TILE_TOKENS: tileTokens },
        functions: {},
        sharedBytes: { fixed: g.entries * g.channels * 4, dynamic: 0 },
      },
      {
        entry: 'unbias_values',
        summary: 'Multiplies the scale of every channel by its gain.',
        bindings: [
          sequenceRecord,
          reads('partial_products', 'f32', partial),
          reads('channel_scales', 'f32', `[${g.width}], as the codes were chosen with`),
          cacheWrite,
        ],
        threads: 64,
        grid: [Math.ceil(g.width / 2 / 64), 1, 1],
        constants: { TILE_TOKENS: tileTokens },
        functions: { unbiasedGain: { name: 'unbiasedGain' }, channelScale: { name: 'channelScale' } },
        sharedBytes: { fixed: 0, dynamic: 0 },
      },
    ];
  },
});
