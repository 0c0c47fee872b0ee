import type { LowRankGeometry } from '../geometry.js';
import { fastPairsOf, splitTile } from '../ropeSplit.js';
import {
  type Chosen,
  type Constraint,
  defineStage,
  fasterBeyond,
  oneOf,
  type Target,
  type Tunable,
  usesTensorCores,
} from '../stage.js';
import { fitsMatrices, type MatrixSpace, matrixSchedule, matrixSpace, usesSubgroupMatrices } from './attendMatrices.js';
import { type AttendSchedule, attendPlans } from './attendPlan.js';
import { middleKeyFunctions } from './decompress.js';

/** The tensor-core schedule takes 16 tokens a tile, as its matrix products do. */
type TensorSpace = Readonly<Record<'coefficientHalves' | 'warps' | 'basisBytes', Tunable>>;
/**
 * On Hopper the choice is between that schedule (`split` 0) and the one that turns queries instead of keys for slow pairs
 * (`split` 1), which has no tunables of its own: those of the first stay at their defaults.
 */
type HopperSpace = TensorSpace & Readonly<Record<'split', Tunable>>;
/** The float32 schedule, a block at a time. */
type PlainSpace = Readonly<Record<'tileTokens', Tunable>>;
type Space = HopperSpace | TensorSpace | PlainSpace | MatrixSpace;

/**
 * Most pairs of 8-channel tiles whose rebuilt keys one warp holds at a time: 64 registers, or 32 where wide heads leave
 * fewer, as the outputs of a head stay in registers too (with 64, d = 256 spills 84 bytes on sm_100).
 */
const passTilesLimit = (headDim: number) => (headDim > 128 ? 4 : 8);

/** The pairs of 8-channel tiles of a pass of the tensor-core schedule: as few passes as there can be, of like length. */
function passTiles(g: LowRankGeometry): number {
  const tiles = g.headDim / 16;
  return Math.ceil(tiles / Math.ceil(tiles / passTilesLimit(g.headDim)));
}

const rebuildTunables: TensorSpace = {
  coefficientHalves: fasterBeyond(2, 1),
  warps: oneOf(4, 8, 2, 1),
  basisBytes: oneOf(2, 1),
};

const isHopper = (target: Target) => target.language === 'cuda' && target.arch === 'sm_90a';
const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** Most threads that share one dot product; more would only move work from the sums to their merging. */
const scoreSlicesLimit = 8;

/** Rebuilds a tile of keys with one thread a channel. */
function plainSchedule(g: LowRankGeometry, { tileTokens }: Chosen<PlainSpace>, target: Target): AttendSchedule {
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
    ...(wgsl ? {} : { template: 'attend_plain' }),
  };
}

/** Rebuilds keys in the accumulators of tensor cores, tiles of 16 tokens dealt out to the warps. */
function tensorSchedule(
  g: LowRankGeometry,
  { coefficientHalves, warps, basisBytes }: Chosen<TensorSpace>,
): AttendSchedule {
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
    template: 'attend_mma',
  };
}

/**
 * Warpgroups of the split schedule that take tokens, one more turns queries for them; and registers of a thread of the one,
 * the other, and all before and after. Eight query heads take twice the sums and the shared memory of four, which leaves
 * room for two warpgroups.
 */
function splitGroups(g: LowRankGeometry) {
  return g.groupSize > 4
    ? { warpgroups: 2, consumer: 176, producer: 152, block: 168 }
    : { warpgroups: 3, consumer: 128, producer: 128, block: 128 };
}

/** Registers for sums of products with codes; beyond them a warp's state does not fit. */
const mostSums = 64;

/** Registers for these sums: of two planes, four functions a query head and the channels of fast pairs. */
function splitSums(g: LowRankGeometry): number {
  return Math.ceil(g.groupSize / 4) * 16 + fastPairsOf(g.model) * 2;
}

/** Turns queries for slow pairs and rebuilds keys for fast ones, in warpgroups that take tiles of 128 positions in turn. */
function splitSchedule(g: LowRankGeometry): AttendSchedule {
  const bytes = splitSharedBytes(g);
  const { warpgroups, consumer, producer, block } = splitGroups(g);
  return {
    threads: (warpgroups + 1) * 128,
    // Without it the compiler ignores what warpgroups give each other.
    blocksPerMultiprocessor: 1,
    constants: {
      WARPGROUPS: warpgroups,
      WARPS: (warpgroups + 1) * 4,
      CONSUMER_REGISTERS: consumer,
      PRODUCER_REGISTERS: producer,
      BLOCK_REGISTERS: block,
      FAST_PAIRS: fastPairsOf(g.model),
      SPLIT_TILE: splitTile,
      PASS_TILES: passTiles(g),
      SHARED_BYTES: bytes,
    },
    sharedBytes: { fixed: 0, dynamic: bytes },
    template: 'attend_split',
  };
}

/** Shared memory of the split schedule; the template places these parts, and asserts that they end here. */
function splitSharedBytes(g: LowRankGeometry): number {
  const fast = fastPairsOf(g.model);
  const slow = g.pairs - fast;
  const heads = roundUp(g.groupSize, 4);
  const { warpgroups } = splitGroups(g);
  // Columns of turned queries, their fast pairs for both halves of a tile, and a mean and a scale a column.
  const slot = heads * 8 * g.rank + 2 * heads * fast * 8 + heads * 32;
  const middle =
    g.entries * 256 +
    slow * 2 * g.rank * 2 +
    fast * 4 * g.rank +
    2 * warpgroups * slot +
    g.angleTile * (fast + 4) * 8 +
    splitTile * 16 +
    slow * 32 +
    fast * 16 +
    slow * 8 +
    g.rank * 8 +
    heads * g.pairs * 8 +
    // Maxima of the warps.
    128 +
    // Codes and value indices of 16 tokens a warp.
    warpgroups * 4 * 16 * (g.keyRowWords * 4 + g.headDim / g.channels);
  const merge = roundUp((3 * warpgroups + 2) * 4 * g.groupSize * (g.headDim + 2) * 4, 16);
  const others = merge + 3 * 16 * (g.headDim + 8) * 2 + g.groupSize * g.headDim * 4;
  return Math.max(middle, others);
}

/**
 * Shared memory of the tensor-core schedule: the basis slice stays, codes stream past, warps merge in the basis' place.
 * The template places these parts, and asserts that they end here.
 */
function tensorSharedBytes(g: LowRankGeometry, warps: number, basisBytes: number): number {
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

const fitsTensorRows: Constraint<Space> = (g, _tunables, target) =>
  usesTensorCores(target) && g.groupSize > 16
    ? `needs ${g.groupSize} query heads a KV head in one matrix tile, which has 16 rows`
    : undefined;

/** What the split schedule cannot do; it is for Hopper, whose blocks have room for a codebook with a copy a lane. */
const fitsSplit: Constraint<Space> = (g, tunables) => {
  if (!('split' in tunables)) return undefined;
  if (tunables.split === 0) return undefined;
  for (const [name, { values }] of Object.entries(rebuildTunables)) {
    const chosen = tunables[name as keyof TensorSpace];
    if (chosen !== values[0]) return `${name} = ${chosen} is for the other schedule (split = 0)`;
  }
  if (g.headDim !== 64 && g.headDim !== 128) return `looks values up for heads of 64 or 128 channels, not ${g.headDim}`;
  if (g.channels !== 4) return `looks up value vectors of 4 channels, not ${g.channels}`;
  if (g.allocatedGroups > 0) return 'takes key codes of one width, not of widths that the prompt decides';
  const other = g.keyGroups.find(({ bits }) => bits !== 4);
  if (other) return `takes key codes of 4 bits, not ${other.bits}`;
  if (g.groupSize > 8) return `turns 8 query heads a KV head at most, not ${g.groupSize}`;
  if (g.rank > 256) return `takes ranks up to 256, not ${g.rank}`;
  if (g.rank % 32 !== 0) return `takes ranks that are multiples of 32, not ${g.rank}`;
  const fast = fastPairsOf(g.model);
  if (fast === g.pairs) return `needs 8 pairs of channels that turn slowly, of ${g.pairs} there are none`;
  if (fast === 0) return 'needs pairs of channels that turn';
  const sums = splitSums(g);
  return sums > mostSums
    ? `has ${mostSums} registers for sums of turned queries and channels of fast pairs, ${sums} are needed`
    : undefined;
};

/** Attention of query tokens of every sequence over sinks, middle, stream and window, in one launch; WGSL merges in a second. */
export const attendStage = defineStage<Space>({
  name: 'attend',
  summary: 'Attention over all segments, split along tokens, merged by log-sum-exp.',
  // What costs accuracy comes first, so that it is the last to give way where shared memory is short.
  tunables: (target) => {
    const tileTokens = oneOf(16, 8, 4);
    if (usesSubgroupMatrices(target)) return matrixSpace(tileTokens);
    if (!usesTensorCores(target)) return { tileTokens };
    return isHopper(target) ? { split: oneOf(1, 0), ...rebuildTunables } : rebuildTunables;
  },
  constraints: [
    fitsTensorRows,
    fitsSplit,
    (g, tunables, target) => ('matrices' in tunables ? fitsMatrices(g, tunables, target) : undefined),
  ],
  kernels: (g, tunables, target) => {
    const split = 'split' in tunables && tunables.split === 1;
    const schedule: AttendSchedule = split
      ? splitSchedule(g)
      : 'warps' in tunables
        ? tensorSchedule(g, tunables)
        : 'matrices' in tunables && tunables.matrices === 1
          ? matrixSchedule(g, tunables)
          : plainSchedule(g, tunables, target);
    return attendPlans(g, target, {
      schedule,
      chunkUnit: split || schedule.subgroupMatrices ? splitTile : 16,
      functions: middleKeyFunctions(g),
    });
  },
});
