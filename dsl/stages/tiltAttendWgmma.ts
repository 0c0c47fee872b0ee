import { type Constraint, oneOf, sharedLimit, type Target, type Tunable } from '../stage.js';
import { rowPositions, type TiltGeometry } from '../tiltGeometry.js';
import type { AttendSchedule } from './attendPlan.js';

/**
 * On Hopper the choice is between the schedule that takes codes as operands of products (`products` 1), whose warps turn
 * queries to groups of tiles together, and the plain one (`products` 0), which alone has the other tunable.
 */
export type TiltProductSpace = Readonly<Record<'products' | 'tileTokens', Tunable>>;

export function tiltProductSpace(tileTokens: Tunable): TiltProductSpace {
  return { products: oneOf(1, 0), tileTokens };
}

/** Whether the target has the instructions: `wgmma` reads the turned basis once for four warps. */
export const multipliesTilt = (target: Target) => target.language === 'cuda' && target.arch === 'sm_90a';

/**
 * Two warpgroups, with all registers of a multiprocessor. Blocks of one, two of them resident, would each need the basis,
 * and then have room for half the tiles a warp, for which the query turns as often: slower at every shape.
 */
const warps = 8;

/** A warp's sums of the largest weights have room for 65536 tokens, whatever share of a sequence its block gets. */
const mostPositions = warps * 65536;

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** A slot of the merge: what is found for every query head of a KV head. */
const slotBytes = (g: TiltGeometry) => g.groupSize * (g.headDim + 2) * 4;

/** Pairs of channels of queries, fields of the keys, and query and slots of exact tokens: what lies behind the codes. */
function behindBytes(g: TiltGeometry): number {
  const { sinks, window } = g.scheme;
  const exact = Math.min(warps, Math.ceil(sinks / 16) + Math.ceil(window / 16));
  const pairs = Math.ceil(g.groupSize / 4) * (g.headDim * 16 + 32);
  // Places are multiples of 16 bytes, those of slots of a slot.
  return g.headGroups * 20 + pairs + 16 * (g.headDim + 8) * 2 + (exact + 1) * slotBytes(g) + 64;
}

/** What the middle cannot do without: a basis of all groups, and for every warp a stage of one tile of the widest codes. */
function leastMiddleBytes(g: TiltGeometry): number {
  const basis = (rowPositions + g.headDim) * g.headDim * 2;
  const tile = 2 * g.headGroups * rowPositions * 8 + g.headDim * 16 + rowPositions * 2;
  return basis + warps * (4 * (g.pairs * 8 + 64) + g.headDim * 2 + tile);
}

/** What comes after the middle in its place: slots of the merge, then the transformed query as two halves. */
function othersBytes(g: TiltGeometry): number {
  return roundUp(2 * warps * slotBytes(g), 16) + 2 * 16 * (g.headDim + 8) * 2 + g.groupSize * g.headDim * 4;
}

/** Integer products of codes with queries turned to their tiles. Stages of codes take all the memory that a block may have. */
export function tiltProductSchedule(g: TiltGeometry, target: Target): AttendSchedule {
  const dynamic = sharedLimit(target);
  return {
    threads: warps * 32,
    blocksPerMultiprocessor: 1,
    constants: { WARPS: warps, PASS_TILES: Math.min(g.headDim / 16, 4), SHARED_BYTES: dynamic },
    sharedBytes: { fixed: 0, dynamic },
    template: 'tilt_attend_wgmma',
  };
}

/** What the schedule does not serve; the plain one does. */
export const fitsTiltProducts: Constraint<TiltProductSpace, TiltGeometry> = (g, tunables, target) => {
  if (tunables.products === 0) return undefined;
  if (g.headDim !== 96 && g.headDim !== 128) return `takes heads of 96 or 128 channels, not ${g.headDim}`;
  const { maxPositions } = g.model;
  if (maxPositions > mostPositions) return `takes sequences of at most ${mostPositions} tokens, not ${maxPositions}`;
  if (g.groupSize > 16) return `takes 16 query heads a KV head at most, not ${g.groupSize}`;
  if (g.tile !== rowPositions) return `turns queries to tiles of ${rowPositions} positions, not ${g.tile}`;
  if (g.rangeBlock % rowPositions !== 0) return `takes steps of whole tiles of ${rowPositions}, not of ${g.rangeBlock}`;
  if (!g.packedValues) return 'takes values of 2 bits with a norm a token, which lie in the rows of the keys';
  if (g.model.scoreCap !== undefined) return 'takes scores without a cap';
  const needed = Math.max(leastMiddleBytes(g), othersBytes(g)) + behindBytes(g);
  const limit = sharedLimit(target);
  return needed > limit ? `needs ${needed} bytes of shared memory, a block has ${limit}` : undefined;
};
