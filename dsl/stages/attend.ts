import type { Geometry } from '../geometry.js';
import {
  type Chosen,
  type Constraint,
  defineStage,
  type KernelPlan,
  oneOf,
  type Target,
  type Tunable,
} from '../stage.js';
import { streamFunctions } from './append.js';
import { cacheRead, reads, tables, writes } from './bindings.js';
import { middleKeyFunctions } from './decompress.js';

/** The tensor-core schedule takes 16 tokens a tile, as its matrix products do. */
type TensorSpace = Readonly<Record<'coefficientHalves' | 'warps' | 'basisBytes', Tunable>>;
/** The float32 schedule, a block at a time. */
type PlainSpace = Readonly<Record<'tileTokens', Tunable>>;
type Space = TensorSpace | PlainSpace;

/** What the two schedules differ in. */
type Schedule = Pick<KernelPlan, 'threads' | 'constants' | 'sharedBytes'>;

/** Words of a work item: sequence, KV head, row of the query, tokens after it, split, splits. */
export const workItemWords = 6;

/**
 * Most pairs of 8-channel tiles whose rebuilt keys one warp holds at a time: 64 registers, or 32 where wide heads leave
 * fewer, as the outputs of a head stay in registers too (with 64, d = 256 spills 84 bytes on sm_100).
 */
const passTilesLimit = (headDim: number) => (headDim > 128 ? 4 : 8);

/** The pairs of 8-channel tiles of a pass of the tensor-core schedule: as few passes as there can be, of like length. */
function passTiles(g: Geometry): number {
  const tiles = g.headDim / 16;
  return Math.ceil(tiles / Math.ceil(tiles / passTilesLimit(g.headDim)));
}

/** Numbers of one partial result: the unnormalised output, its maximum (base-2 exponent) and its weight sum. */
export function partialWords(g: Geometry): number {
  return 2 * g.groupSize * (g.headDim + 2);
}

const isTensorCore = (target: Target) => target.language === 'cuda' && target.tensorCores;
const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** Most threads that share one dot product; more would only move work from the sums to their merging. */
const scoreSlicesLimit = 8;

/** Rebuilds a tile of keys with one thread a channel. */
function plainSchedule(g: Geometry, { tileTokens }: Chosen<PlainSpace>, target: Target): Schedule {
  const wgsl = target.language === 'wgsl';
  const threads = roundUp(g.headDim, 32);
  const { groupComponents } = g;
  /** The tile holds the codes of a key group first, then the keys. */
  const tileRows = Math.max(groupComponents, g.headDim);
  /** Scores come as vectors of four tokens. */
  const scoreVectors = (g.groupSize * tileTokens) / 4;
  const slices = Math.min(scoreSlicesLimit, Math.max(1, Math.floor(threads / scoreVectors)));
  const scoreSlices = wgsl && target.subgroups ? 1 : slices;
  const tile = tileRows * tileTokens * (wgsl && target.f16 ? 2 : 4);
  const query = g.groupSize * g.headDim * 4;
  const scores = scoreSlices * scoreVectors * 16;
  const codebook = g.entries * g.channels * 2;
  // One word says who finishes a row (CUDA); a word for every 32 threads, and one more, finds the subgroups.
  const flags = wgsl ? (target.subgroups ? roundUp(threads / 8, 16) + 16 : 0) : 4;
  return {
    threads,
    constants: {
      TILE_TOKENS: tileTokens,
      WARPS: threads / 32,
      TILE_ROWS: tileRows,
      GROUP_COMPONENTS: groupComponents,
      SCORE_SLICES: scoreSlices,
    },
    sharedBytes: { fixed: tile + query + scores + groupComponents * 4 + codebook + flags, dynamic: 0 },
  };
}

/** Rebuilds keys in the accumulators of tensor cores, tiles of 16 tokens dealt out to the warps. */
function tensorSchedule(g: Geometry, { coefficientHalves, warps, basisBytes }: Chosen<TensorSpace>): Schedule {
  const bytes = tensorSharedBytes(g, warps, basisBytes);
  return {
    threads: warps * 32,
    constants: {
      WARPS: warps,
      COEFFICIENT_HALVES: coefficientHalves,
      BASIS_BYTES: basisBytes,
      PASS_TILES: passTiles(g),
      SHARED_BYTES: bytes,
    },
    sharedBytes: { fixed: 0, dynamic: bytes },
  };
}

/**
 * Shared memory of the tensor-core schedule: the basis slice stays, codes stream past, warps merge in the basis' place.
 * The template places these parts, and asserts that they end here.
 */
function tensorSharedBytes(g: Geometry, warps: number, basisBytes: number): number {
  // Odd numbers of 16 bytes spread the rows over the banks; then a scale a component, mean and inverse weight a channel.
  const basis = g.headDim * (((g.rank * basisBytes) / 16) | 1) * 16 + (g.rank + g.headDim * (g.weighted ? 2 : 1)) * 4;
  const merge = roundUp(warps * g.groupSize * (g.headDim + 2) * 4, 16);
  // As it is, for exact tokens; in the order of rotary pairs, for the middle; transformed as two halves, for the stream.
  const query = 4 * 16 * (g.headDim + 8) * 2;
  const codebook = g.entries * g.channels * 2;
  const widths = roundUp(g.allocatedGroups * 4, 16);
  const staging = warps * 2 * 16 * (g.keyRowWords * 4 + roundUp(g.headDim / g.channels, 16));
  return Math.max(basis, merge) + query + codebook + widths + staging;
}

/**
 * What turns q.k into a base-2 exponent: `SCORE_SCALE * q.k`, or with capped scores
 * `SCORE_CAP * tanh(SCORE_SCALE * q.k)`.
 */
export function scoreConstants({ model }: Geometry): Readonly<Record<string, number>> {
  const { scoreScale, scoreCap } = model;
  if (scoreCap === undefined) return { SCORE_SCALE: scoreScale * Math.log2(Math.E) };
  return { SCORE_SCALE: scoreScale / scoreCap, SCORE_CAP: scoreCap * Math.log2(Math.E) };
}

const fitsTensorRows: Constraint<Space> = (g, _tunables, target) =>
  isTensorCore(target) && g.groupSize > 16
    ? `needs ${g.groupSize} query heads a KV head in one matrix tile, which has 16 rows`
    : undefined;

/** Attention of query tokens of every sequence over sinks, middle, stream and window, in one launch; WGSL merges in a second. */
export const attendStage = defineStage<Space>({
  name: 'attend',
  summary: 'Attention over all segments, split along tokens, merged by log-sum-exp.',
  // What costs accuracy comes first, so that it is the last to give way where shared memory is short.
  tunables: (target) =>
    isTensorCore(target)
      ? { coefficientHalves: oneOf(2, 1), warps: oneOf(4, 8, 2, 1), basisBytes: oneOf(2, 1) }
      : { tileTokens: oneOf(16, 8, 4) },
  constraints: [fitsTensorRows],
  kernels: (g, tunables, target) => {
    const { streamValue, streamUnpack } = streamFunctions(g);
    const tensor = 'warps' in tunables;
    const { threads, constants, sharedBytes } = tensor
      ? tensorSchedule(g, tunables)
      : plainSchedule(g, tunables, target);
    const partials = `[work items][2: Hadamard space, exact][${g.groupSize} query heads][${g.headDim} output, maximum, weight sum]`;
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
      ...(target.language === 'cuda' ? { template: tensor ? 'attend_mma' : 'attend_plain' } : {}),
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
      threads,
      grid: [{ dimension: 'workItems' }, 1, 1],
      constants: {
        ...constants,
        WORK_ITEM_WORDS: workItemWords,
        PARTIAL_WORDS: partialWords(g),
        CHUNK_UNIT: 16,
        ...scoreConstants(g),
      },
      functions: {
        ...middleKeyFunctions(g),
        butterfly: { name: 'butterfly' },
        streamValue: streamValue!,
        streamUnpack: streamUnpack!,
      },
      sharedBytes,
    };
    if (target.language === 'cuda') return [attend];
    return [
      attend,
      {
        entry: 'attend_merge',
        summary:
          'Merges the splits of a row; a second launch, because WGSL orders no memory between workgroups of one.',
        bindings: [work, reads('partials', 'f32', partials), output],
        threads: roundUp(g.headDim, 32),
        grid: [{ dimension: 'workItems' }, 1, 1],
        constants: { WORK_ITEM_WORDS: workItemWords, PARTIAL_WORDS: partialWords(g) },
        functions: { butterfly: { name: 'butterfly' } },
        sharedBytes: { fixed: g.groupSize * g.headDim * 4, dynamic: 0 },
      },
    ];
  },
});
