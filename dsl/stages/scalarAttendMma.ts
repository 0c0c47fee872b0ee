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
import { fitsUnrotated } from './scalarAttendUnrotated.js';

/**
 * With tensor cores the choice is between the schedule that takes codes as operands of products (`products` 1), whose
 * warps have rings of staged tiles, and the plain one (`products` 0); each has tunables of its own, and the other's stay
 * at their defaults.
 */
export type ProductSpace = Readonly<Record<'products' | 'warps' | 'stages' | 'tileTokens', Tunable>>;

const warps = oneOf(8, 4, 2, 16, 12);
const stages = oneOf(3, 2, 4);
/** Tokens that a warp takes at a time: about 4 KB, so that two blocks of 8 warps have three such tiles a warp. */
const ringTokens = ({ keys, values }: ScalarGeometry): number => (keys.headWords + values.headWords > 48 ? 16 : 32);

export function productSpace(tileTokens: Tunable): ProductSpace {
  return { products: oneOf(1, 0), warps, stages, tileTokens };
}

const roundUp = (value: number, unit: number) => Math.ceil(value / unit) * unit;

type Coded = Pick<ScalarGroups, 'codec' | 'levelChannels' | 'bits'>;

/** The value of every code over its scale, as the device computes it. */
function codeValues({ codec, levelChannels, bits }: Coded): readonly number[] {
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

/** A number from 1 to 2 times a power of two, rounded to the bits of a half. */
function roundedToHalf(value: number): number {
  const step = 2 ** (Math.floor(Math.log2(value)) - 10);
  return Math.round(value / step) * step;
}

/** What a table's levels are times, and the deviation that halves then leave of them, relative to theirs from zero. */
interface TableFit {
  readonly factor: number;
  readonly deviation: number;
}

const fits = new WeakMap<readonly number[], TableFit>();

/**
 * The factor, from 1/2 to 2, at which halves hold a table's levels best. Each level is exact at 1024 factors; those are tried.
 * There are few levels in a table of 4 bits, and so a factor that suits them all; with 8 bits there are too many for one.
 */
function fitTable(groups: Coded): TableFit {
  const levels = levelsOf(groups.codec, groups.levelChannels);
  const known = fits.get(levels);
  if (known) return known;
  const sizes = [...new Set(codeValues(groups).map(Math.abs))].filter((size) => size > 0);
  const squares = (factor: number, most: number) => {
    let sum = 0;
    for (const size of sizes) {
      sum += (roundedToHalf(size * factor) / factor - size) ** 2;
      if (sum >= most) break;
    }
    return sum;
  };
  let [factor, least] = [1, squares(1, Number.POSITIVE_INFINITY)];
  for (const size of groups.bits === 8 ? [] : sizes) {
    const unit = 1 / 1024 / (size * 2 ** -Math.floor(Math.log2(size)));
    for (let n = 1024; n < 2048 && least > 0; n++) {
      const sum = squares(n * unit, least);
      if (sum < least) [factor, least] = [n * unit, sum];
    }
  }
  const fit = {
    factor: Math.fround(factor),
    deviation: Math.sqrt(least / sizes.reduce((all, size) => all + size * size, 0)),
  };
  fits.set(levels, fit);
  return fit;
}

/** What a half without its sign stands for, where its bits are those of a finite number. */
function halfOf(bits: number): number {
  const exponent = bits >> 10;
  const mantissa = bits & 1023;
  return exponent === 0 ? mantissa * 2 ** -24 : (1024 + mantissa) * 2 ** (exponent - 25);
}

/**
 * By how many bits codes, a sign before an exponent and a mantissa, are to be widened to be halves, a power of two apart from
 * their values; 0 where they are something else. Codes whose halves would be infinite have to be looked up.
 */
function floatShift({ codec, levelChannels, bits }: Coded): number {
  if (bits !== 8) return 0;
  const values = codeValues({ codec, levelChannels, bits });
  const isWide = (shift: number) => {
    const unit = values[0x3c00 >> shift]!;
    const widened = (code: number) => (code < 128 ? unit : -unit) * halfOf((code & 127) << shift);
    return Number.isInteger(Math.log2(unit)) && values.every((value, code) => value === widened(code));
  };
  return [7].find(isWide) ?? 0;
}

/** Whether the values of codes are looked up: neither do they rise in equal steps, nor are they bytes to be widened. */
const isTable = (groups: Coded): boolean => !isAffine(codeValues(groups)) && floatShift(groups) === 0;

/**
 * Halves whose sum is a level of the keys. What one leaves of a level deviates by up to 2^-12 of it, which would shift a
 * score of 40 by a hundredth; a quarter of that stays within the error that attention may have, 0.28 does not (2.2e-3).
 */
const keyTableHalves = ({ keys }: ScalarGeometry): number =>
  isTable(keys) && fitTable(keys).deviation > 0.25 * 2 ** -12 ? 2 : 1;

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
  const entries = (groups: ScalarGroups) => (isTable(groups) ? (groups.bits === 3 ? 64 : 256) : 0);
  return Math.max(entries(g.keys), entries(g.values)) * 256;
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
      KEY_FLOAT_SHIFT: floatShift(g.keys),
      KEY_TABLE_HALVES: keyTableHalves(g),
      KEY_TABLE_FACTOR: isTable(g.keys) ? fitTable(g.keys).factor : 1,
      KEY_FOLDED: flag(g.keys.scaleTokens > 1),
      VALUE_AFFINE: flag(isAffine(values)),
      VALUE_FLOAT_SHIFT: floatShift(g.values),
      VALUE_TABLE_FACTOR: isTable(g.values) ? fitTable(g.values).factor : 1,
      VALUE_CENTERED: flag(isAffine(values) && values[0] !== 0),
      PASS_TILES: Math.min(g.headDim / 16, 4),
      SHARED_BYTES: dynamic,
    },
    sharedBytes: { fixed: 0, dynamic },
    template: 'scalar_attend_mma',
  };
}

/** What the schedule does not serve; the plain one does. */
export const fitsProducts: Constraint<ProductSpace, ScalarGeometry> = (g, tunables, target) => {
  if (tunables.products === 0) {
    for (const [name, { values }] of Object.entries({ warps, stages })) {
      const chosen = tunables[name as 'warps' | 'stages'];
      if (chosen !== values[0]) return `${name} = ${chosen} is for the other schedule (products = 1)`;
    }
    return undefined;
  }
  if (g.keys.unrotated) return fitsUnrotated(g, tunables, target);
  if (g.groupSize > 16) return `takes 16 query heads a KV head at most, not ${g.groupSize}`;
  if (g.keys.polar) return 'takes keys by channel, not as radius and angle';
  if (g.keys.projection.length > 0) return 'takes keys without the signs of what their codes leave';
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
    // Steps that are equal begin at a value of their own, times the sum of a group's channels; offsets come on top.
    if (g.keys.codec.device.offset || isAffine(codeValues(g.keys))) {
      return `takes one scale a token and head for keys in equal steps, not one for ${scaleChannels} channels`;
    }
    // A load of a row has four lanes' words.
    if (g.keys.bits === 3 || (scaleChannels * g.keys.bits) % 128 !== 0) {
      return `takes scales for 128 bits of a key or a multiple, not for ${scaleChannels} channels`;
    }
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
