import type { ScalarGeometry } from '../geometry.js';
import { type Chosen, defineStage, oneOf, type Target, type Tunable, usesTensorCores } from '../stage.js';
import { type AttendSchedule, attendPlans } from './attendPlan.js';
import { fitsProducts, type ProductSpace, productSchedule, productSpace } from './scalarAttendMma.js';
import { unrotatedSchedule } from './scalarAttendUnrotated.js';
import { pairedKeyFunctions, scalarReadFunctions } from './scalarCodes.js';

type PlainSpace = Readonly<Record<'tileTokens', Tunable>>;
type Space = PlainSpace | ProductSpace;

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** Most threads that share one dot product; more would only move work from the sums to their merging. */
const scoreSlicesLimit = 8;

/** Decodes a tile of keys with one thread a channel, in float32. */
function plainSchedule(g: ScalarGeometry, { tileTokens }: Chosen<PlainSpace>, target: Target): AttendSchedule {
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
    const multiplies = 'products' in tunables && tunables.products === 1;
    const schedule: AttendSchedule = !multiplies
      ? plainSchedule(g, tunables, target)
      : g.keys.unrotated
        ? unrotatedSchedule(g, tunables, target)
        : productSchedule(g, tunables, target);
    return attendPlans(g, target, {
      schedule,
      chunkUnit: 16,
      // Products turn a block's sums back before they are stored.
      spaces: multiplies ? 1 : 2,
      functions: {
        ...scalarReadFunctions(g),
        ...pairedKeyFunctions(g),
      },
    });
  },
});
