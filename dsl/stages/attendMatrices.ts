import type { LowRankGeometry } from '../geometry.js';
import { fastPairsOf, splitTile } from '../ropeSplit.js';
import { type Chosen, type Constraint, type KernelPlan, oneOf, type Target, type Tunable } from '../stage.js';

/**
 * Where there are subgroup matrices, the choice is between the schedule that uses them (`matrices` 1), with 64 or 32 tokens a
 * step, and the plain one (`matrices` 0); each has a tunable of its own, and the other's stays at its default.
 */
export type MatrixSpace = Readonly<Record<'matrices' | 'stepTokens' | 'tileTokens', Tunable>>;

export function matrixSpace(tileTokens: Tunable): MatrixSpace {
  return { matrices: oneOf(1, 0), stepTokens, tileTokens };
}

const stepTokens = oneOf(64, 32);

/** Whether attention goes through subgroup matrices. */
export const usesSubgroupMatrices = (target: Target): boolean =>
  target.language === 'wgsl' && target.subgroupMatrices === true;

/** Lanes of a subgroup: the products are of this size of subgroup on every device that has them as they are used here. */
const lanes = 32;
/** The default of the plain schedule. */
const usualTileTokens = 16;
/** Rows of codes that a subgroup multiplies. */
const subgroupRows = 32;

/** Sizes of the product of codes with fast channels and turned queries, in tiles of 16. */
function tilesOf(g: LowRankGeometry) {
  const fastPairs = fastPairsOf(g.model);
  const fast = fastPairs / 8;
  const headQuads = Math.ceil(g.groupSize / 4);
  return {
    fastPairs,
    fast,
    slow: (g.pairs - fastPairs) / 8,
    headQuads,
    rank: g.rank / 16,
    columns: fast + headQuads,
  };
}

/** As many as the columns need for all rows of a step, and four threads for each of its tokens. */
function subgroupsOf(g: LowRankGeometry, tokens: number): number {
  return (Math.max(tilesOf(g).columns, (subgroupRows * 4) / lanes) * tokens) / subgroupRows;
}

/** Units of 16 bytes of what takes turns in the region; `partials/matrix_storage.hbs` places it. */
function regionUnits(g: LowRankGeometry, tokens: number): number {
  const { rank, columns, fast, slow } = tilesOf(g);
  const codeStride = 2 * rank + 1;
  const valueRows = Math.floor(lanes / (g.headDim / 4)) * subgroupsOf(g, tokens);
  return Math.max(
    fast * 16 * codeStride,
    Math.min(slow, mostSlowTiles) * 16 * codeStride,
    32 * codeStride + 16 * (4 * rank + 1),
    tokens * Math.max(codeStride, 4 * columns + 1),
    (valueRows * g.groupSize * g.headDim) / 4,
  );
}

/** Tiles of slow channels of the basis that are multiplied with queries at a time, as far as the region has room. */
const mostSlowTiles = 5;

const indices = (length: number): readonly number[] => Array.from({ length }, (_, i) => i);

/** Products of subgroup matrices with the codes of a step's tokens, the right sides in registers as two halves each. */
export function matrixSchedule(
  g: LowRankGeometry,
  { stepTokens: tokens }: Chosen<MatrixSpace>,
): Pick<KernelPlan, 'threads' | 'constants' | 'sharedBytes' | 'template' | 'unrolled' | 'subgroupMatrices'> {
  const { fastPairs, fast, slow, headQuads, rank } = tilesOf(g);
  const subgroups = subgroupsOf(g, tokens);
  const threads = subgroups * lanes;
  const units = regionUnits(g, tokens);
  const slowPairs = g.pairs - fastPairs;
  const fastQueries = (splitTile / tokens) * (fastPairs / 2) * g.groupSize;
  // In units: halves and means of queries, turned queries and means of fast channels, scores.
  const queries =
    headQuads * 32 * (2 * slow + 1) + g.groupSize + fastQueries + fastPairs / 2 + tokens * headQuads + g.rank / 4;
  const floats = g.groupSize * slowPairs + g.groupSize * g.headDim;
  const valueRows = Math.floor(lanes / (g.headDim / 4));
  const slowRoom = Math.min(slow, Math.floor(units / (16 * (2 * rank + 1))));
  const nibbles = g.allocatedGroups === 0 && g.keyGroups.every(({ bits }) => bits === 4);
  const turnsOf = (items: number) => indices(Math.ceil(items / threads));
  const heads = indices(g.groupSize);
  return {
    threads,
    constants: { WARPS: subgroups, FAST_PAIRS: fastPairs, SPLIT_TILE: splitTile, REGION_UNITS: units },
    template: 'attend_matrices',
    subgroupMatrices: true,
    sharedBytes: {
      fixed: roundUp(
        (units + queries) * 16 + floats * 4 + subgroups * (1 + 4 * headQuads) * 8 + g.entries * g.channels * 2,
        16,
      ),
      dynamic: 0,
    },
    unrolled: {
      stepTokens: [tokens],
      slowRoom: [slowRoom],
      rooms: indices(Math.ceil(slow / slowRoom)),
      quad: indices(4),
      groupHeads: heads,
      headQuads: indices(headQuads),
      headsOfQuads: heads.map((head) => ({ head, quad: Math.floor(head / 4), place: head % 4 })),
      rankTiles: indices(rank),
      rankTurns: indices(Math.ceil(rank / subgroups)),
      stepTiles: indices(subgroupRows / 16),
      scoreTurns: indices(fast),
      basisTurns: turnsOf(slow * 16 * rank * 2),
      mixTurns: turnsOf(g.groupSize * slowPairs),
      fastTurns: turnsOf(fastQueries),
      codeTurns: nibbles ? turnsOf(tokens * rank * 2) : [],
      shareTurns: indices(Math.ceil(Math.ceil(tokens / subgroups) / valueRows)),
    },
  };
}

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** What the schedule of subgroup matrices does not serve; the plain one does. */
export const fitsMatrices: Constraint<MatrixSpace> = (g, tunables) => {
  const forOther = (name: string, value: number, matrices: number) =>
    `${name} = ${value} is for the other schedule (matrices = ${matrices})`;
  if (tunables.matrices === 0) {
    const [usual] = stepTokens.values;
    if (tunables.stepTokens === usual) return undefined;
    return forOther('stepTokens', tunables.stepTokens, 1);
  }
  if (tunables.tileTokens !== usualTileTokens) return forOther('tileTokens', tunables.tileTokens, 0);
  const { fast, slow } = tilesOf(g);
  if (g.channels !== 4) {
    return `needs codebook vectors of 4 channels for subgroup matrices, the scheme has ${g.channels}`;
  }
  if (g.headDim > 128) return `needs heads of at most 128 channels for subgroup matrices, the model has ${g.headDim}`;
  if (fast === 0 || slow === 0) {
    return `needs fast and slow rotary pairs for subgroup matrices, the model has ${8 * fast} fast of ${g.pairs}`;
  }
  return undefined;
};
