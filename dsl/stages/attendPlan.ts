import type { CacheGeometry } from '../geometry.js';
import type { BindingDescriptor, FunctionUse, KernelPlan, Target } from '../stage.js';
import { streamFunctions } from './append.js';
import { cacheRead, reads, tables, writes } from './bindings.js';

/** What the schedules of attention differ in. */
export type AttendSchedule = Pick<
  KernelPlan,
  'threads' | 'blocksPerMultiprocessor' | 'constants' | 'sharedBytes' | 'template' | 'unrolled' | 'subgroupMatrices'
>;

/** What attention of a family of schemes brings along. */
interface AttendParts {
  readonly schedule: AttendSchedule;
  /** A split gets a multiple of so many tokens. */
  readonly chunkUnit: number;
  /** Partial results of a work item: one of Hadamard space and one of exact tokens, or one of both. */
  readonly spaces?: 1 | 2;
  /** Those that read the middle. */
  readonly functions: Readonly<Record<string, FunctionUse>>;
}

/** Words of a work item: sequence, KV head, row of the query, tokens after it, split, splits. */
export const workItemWords = 6;

/** Numbers of one partial result: the unnormalised output, its maximum (base-2 exponent) and its weight sum. */
export function partialWords(g: CacheGeometry): number {
  return 2 * g.groupSize * (g.headDim + 2);
}

/**
 * What turns q.k into a base-2 exponent: `SCORE_SCALE * q.k`, or with capped scores
 * `SCORE_CAP * tanh(SCORE_SCALE * q.k)`.
 */
export function scoreConstants({ model }: Pick<CacheGeometry, 'model'>): Readonly<Record<string, number>> {
  const { scoreScale, scoreCap } = model;
  if (scoreCap === undefined) return { SCORE_SCALE: scoreScale * Math.log2(Math.E) };
  return { SCORE_SCALE: scoreScale / scoreCap, SCORE_CAP: scoreCap * Math.log2(Math.E) };
}

/** Attention as every family launches it: one kernel, and in WGSL a second one that merges the splits of a row. */
export function attendPlans(
  g: CacheGeometry,
  target: Target,
  { schedule: { constants, ...schedule }, chunkUnit, spaces = 2, functions }: AttendParts,
): readonly KernelPlan[] {
  const { streamValue, streamUnpack } = streamFunctions(g);
  const ofSpaces = spaces === 2 ? '[2: Hadamard space, exact]' : '';
  const partials = `[work items]${ofSpaces}[${g.groupSize} query heads][${g.headDim} output, maximum, weight sum]`;
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
      PARTIAL_WORDS: (partialWords(g) / 2) * spaces,
      CHUNK_UNIT: chunkUnit,
      ...scoreConstants(g),
    },
    functions: {
      ...functions,
      butterfly: { name: 'butterfly' },
      streamValue: streamValue!,
      streamUnpack: streamUnpack!,
    },
  };
  if (target.language === 'cuda') return [attend];
  return [attend, mergePlan(g, { work, partials, output })];
}

/** WGSL's second launch: the splits of a row into one, a thread for every channel of a head. */
function mergePlan(
  g: CacheGeometry,
  { work, partials, output }: Readonly<Record<'work' | 'output', BindingDescriptor>> & { readonly partials: string },
): KernelPlan {
  const threads = Math.ceil(g.headDim / 32) * 32;
  return {
    entry: 'attend_merge',
    summary: 'Merges the splits of a row; a second launch, because WGSL orders no memory between workgroups of one.',
    bindings: [work, reads('partials', 'f32', partials), output],
    threads,
    grid: [{ dimension: 'workItems' }, 1, 1],
    constants: { WORK_ITEM_WORDS: workItemWords, PARTIAL_WORDS: partialWords(g) },
    functions: { butterfly: { name: 'butterfly' } },
    // The heads of the group, and four numbers for each of as many splits as there are threads.
    sharedBytes: { fixed: (g.groupSize * g.headDim + 4 * threads) * 4, dynamic: 0 },
  };
}
