import type { LatentGeometry } from '../latentGeometry.js';
import { defineStage } from '../stage.js';
import { cacheRead, sequenceRecord, tables, writes } from './bindings.js';
import { latentReadFunctions } from './latentEncode.js';

const tileTokens = 8;

/** Rebuilds every token of a sequence as f16: the latent, then the rotary part after RoPE. */
export const latentDecompressStage = defineStage<Readonly<Record<never, never>>, LatentGeometry>({
  name: 'decompress',
  summary: 'Decode all segments of a sequence to f16.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g) => [
    {
      entry: 'decompress',
      summary: 'One tile of tokens a block, in the order sinks, middle, stream, window; f16 output saturates.',
      bindings: [
        sequenceRecord,
        cacheRead,
        tables,
        writes('keys', 'u32', `f16 [tokens][${g.latentDim} latent, ${g.rotaryDim} rotary after RoPE]`),
      ],
      threads: 128,
      grid: [{ ceilDiv: [{ dimension: 'tokens' }, tileTokens] }, 1, 1],
      constants: { TILE_TOKENS: tileTokens },
      functions: latentReadFunctions(g),
      sharedBytes: { fixed: g.headDim * 4, dynamic: 0 },
      template: 'latent_decompress',
    },
  ],
});
