import type { CacheGeometry, LowRankGeometry } from '../geometry.js';
import { defineStage, type FunctionUse, oneOf, type Tunable } from '../stage.js';
import type { TiltGeometry } from '../tiltGeometry.js';
import { cacheWrite, reads, sequenceRecord, tables, tokenWeights, writes } from './bindings.js';

/** Angles by position, and the channels of a pair as the model forms it. */
export function pairFunctions(g: CacheGeometry): Record<string, FunctionUse> {
  const interleaved = g.model.rope.pairing === 'interleaved' ? 1 : 0;
  const statics = { rotated: g.rotaryPairs, pairs: g.pairs, interleaved };
  return {
    addAngles: { name: 'addAngles' },
    firstOfPair: { name: 'firstOfPair', statics },
    secondOfPair: { name: 'secondOfPair', statics },
  };
}

/** Takes RoPE off the middle of the prompt and fits the mean key. */
export const unropeStage = defineStage<Readonly<Record<'tileTokens', Tunable>>, LowRankGeometry | TiltGeometry>({
  name: 'unrope',
  summary: 'Un-rotate the middle keys and take their mean.',
  tunables: () => ({ tileTokens: oneOf(32, 16, 64) }),
  constraints: [],
  kernels: (g, { tileTokens }) => [
    {
      entry: 'unrope_keys',
      summary: `Un-rotates the keys of the middle and sums every channel, ${g.family === 'low-rank' && g.weighted ? 'times the weight of its token, ' : ''}over a tile of tokens.`,
      bindings: [
        sequenceRecord,
        reads('keys', 'u32', `f16 [${g.kvHeads} KV heads][prompt tokens][${g.headDim}], after RoPE`),
        tables,
        ...(g.family === 'low-rank' && g.weighted ? [tokenWeights] : []),
        writes('plain', 'f32', `[middle tokens][${g.width}], before RoPE`),
        writes('partial_sums', 'f32', `[tiles][${g.width}]`),
      ],
      threads: Math.ceil(g.pairs / 32) * 32,
      grid: [{ ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, g.kvHeads, 1],
      constants: { TILE_TOKENS: tileTokens },
      functions: { unrotatePair: { name: 'unrotatePair' }, ...pairFunctions(g) },
      sharedBytes: { fixed: 0, dynamic: 0 },
    },
    {
      entry: 'mean_keys',
      summary: 'Finishes the mean; the f16 value that is stored is the one every later stage subtracts.',
      bindings: [
        sequenceRecord,
        reads('partial_sums', 'f32', `[tiles][${g.width}]`),
        cacheWrite,
        writes('mean', 'f32', `[${g.width}], rounded to f16`),
      ],
      threads: 64,
      grid: [Math.ceil(g.width / 2 / 64), 1, 1],
      constants: { TILE_TOKENS: tileTokens },
      functions: {},
      sharedBytes: { fixed: 0, dynamic: 0 },
    },
  ],
});
