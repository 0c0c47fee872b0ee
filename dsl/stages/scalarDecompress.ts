import type { ScalarGeometry } from '../geometry.js';
import { defineStage, oneOf, type Tunable } from '../stage.js';
import { decompressPlan } from './decompress.js';
import { pairedKeyFunctions, scalarReadFunctions } from './scalarCodes.js';

/** Rebuilds every token of a sequence as f16, keys after RoPE. */
export const scalarDecompressStage = defineStage<Readonly<Record<'tileTokens', Tunable>>, ScalarGeometry>({
  name: 'decompress',
  summary: 'Decode all segments of a sequence to f16.',
  tunables: () => ({ tileTokens: oneOf(8, 16) }),
  constraints: [],
  kernels: (g, { tileTokens }) => [
    decompressPlan(g, tileTokens, {
      constants: {},
      functions: {
        ...scalarReadFunctions(g),
        ...pairedKeyFunctions(g),
      },
      sharedBytes: { fixed: g.headDim * 4, dynamic: 0 },
      template: 'scalar_decompress',
    }),
  ],
});
