import type { HeadGeometry } from '../headGeometry.js';
import { type Chosen, type Constraint, defineStage, type KernelPlan, oneOf, type Tunable } from '../stage.js';
import { scoreConstants, workItemWords } from './attendPlan.js';
import { reads, writes } from './bindings.js';

/** CUDA: every warp has a ring of tiles of its own in shared memory. */
type RingSpace = Readonly<Record<'warps' | 'stages' | 'tileTokens', Tunable>>;
/** WGSL: the threads of a block share a tile of keys. */
type SharedSpace = Readonly<Record<'tileTokens', Tunable>>;
type Space = RingSpace | SharedSpace;

/** Words of a sequence's record: tokens that it holds, tokens that it has room for, the sliding window or 0. */
export const fp16RecordWords = 3;

/** Where the words of a record are, by the names that templates use. */
export const fp16RecordPlaces = { AT_TOKENS: 0, AT_ROOM: 1, AT_SLIDING_WINDOW: 2 } as const;

/** Numbers of one partial result: a row a query head, with the outputs, then maximum and weight sum, at 16 bytes. */
export function fp16PartialWords(g: HeadGeometry): number {
  return g.groupSize * (g.headDim + 4);
}

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/**
 * Shared memory of the CUDA schedule: the rings, and in their place at the end the results of the warps, then what
 * threads that share a sum leave for one another, and a flag. The template asserts these bytes.
 */
function ringSharedBytes(g: HeadGeometry, { warps, stages, tileTokens }: Chosen<RingSpace>): number {
  const rings = warps * stages * 2 * tileTokens * (g.headDim * 2 + 16);
  const merge = warps * fp16PartialWords(g) * 4 + warps * 32 * 32 + 16;
  return Math.max(rings, merge);
}

const hasSchedule: Constraint<Space, HeadGeometry> = (_g, _tunables, target) =>
  target.language === 'cuda' && !target.tensorCores ? 'without tensor cores there is no schedule for CUDA' : undefined;

const fitsMatrixRows: Constraint<Space, HeadGeometry> = (g, _tunables, target) =>
  target.language === 'cuda' && g.groupSize > 16
    ? `needs ${g.groupSize} query heads a KV head in one matrix tile, which has 16 rows`
    : undefined;

/**
 * Attention of query tokens over uncompressed keys (after RoPE) and values: what a compressed cache is measured against.
 * One launch; WGSL merges in a second.
 */
export const attendFp16Stage = defineStage<Space, HeadGeometry>({
  name: 'attendFp16',
  summary: 'Attention over f16 keys and values, split along tokens, merged by log-sum-exp.',
  tunables: ({ language }) =>
    language === 'cuda'
      ? { warps: oneOf(8, 4, 2, 1), stages: oneOf(3, 2, 4, 5), tileTokens: oneOf(16, 32) }
      : { tileTokens: oneOf(32, 16, 8, 4) },
  constraints: [hasSchedule, fitsMatrixRows],
  kernels: (g, tunables, target) => {
    const partials = `[work items][${g.groupSize} query heads][${g.headDim} output, maximum, weight sum, 2 unused]`;
    const output = writes('output', 'f32', `[query rows][${g.heads} heads][${g.headDim}]`);
    const work = reads(
      'work',
      'u32',
      '[work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours',
    );
    const cached = `f16 [sequences][${g.kvHeads} KV heads][tokens that there is room for][${g.headDim}]`;
    const constants = { WORK_ITEM_WORDS: workItemWords, PARTIAL_WORDS: fp16PartialWords(g) };
    const attend: Omit<KernelPlan, 'threads' | 'constants' | 'sharedBytes'> = {
      entry: 'attend_fp16',
      summary:
        'One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.',
      bindings: [
        reads('sequences', 'u32', '[sequences][tokens, room, sliding window or 0]'),
        work,
        reads('keys', 'u32', `${cached}, after RoPE`),
        reads('values', 'u32', cached),
        reads('query', 'u32', `f16 [query rows][${g.heads} heads][${g.headDim}], after RoPE`),
        writes('partials', 'f32', partials),
        ...(target.language === 'cuda'
          ? [output, writes('counters', 'atomic_u32', `[query rows][${g.kvHeads} KV heads], zero before and after`)]
          : []),
      ],
      grid: [{ dimension: 'workItems' }, 1, 1],
      functions: {},
    };
    const shared = {
      ...constants,
      RECORD_WORDS: fp16RecordWords,
      ...fp16RecordPlaces,
      CHUNK_UNIT: 16,
      ...scoreConstants(g),
    };
    if ('warps' in tunables) {
      const { warps, stages, tileTokens } = tunables;
      const dynamic = ringSharedBytes(g, tunables);
      const own = { WARPS: warps, STAGES: stages, TILE_TOKENS: tileTokens, SHARED_BYTES: dynamic };
      return [{ ...attend, threads: warps * 32, constants: { ...shared, ...own }, sharedBytes: { fixed: 0, dynamic } }];
    }
    const { tileTokens } = tunables;
    const words = g.headDim / 2;
    // An odd number of words from one token to the next spreads tokens over the banks.
    const tokenStride = words | 1;
    const fixed = tileTokens * tokenStride * 4 + g.groupSize * words * 4 + g.groupSize * tileTokens * 4;
    return [
      {
        ...attend,
        threads: roundUp(words, 32),
        constants: { ...shared, TILE_TOKENS: tileTokens, TOKEN_STRIDE: tokenStride },
        sharedBytes: { fixed, dynamic: 0 },
      },
      {
        entry: 'attend_fp16_merge',
        summary:
          'Merges the splits of a row; a second launch, because WGSL orders no memory between workgroups of one.',
        bindings: [work, reads('partials', 'f32', partials), output],
        threads: roundUp(g.headDim, 32),
        grid: [{ dimension: 'workItems' }, 1, 1],
        constants,
        functions: {},
        sharedBytes: { fixed: 0, dynamic: 0 },
      },
    ];
  },
});
