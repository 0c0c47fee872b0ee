import type { CacheGeometry, LowRankGeometry } from '../geometry.js';
import { defineStage, type FunctionUse, type KernelPlan, oneOf } from '../stage.js';
import { streamFunctions } from './append.js';
import { cacheRead, sequenceRecord, tables, writes } from './bindings.js';
import { pairFunctions } from './unrope.js';

/** What a kernel needs to rebuild middle keys: unpacking by width, basis bytes, angles. */
export function middleKeyFunctions(g: LowRankGeometry): Record<string, FunctionUse> {
  const functions: Record<string, FunctionUse> = {
    rotatePair: { name: 'rotatePair' },
    ...pairFunctions(g),
    signedByte: { name: 'signedByte' },
  };
  if (g.allocatedGroups > 0) {
    functions.unpackBits = { name: 'unpackBits', lookups: { words: 'key_word_at' } };
    functions.midRiseValue = { name: 'midRiseValue' };
  }
  for (const bits of new Set(g.keyGroups.map((group) => group.bits).filter((bits) => bits > 0))) {
    functions[`unpack${bits}`] = { name: 'unpackField', statics: { bits }, lookups: { words: 'key_word_at' } };
    functions[`value${bits}`] = { name: 'coefficientValue', statics: { bits } };
  }
  return functions;
}

/** The kernel that decodes a sequence, with what a family of schemes needs for its middle. */
export function decompressPlan(
  g: CacheGeometry,
  tileTokens: number,
  { constants, functions, ...own }: Pick<KernelPlan, 'constants' | 'functions' | 'sharedBytes' | 'template'>,
): KernelPlan {
  const { streamValue, streamUnpack } = streamFunctions(g);
  return {
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
    constants: { TILE_TOKENS: tileTokens, ...constants },
    functions: {
      ...functions,
      butterfly: { name: 'butterfly' },
      streamValue: streamValue!,
      streamUnpack: streamUnpack!,
    },
    ...own,
  };
}

/** Rebuilds every token of a sequence as f16, keys after RoPE. */
export const decompressStage = defineStage({
  name: 'decompress',
  summary: 'Decode all segments of a sequence to f16.',
  tunables: () => ({ tileTokens: oneOf(8, 16) }),
  constraints: [],
  kernels: (g, { tileTokens }) => [
    decompressPlan(g, tileTokens, {
      constants: { GROUP_COMPONENTS: g.groupComponents },
      functions: middleKeyFunctions(g),
      sharedBytes: { fixed: ((tileTokens + 1) * g.headDim + tileTokens * g.groupComponents) * 4, dynamic: 0 },
    }),
  ],
});
