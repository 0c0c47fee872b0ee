import { type Chosen, defineStage, type FunctionUse, oneOf, type Target, type Tunable } from '../stage.js';
import { rowPositions, type TiltGeometry } from '../tiltGeometry.js';
import { type AttendSchedule, attendPlans } from './attendPlan.js';
import { decompressPlan } from './decompress.js';
import {
  fitsTiltProducts,
  multipliesTilt,
  type TiltProductSpace,
  tiltProductSchedule,
  tiltProductSpace,
} from './tiltAttendWgmma.js';
import { abreastOf } from './tiltCodes.js';
import { pairFunctions } from './unrope.js';

/** What reads the codes of a row, and keys by their pairs. */
export function tiltReadFunctions(g: TiltGeometry): Record<string, FunctionUse> {
  const { groupComponents: components, headDim, values } = g;
  return {
    ...pairFunctions(g),
    rotatePair: { name: 'rotatePair' },
    unrotatePair: { name: 'unrotatePair' },
    signedByte: { name: 'signedByte' },
    midRiseValue: { name: 'midRiseValue' },
    planeByte: { name: 'planeByte', statics: { components } },
    nibbleByte: { name: 'nibbleByte', statics: { components } },
    ...(g.packedValues
      ? {
          valueBit: { name: 'valueBit', statics: { headDim, abreast: abreastOf(headDim) } },
          normPlace: { name: 'normPlace' },
        }
      : {
          valueValue: { name: values.codec.device.value.name, lookups: { levels: 'value_level_at' } },
          valueUnpack: { name: 'unpackField', statics: { bits: values.bits }, lookups: { words: 'value_word_at' } },
        }),
  };
}

type PlainSpace = Readonly<Record<'tileTokens', Tunable>>;
type Space = PlainSpace | TiltProductSpace;

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** Most threads that share one dot product; more would only move work from the sums to their merging. */
const scoreSlicesLimit = 8;

/** One thread a channel and component, in float32. */
function plainSchedule(g: TiltGeometry, { tileTokens }: Chosen<PlainSpace>, target: Target): AttendSchedule {
  const wgsl = target.language === 'wgsl';
  const threads = roundUp(g.headDim, 32);
  /** Scores come as vectors of four tokens. */
  const scoreVectors = (g.groupSize * tileTokens) / 4;
  const slices = Math.min(scoreSlicesLimit, Math.max(1, Math.floor(threads / scoreVectors)));
  /** Components, and then the channels of the mean. */
  const rows = 2 * g.headDim;
  const tile = rows * tileTokens * 4;
  const query = g.groupSize * rows * 4;
  const scores = slices * scoreVectors * 16;
  return {
    threads,
    // With more blocks the compiler spills.
    blocksPerMultiprocessor: 1,
    constants: { TILE_TOKENS: tileTokens, SCORE_SLICES: slices, ...(wgsl ? { TILE_ROWS: rows } : {}) },
    // One word says who finishes a row (CUDA).
    sharedBytes: { fixed: tile + query + scores + (wgsl ? 0 : 4), dynamic: 0 },
    template: 'tilt_attend',
  };
}

/** Attention over sinks, middle, stream and window, in one launch; WGSL merges in a second. */
export const tiltAttendStage = defineStage<Space, TiltGeometry>({
  name: 'attend',
  summary: 'Attention over all segments, split along tokens, merged by log-sum-exp.',
  tunables: (target) => {
    const tileTokens = oneOf(16, 8, 4);
    return multipliesTilt(target) ? tiltProductSpace(tileTokens) : { tileTokens };
  },
  constraints: [(g, tunables, target) => ('products' in tunables ? fitsTiltProducts(g, tunables, target) : undefined)],
  kernels: (g, tunables, target) => {
    if ('products' in tunables && tunables.products === 1) {
      return attendPlans(g, target, {
        schedule: tiltProductSchedule(g, target),
        chunkUnit: rowPositions,
        // Products turn a block's sums back before they are stored.
        spaces: 1,
        functions: pairFunctions(g),
      });
    }
    return attendPlans(g, target, {
      schedule: plainSchedule(g, tunables, target),
      chunkUnit: g.tile,
      functions: tiltReadFunctions(g),
    });
  },
});

/** Rebuilds every token of a sequence as f16, keys after RoPE. */
export const tiltDecompressStage = defineStage<PlainSpace, TiltGeometry>({
  name: 'decompress',
  summary: 'Decode all segments of a sequence to f16.',
  tunables: () => ({ tileTokens: oneOf(8, 16) }),
  constraints: [],
  kernels: (g, { tileTokens }) => [
    decompressPlan(g, tileTokens, {
      constants: {},
      functions: tiltReadFunctions(g),
      sharedBytes: { fixed: 2 * g.headDim * 4, dynamic: 0 },
      template: 'tilt_decompress',
    }),
  ],
});
