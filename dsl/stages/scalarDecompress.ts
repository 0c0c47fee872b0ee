import type { ScalarGeometry } from '../geometry.js';
import { defineStage, oneOf, type Tunable } from '../stage.js';
import { streamFunctions } from './append.js';
import { cacheRead, sequenceRecord, tables, writes } from './bindings.js';
import { scalarReadFunctions } from './scalarCodes.js';
import { pairFunctions } from './unrope.js';

/** Rebuilds every token of a sequence as f16, keys after RoPE. */
export const scalarDecompressStage = defineStage<Readonly<Record<'tileTokens', Tunable>>, ScalarGeometry>({
  name: 'decompress',
  summary: 'Decode all segments of a sequence to f16.',
  tunables: () => ({ tileTokens: oneOf(8, 16) }),
  constraints: [],
  kernels: (g, { tileTokens }) => {
    const { streamValue, streamUnpack } = streamFunctions(g);
    return [
      {
        entry: 'decompress',
        summary:
          'One tile of tokens of one KV head a block, in the order sinks, middle, stream, window; f16 output saturates.',
        bindings: [
          sequenceRecord,
          cacheRead,
          tables,
          writes('keys', 'u32', `f16 [${g.kvHeads} KV heads][tokens][${g.headDim}], after RoPE`),
          writes('values', 'u32', `f16 [${g.kvHeads} KV heads][tokens][${g.headDim}]`),
        ],
        threads: Math.ceil(g.headDim / 32) * 32,
        grid: [{ ceilDiv: [{ dimension: 'tokens' }, tileTokens] }, g.kvHeads, 1],
        constants: { TILE_TOKENS: tileTokens },
        functions: {
          ...scalarReadFunctions(g),
          ...(g.keys.unrotated ? { rotatePair: { name: 'rotatePair' }, ...pairFunctions(g) } : {}),
          butterfly: { name: 'butterfly' },
          streamValue: streamValue!,
          streamUnpack: streamUnpack!,
        },
        sharedBytes: { fixed: g.headDim * 4, dynamic: 0 },
        template: 'scalar_decompress',
      },
    ];
  },
});
