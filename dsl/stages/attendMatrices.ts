import type { Geometry } from '../geometry.js';
import { fastPairsOf, splitTile } from '../ropeSplit.js';
import { type Chosen, type Constraint, type KernelPlan, oneOf, type Target, type Tunable } from '../stage.js';

/**
 * Where there are subgroup matrices, the choice is between the schedule that uses them (`matrices` 1), with some subgroups
 * beyond those that hold a column tile of its product, and the plain one (`matrices` 0); each has a tunable of its own, and
 * the other's stays at its default.
 */
export type MatrixSpace = Readonly<Record<'matrices' | 'spareSubgroups' | 'tileTokens', Tunable>>;

export function matrixSpace(tileTokens: Tunable): MatrixSpace {
  return { matrices: oneOf(1, 0), spareSubgroups, tileTokens };
}

const spareSubgroups = oneOf(0, 1, 3);

/** Whether attention goes through subgroup matrices. */
export const usesSubgroupMatrices = (target: Target): boolean =>
  target.language === 'wgsl' && target.subgroupMatrices === true;

/** Lanes of a subgroup: the products are of this size of subgroup on every device that has them as they are used here. */
const lanes = 32;
/** The default of the plain schedule. */
const usualTileTokens = 16;
/** Tokens of a step: four threads score one of them. */
const stepTokens = 32;

/** Sizes of the product of codes with fast channels and turned queries, in tiles of 16. */
function tilesOf(g: Geometry) {
  const fastPairs = fastPairsOf(g.model);
  const fast = fastPairs / 8;
  const query = Math.ceil(g.groupSize / 4);
  return { fastPairs, fast, slow: (g.pairs - fastPairs) / 8, query, rank: g.rank / 16, columns: fast + 2 * query };
}

/** As many as the columns need, and four threads for each token of a step. */
function subgroupsOf(g: Geometry, spare: number): number {
  return Math.max(tilesOf(g).columns, (stepTokens * 4) / lanes) + spare;
}

/** Units of 16 bytes of what takes turns in the region; `partials/matrix_storage.hbs` places it. */
function regionUnits(g: Geometry, subgroups: number): number {
  const { rank, columns, fast } = tilesOf(g);
  const codeStride = 2 * rank + 1;
  const turned = 16 * (4 * rank + 1);
  const sums = stepTokens * (4 * columns + 1);
  const valueRows = Math.floor(lanes / (g.headDim / 4)) * subgroups;
  return Math.max(
    fast * 16 * codeStride,
    stepTokens * codeStride + Math.max(turned, sums),
    (valueRows * g.groupSize * g.headDim) / 4,
  );
}

const indices = (length: number): readonly number[] => Array.from({ length }, (_, i) => i);

/**
 * Products of subgroup matrices with the codes of 32 tokens, the right sides in registers. Not yet seen right on a GPU (see
 * docs/decisions.md), so nothing sets `subgroupMatrices` unasked.
 */
export function matrixSchedule(
  g: Geometry,
  { spareSubgroups }: Chosen<MatrixSpace>,
): Pick<KernelPlan, 'threads' | 'constants' | 'sharedBytes' | 'template' | 'unrolled' | 'subgroupMatrices'> {
  const { fastPairs, fast, slow, query, rank } = tilesOf(g);
  const subgroups = subgroupsOf(g, spareSubgroups);
  const units = regionUnits(g, subgroups);
  const queries =
    (query * 16 * (2 * slow + 1) + g.groupSize + (fastPairs / 2) * ((splitTile / stepTokens) * g.groupSize + 1)) * 16;
  const floats = stepTokens * g.groupSize + g.rank + g.groupSize * g.headDim;
  const valueRows = Math.floor(lanes / (g.headDim / 4));
  const slowRoom = Math.min(slow, Math.floor(units / (16 * (2 * rank + 1))));
  const nibbles = g.allocatedGroups === 0 && g.keyGroups.every(({ bits }) => bits === 4);
  return {
    threads: subgroups * lanes,
    constants: { WARPS: subgroups, FAST_PAIRS: fastPairs, SPLIT_TILE: splitTile, REGION_UNITS: units },
    template: 'attend_matrices',
    subgroupMatrices: true,
    sharedBytes: {
      fixed: roundUp(units * 16 + queries + floats * 4 + subgroups * 8 + g.entries * g.channels * 2, 16),
      dynamic: 0,
    },
    unrolled: {
      quad: indices(4),
      groupHeads: indices(g.groupSize),
      fastTiles: indices(fast),
      slowRoom: [slowRoom],
      codeTurns: nibbles ? indices(Math.ceil((stepTokens * g.rank) / 8 / (subgroups * lanes))) : [],
      queryTiles: indices(query),
      rankTiles: indices(rank),
      rankTurns: indices(Math.ceil(rank / subgroups)),
      stepTiles: indices(stepTokens / 16),
      scoreTurns: indices(fastPairs / 8),
      shareTurns: indices(Math.ceil(Math.ceil(stepTokens / subgroups) / valueRows)),
    },
  };
}

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** What the schedule of subgroup matrices does not serve; the plain one does. */
export const fitsMatrices: Constraint<MatrixSpace> = (g, tunables) => {
  const forOther = (name: string, value: number, matrices: number) =>
    `${name} = ${value} is for the other schedule (matrices = ${matrices})`;
  if (tunables.matrices === 0) {
    const [usual] = spareSubgroups.values;
    if (tunables.spareSubgroups === usual) return undefined;
    return forOther('spareSubgroups', tunables.spareSubgroups, 1);
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
