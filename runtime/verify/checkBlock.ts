import type { ScalarGroups } from '../../dsl/geometry.js';
import { levelsOf } from '../../dsl/levels.js';
import { rangeOf, toHalf } from '../reference/index.js';
import { outside, pastMidpoint } from './codeErrors.js';
import { halfStep } from './judge.js';

/** The numbers that share a scale, as float64 has them, and what the kernels stored of them. */
export interface BlockEvidence {
  readonly x: Float64Array;
  /** What float32 may lose of each. */
  readonly slack: Float64Array;
  readonly codes: Uint8Array;
  readonly scale: number;
  /** Zero where the codec has none. */
  readonly offset: number;
  /** What the codes stand for, over the scale. */
  readonly values: Float64Array;
}

/** Errors of one block; all zero where it is as it must be. */
export interface BlockErrors {
  /** What the codec's own function gave that cannot be stored. */
  readonly refused: { readonly what: 'offset' | 'scale'; readonly given: number } | undefined;
  /** Steps of float16 away from what the codec may give. */
  readonly offset: number;
  readonly scale: number;
  /** From what the code stands for to what those do that the codec may give, over the scale. */
  readonly code: { readonly error: number; readonly index: number };
  /** How far past the midpoint to a nearer value, over their distance. */
  readonly nearest: { readonly error: number; readonly index: number };
}

/** One rounding of float32, over the result. */
const rounding = 2 ** -24;
/** Of a quotient, a product with it and a midpoint, on any device (WebGPU's division is within 2.5 units of 2^-23). */
const quotientRounding = 5e-7;

/**
 * Holds one block to the numbers it came from: offset and scale to the codec's own functions in Node, to the last bit of
 * float16 as far as float32 decides it; codes to the codec's own function for the scale that was stored, and those of a
 * codec of kvforge to the nearest value too.
 */
export function blockErrors({ codec, levelChannels, trim }: ScalarGroups, block: BlockEvidence): BlockErrors {
  const { device, source } = codec;
  const { offset, values } = block;
  const offsets = device.offset ? offsetsOf(device.offset, block, trim) : undefined;
  const scales = scalesOf(device.scale, trim > 0 ? clampedTo(block, trim) : block);
  // Kernels take off what the codec gave, and readers add what was stored: the two have to be one number.
  const refusedOffset = offsets?.find((given) => !Number.isFinite(given) || toHalf(given) !== given);
  const refusedScale = scales.find((given) => !(given >= 0 && given < Number.POSITIVE_INFINITY));
  const refused =
    refusedOffset !== undefined
      ? ({ what: 'offset', given: refusedOffset } as const)
      : refusedScale !== undefined
        ? ({ what: 'scale', given: refusedScale } as const)
        : undefined;

  let code = { error: 0, index: -1 };
  let nearest = { error: 0, index: -1 };
  const worse = (error: number, than: number) => !(error <= than);
  const levels = levelsOf(codec, levelChannels);
  const own = (quotient: number) => values[device.code(quotient, (index) => levels[index]!, codec.bits)]!;
  for (const [index, taken] of block.codes.entries()) {
    const { y, lost } = restOf(block, index);
    const quotient = block.scale > 0 ? y / block.scale : 0;
    const unsure = (block.scale > 0 ? lost / block.scale : 0) + quotientRounding * Math.abs(quotient);
    const given = [quotient - unsure, quotient, quotient + unsure].map(own);
    // What lies between is what a number between is given.
    const stands = values[taken] ?? Number.NaN;
    const away = outside(stands, given);
    if (worse(away, code.error)) code = { error: finite(away), index };
    // Beyond its scale, by more than that was rounded, a number has no nearest value that a codec must take.
    if (source !== undefined || Math.abs(quotient) > 1 + 2 ** -10) continue;
    const past = pastMidpoint(stands, quotient, values, unsure);
    if (worse(past, nearest.error)) nearest = { error: finite(past), index };
  }
  return {
    refused,
    offset: offsets ? stepsAway(offset, offsets) : 0,
    scale: stepsAway(block.scale, scales),
    code,
    nearest,
  };
}

const finite = (error: number) => (Number.isNaN(error) ? Number.POSITIVE_INFINITY : error);

/** What the offset may be: ends that float32 sees anywhere within their slack. */
function offsetsOf(
  offset: NonNullable<ScalarGroups['codec']['device']['offset']>,
  { x, slack }: BlockEvidence,
  trim: number,
): readonly number[] {
  const ends = [-1, 0, 1].map((up) =>
    rangeOf(
      x.map((number, i) => number + up * slack[i]!),
      trim,
    ),
  );
  return ends.flatMap(({ least }) => ends.map(({ greatest }) => offset(least, greatest)));
}

/** The block as its scale sees it: numbers beyond the range are its ends, which may be as unsure as any of them. */
function clampedTo(block: BlockEvidence, trim: number): BlockEvidence {
  const { least, greatest } = rangeOf(block.x, trim);
  const unsure = block.slack.reduce((most, slack) => Math.max(most, slack), 0);
  return {
    ...block,
    x: block.x.map((number) => Math.min(Math.max(number, least), greatest)),
    slack: block.slack.map((slack, i) => (block.x[i]! > least && block.x[i]! < greatest ? slack : unsure)),
  };
}

/** A number less the offset, and what float32 may lose of it: nothing where it has the number itself, as all devices round a difference alike. */
function restOf({ x, slack, offset }: BlockEvidence, index: number): { readonly y: number; readonly lost: number } {
  const y = Math.fround(x[index]! - offset);
  const unsure = slack[index]!;
  return { y, lost: unsure > 0 ? unsure + rounding * Math.abs(y) : 0 };
}

/** What the scale may be: of magnitudes as float32 has them, all of them a little less, and all a little more. */
function scalesOf(scale: ScalarGroups['codec']['device']['scale'], block: BlockEvidence): readonly number[] {
  const rest = Array.from(block.x, (_, index) => restOf(block, index));
  return [-1, 0, 1].map((up) => {
    const magnitudes = rest.map(({ y, lost }) => Math.max(0, Math.abs(y) + up * lost));
    const largest = Math.max(...magnitudes);
    const sum = magnitudes.reduce((total, y) => total + (largest > 0 ? (y / largest) ** 2 : 0), 0);
    // Every term of a sum may be rounded once more than the one before it.
    return scale(sum * (1 + up * rest.length * rounding), largest);
  });
}

/** Steps of float16 from `stored` to the range of what was given; devices may round subnormal halves as they like. */
function stepsAway(stored: number, given: readonly number[]): number {
  const allowed = given.map(toHalf);
  const [low, high] = [Math.min(...allowed), Math.max(...allowed)];
  const away = stored < low ? low - stored : stored > high ? stored - high : stored >= low ? 0 : Number.NaN;
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const steps = away / halfStep(largest);
  return largest < 2 ** -14 && steps <= 1 ? 0 : finite(steps);
}
