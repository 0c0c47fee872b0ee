import type { ScalarGeometry, ScalarGroups } from '../geometry.js';
import { type Chosen, type Constraint, sharedLimit, type Target } from '../stage.js';
import type { AttendSchedule } from './attendPlan.js';
import type { ProductSpace } from './scalarAttendMma.js';

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** Bytes of 16 tokens that a warp stages; the template places their parts, and asserts that rings end where they should. */
function tileBytes({ keys, values }: ScalarGeometry): number {
  const words = ({ headWords, outlierCap }: ScalarGroups) => headWords + outlierCap;
  return 16 * (words(keys) + words(values) + (values.codec.device.offset ? 2 : 1)) * 4;
}

/**
 * The query, its operands, what outliers add and the rings, and in their place at the end the merge; behind them slots for
 * exact tokens, and tables from a multiple of their size on. The template places these parts, and asserts that they end here.
 */
function sharedBytes(g: ScalarGeometry, { warps, stages }: Chosen<ProductSpace>): number {
  const channels = g.groupSize * g.headDim * 4;
  const query = 16 * (g.headDim + 8) * 2;
  const operands = 2 * Math.ceil(g.groupSize / 4) * (g.headDim / 32) * (12 * 128 + 32);
  const outliers = (g.keys.outlierCap > 0 ? g.groupSize * 64 : 0) + (g.values.outlierCap > 0 ? g.headDim * 32 : 0);
  const scales = g.headDim * 8 + warps * 256;
  const turned = g.keys.outlierCap > 0 ? 2 * channels : 0;
  const middle = channels + scales + turned + operands + query + warps * (outliers + stages * tileBytes(g));
  const slot = g.groupSize * (g.headDim + 2) * 4;
  const others = roundUp(2 * warps * slot, 16) + 2 * query + channels;
  const exact = Math.min(warps, Math.ceil(g.scheme.sinks / 16) + Math.ceil(g.scheme.window / 16));
  const table = 4 ** Math.max(g.keys.bits, g.values.bits) * 256;
  // A block may not use the first of its shared memory: 1 KB at most.
  return roundUp(roundUp(Math.max(middle, others), slot) + exact * slot + 1024, table) + table;
}

/** Products of levels, rotated within a tile, with the query turned to the tile. */
export function unrotatedSchedule(g: ScalarGeometry, tunables: Chosen<ProductSpace>, target: Target): AttendSchedule {
  const dynamic = sharedBytes(g, tunables);
  const fitsTwice = 2 * (dynamic + 1024) <= sharedLimit(target) + 1024;
  return {
    threads: tunables.warps * 32,
    // Threads have 128 registers where two blocks have room, else what they ask for.
    blocksPerMultiprocessor: tunables.warps <= 8 && fitsTwice ? 2 : 1,
    constants: {
      WARPS: tunables.warps,
      STAGES: tunables.stages,
      PASS_TILES: Math.min(g.headDim / 16, 4),
      SHARED_BYTES: dynamic,
    },
    sharedBytes: { fixed: 0, dynamic },
    template: 'scalar_attend_unrotated',
  };
}

/** What the schedule does not serve of keys that are coded before RoPE; the plain one does. */
export const fitsUnrotated: Constraint<ProductSpace, ScalarGeometry> = ({ keys, values, ...g }) => {
  if (g.groupSize > 8) return `takes 8 query heads a KV head at most, not ${g.groupSize}`;
  if (g.headDim !== 64 && g.headDim !== 128) return `takes heads of 64 or 128 channels, not ${g.headDim}`;
  if (g.model.rope.pairing !== 'half' || g.rotaryPairs !== g.pairs) {
    return 'takes RoPE over all channels, in pairs half a head apart';
  }
  for (const [name, { bits }] of Object.entries({ keys, values })) {
    if (bits > 4) return `takes ${name} of 4 bits at most, not ${bits}`;
  }
  if (keys.scaleTokens !== 0 || keys.scaleChannels !== 1) return "takes a scale a channel for all of a prompt's keys";
  if (values.scaleTokens !== 1 || values.scaleChannels !== g.headDim)
    return 'takes one scale a token and head for values';
  return undefined;
};
