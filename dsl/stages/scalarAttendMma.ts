import type { ScalarGeometry, ScalarGroups } from '../geometry.js';
import { levelsOf } from '../levels.js';
import {
  type Chosen,
  type Constraint,
  type KernelPlan,
  oneOf,
  sharedLimit,
  type Target,
  type Tunable,
} from '../stage.js';

/**
 * With tensor cores the choice is between the schedule that takes codes as operands of products (`products` 1), whose
 * warps have rings of staged tiles, and the plain one (`products` 0); each has tunables of its own, and the other's stay
 * at their defaults.
 */
export type ProductSpace = Readonly<Record<'products' | 'warps' | 'stages' | 'tileTokens', Tunable>>;

const warps = oneOf(8, 4, 2, 16);
const stages = oneOf(3, 2, 4);
/** Tokens that a warp takes at a time: about 4 KB, so that two blocks of 8 warps have three such tiles a warp. */
const ringTokens = ({ keys, values }: ScalarGeometry): number => (keys.headWords + values.headWords > 48 ? 16 : 32);

export function productSpace(tileTokens: Tunable): ProductSpace {
  return { products: oneOf(1, 0), warps, stages, tileTokens };
}

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** The value of every code over its scale, as the device computes it. */
function codeValues({ codec, levelChannels, bits }: ScalarGroups): readonly number[] {
  const levels = levelsOf(codec, levelChannels);
  const values = Array.from({ length: 2 ** bits }, (_, code) => codec.device.value(code, (i: number) => levels[i]!));
  return values.map(Math.fround);
}

/** Whether the values of codes rise in equal steps, to float32's precision of the largest. */
function isAffine(values: readonly number[]): boolean {
  const least = values[0]!;
  const step = (values.at(-1)! - least) / (values.length - 1);
  const largest = Math.max(...values.map(Math.abs));
  return step > 0 && values.every((value, code) => Math.abs(least + step * code - value) <= largest * 2 ** -22);
}

/** Whether a half holds every value of a code, times a power of two. */
function fitHalves(values: readonly number[]): boolean {
  const largest = Math.max(...values.map(Math.abs));
  return values.every((value) => {
    // Eleven bits of a number; below 2^-22 of the largest, which comes to about 2^8, a half has fewer.
    const step = 2 ** (Math.floor(Math.log2(Math.max(Math.abs(value), largest * 2 ** -22))) - 10);
    return Number.isInteger(value / step);
  });
}

/** Halves whose sum is a level of the keys. What one leaves of it would shift a score of 40 by a hundredth. */
function keyTableHalves({ keys }: ScalarGeometry): number {
  const values = codeValues(keys);
  return isAffine(values) || fitHalves(values) ? 1 : 2;
}

/** Words of a row of scales of one head. */
const scaleWords = (g: ScalarGeometry, { scaleChannels }: ScalarGroups) =>
  Math.floor((g.headDim / scaleChannels + 1) / 2);

/** Bytes of a warp's staged tile; the template places its parts, and asserts that rings end where they should. */
function tileBytes(g: ScalarGeometry): number {
  const arrays = ({ codec }: ScalarGroups) => (codec.device.offset ? 2 : 1);
  const tokens = ringTokens(g);
  const keyRows = g.keys.scaleTokens === 0 ? 0 : Math.max(1, tokens / g.keys.scaleTokens);
  const valueRows = g.values.scaleTokens === 0 ? 0 : tokens;
  const scales =
    keyRows * scaleWords(g, g.keys) * arrays(g.keys) + valueRows * scaleWords(g, g.values) * arrays(g.values);
  return (tokens * (g.keys.headWords + g.values.headWords) + scales) * 4;
}

/** Bytes of the tables of levels, which keys and values have side by side. */
function tableBytes(g: ScalarGeometry): number {
  const entries = (groups: ScalarGroups) => (isAffine(codeValues(groups)) ? 0 : groups.bits === 3 ? 64 : 256);
  // Where an entry is one level, its word has room for both halves.
  const tables = g.keys.bits === 8 ? 1 : keyTableHalves(g);
  return Math.max(tables * entries(g.keys), entries(g.values)) * 256;
}

/**
 * Tables, the query and the rings, and in their place at the end the merge; behind them slots for exact tokens. The
 * template places these parts, and asserts that they end here.
 */
function sharedBytes(g: ScalarGeometry, { warps, stages }: Chosen<ProductSpace>): number {
  const channels = g.groupSize * g.headDim * 4;
  const query = 16 * (g.headDim + 8) * 2;
  const operands = g.groupSize * 384 + Math.ceil(g.groupSize / 4) * (g.headDim / 8) * 128;
  const middle = tableBytes(g) + channels + operands + query + warps * stages * tileBytes(g);
  const slot = g.groupSize * (g.headDim + 2) * 4;
  const others = roundUp(2 * warps * slot, 16) + 2 * query + channels;
  const exact = Math.min(warps, Math.ceil(g.scheme.sinks / 16) + Math.ceil(g.scheme.window / 16));
  return roundUp(Math.max(middle, others), slot) + exact * slot;
}

/** Products of codes, as subnormal halves, with queries and weights. */
export function productSchedule(
  g: ScalarGeometry,
  tunables: Chosen<ProductSpace>,
  target: Target,
): Pick<KernelPlan, 'threads' | 'blocksPerMultiprocessor' | 'constants' | 'sharedBytes' | 'template'> {
  const dynamic = sharedBytes(g, tunables);
  const [keys, values] = [codeValues(g.keys), codeValues(g.values)];
  const flag = (holds: boolean) => (holds ? 1 : 0);
  return {
    threads: tunables.warps * 32,
    // Threads have 128 registers where two blocks have room, else what they ask for.
    blocksPerMultiprocessor: tunables.warps <= 8 && 2 * (dynamic + 1024) <= sharedLimit(target) + 1024 ? 2 : 1,
    constants: {
      WARPS: tunables.warps,
      STAGES: tunables.stages,
      TILE_TOKENS: ringTokens(g),
      KEY_AFFINE: flag(isAffine(keys)),
      KEY_CENTERED: flag(isAffine(keys) && keys[0] !== 0),
      KEY_TABLE_HALVES: keyTableHalves(g),
      KEY_FOLDED: flag(g.keys.scaleTokens > 1),
      VALUE_AFFINE: flag(isAffine(values)),
      VALUE_CENTERED: flag(isAffine(values) && values[0] !== 0),
      PASS_TILES: Math.min(g.headDim / 16, 4),
      SHARED_BYTES: dynamic,
    },
    sharedBytes: { fixed: 0, dynamic },
    template: 'scalar_attend_mma',
  };
}

/** What the schedule does not serve; the plain one does. */
export const fitsProducts: Constraint<ProductSpace, ScalarGeometry> = (g, tunables) => {
  if (tunables.products === 0) {
    for (const [name, { values }] of Object.entries({ warps, stages })) {
      const chosen = tunables[name as 'warps' | 'stages'];
      if (chosen !== values[0]) return `${name} = ${chosen} is for the other schedule (products = 1)`;
    }
    return undefined;
  }
  if (g.groupSize > 16) return `takes 16 query heads a KV head at most, not ${g.groupSize}`;
  if (g.keys.unrotated) return 'takes keys after RoPE';
  if (g.keys.outlierCap + g.values.outlierCap > 0) return 'takes keys and values without outliers';
  // Rows are dealt out by bits of the places of their pieces, and a head's scales begin at whole words.
  if ((g.headDim & (g.headDim - 1)) !== 0) return `takes heads of 64, 128 or 256 channels, not ${g.headDim}`;
  const keyUnit = g.keys.bits === 3 ? 128 : 64;
  if (g.headDim % keyUnit !== 0) {
    return `takes ${g.keys.bits}-bit keys in heads of a multiple of ${keyUnit} channels, not ${g.headDim}`;
  }
  const valueUnit = g.values.bits === 3 ? 128 : 64;
  if (g.headDim % valueUnit !== 0) {
    return `takes ${g.values.bits}-bit values in heads of a multiple of ${valueUnit} channels, not ${g.headDim}`;
  }
  const { scaleTokens, scaleChannels, turned } = g.keys;
  if (scaleTokens === 1 && scaleChannels !== g.headDim) {
    return `takes one scale a token and head for keys, not one for ${scaleChannels} channels`;
  }
  if (scaleTokens > 1 && scaleChannels !== 1) {
    return `takes a scale a channel where tokens share it, not one for ${scaleChannels} channels`;
  }
  if (scaleTokens > 1 && turned) return 'takes scales that some tokens share for keys that are not transformed';
  if (g.values.scaleTokens > 1) return "takes scales of values that are a token's own, or all of the prompt's";
  const least = valueUnit / 2;
  if (g.values.scaleTokens === 1 && g.values.scaleChannels % least !== 0) {
    return `takes a scale for ${least} channels of a value or more, not ${g.values.scaleChannels}`;
  }
  return undefined;
};
