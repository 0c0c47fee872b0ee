import type { ScalarGeometry } from '../geometry.js';
import { type Chosen, defineStage, type KernelPlan, oneOf, type Target, type Tunable } from '../stage.js';
import { streamFunctions } from './append.js';
import { mergePlan, partialWords, scoreConstants, workItemWords } from './attend.js';
import { cacheRead, reads, tables, writes } from './bindings.js';
import { fitsProducts, type ProductSpace, productSchedule, productSpace, usesTensorCores } from './scalarAttendMma.js';
import { scalarReadFunctions } from './scalarCodes.js';
import { pairFunctions } from './unrope.js';

type PlainSpace = Readonly<Record<'tileTokens', Tunable>>;
type Space = PlainSpace | ProductSpace;

type Schedule = Pick<KernelPlan, 'threads' | 'blocksPerMultiprocessor' | 'constants' | 'sharedBytes' | 'template'>;

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** Most threads that share one dot product; more would only move work from the sums to their merging. */
const scoreSlicesLimit = 8;

/** Decodes a tile of keys with one thread a channel, in float32. */
function plainSchedule(g: ScalarGeometry, { tileTokens }: Chosen<PlainSpace>, target: Target): Schedule {
  const wgsl = target.language === 'wgsl';
  const threads = roundUp(g.headDim, 32);
  /** Scores come as vectors of four tokens. */
  const scoreVectors = (g.groupSize * tileTokens) / 4;
  const slices = Math.min(scoreSlicesLimit, Math.max(1, Math.floor(threads / scoreVectors)));
  const tile = g.headDim * tileTokens * 4;
  const query = g.groupSize * g.headDim * 4;
  const scores = slices * scoreVectors * 16;
  return {
    threads,
    // With more blocks the compiler spills where keys are rotated.
    blocksPerMultiprocessor: 1,
    constants: {
      TILE_TOKENS: tileTokens,
      SCORE_SLICES: slices,
      ...(wgsl ? { TILE_ROWS: g.headDim } : {}),
    },
    // One word says who finishes a row (CUDA).
    sharedBytes: { fixed: tile + query + scores + (wgsl ? 0 : 4), dynamic: 0 },
    template: 'scalar_attend',
  };
}

/** Attention of query tokens of every sequence over sinks, middle, stream and window, in one launch; WGSL merges in a second. */
export const scalarAttendStage = defineStage<Space, ScalarGeometry>({
  name: 'attend',
  summary: 'Attention over all segments, split along tokens, merged by log-sum-exp.',
  tunables: (target) => {
    const tileTokens = oneOf(16, 8, 4);
    return usesTensorCores(target) ? productSpace(tileTokens) : { tileTokens };
  },
  constraints: [(g, tunables, target) => ('products' in tunables ? fitsProducts(g, tunables, target) : undefined)],
  kernels: (g, tunables, target) => {
    const { streamValue, streamUnpack } = streamFunctions(g);
    const multiplies = 'products' in tunables && tunables.products === 1;
    const { constants, ...schedule }: Schedule = multiplies
      ? productSchedule(g, tunables, target)
      : plainSchedule(g, tunables, target);
    // Products turn a block's sums back before they are stored.
    const spaces = multiplies ? '' : '[2: Hadamard space, exact]';
    const partials = `[work items]${spaces}[${g.groupSize} query heads][${g.headDim} output, maximum, weight sum]`;
    const output = writes('output', 'f32', `[query rows][${g.heads} heads][${g.headDim}]`);
    const work = reads(
      'work',
      'u32',
      '[work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours',
    );
    const attend: KernelPlan = {
      entry: 'attend',
      summary:
        'One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.',
      bindings: [
        reads('sequences', 'u32', 'records of all sequences'),
        work,
        cacheRead,
        reads('query', 'u32', `f16 [query rows][${g.heads} heads][${g.headDim}], after RoPE`),
        tables,
        writes('partials', 'f32', partials),
        ...(target.language === 'cuda'
          ? [output, writes('counters', 'atomic_u32', `[query rows][${g.kvHeads} KV heads], zero before and after`)]
          : []),
      ],
      ...schedule,
      grid: [{ dimension: 'workItems' }, 1, 1],
      constants: {
        ...constants,
        WORK_ITEM_WORDS: workItemWords,
        PARTIAL_WORDS: multiplies ? partialWords(g) / 2 : partialWords(g),
        CHUNK_UNIT: 16,
        ...scoreConstants(g),
      },
      functions: {
        ...scalarReadFunctions(g),
        ...(g.keys.unrotated ? { rotatePair: { name: 'rotatePair' }, ...pairFunctions(g) } : {}),
        butterfly: { name: 'butterfly' },
        streamValue: streamValue!,
        streamUnpack: streamUnpack!,
      },
    };
    if (target.language === 'cuda') return [attend];
    return [attend, mergePlan(g, { work, partials, output })];
  },
});
