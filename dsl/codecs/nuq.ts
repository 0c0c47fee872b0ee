import erf from '@stdlib/math-base-special-erf';
import erfinv from '@stdlib/math-base-special-erfinv';
import type { ScalarCodec } from '../codec.js';
import { bitsOf, clamp, f16, f32, fromBits, min, u32 } from '../device.js';
import { KvforgeError } from '../errors.js';
import { levelValue, nearestLevel } from './lloydMax.js';

export interface NuqParams {
  readonly bits: 2 | 3 | 4;
  /** Ascending, over half of a block's range; those of a Gaussian if left out. `fitLevels` finds those of a model. */
  readonly levels?: readonly number[];
}

/**
 * Non-uniform levels between the ends of a block's range (KVQuant, Hooper et al. 2024, section 3.2): the offset is the
 * middle of the range, the scale half of it. Levels are data in the tables, so that layers with levels of their own share
 * kernels.
 *
 * @throws KvforgeError `invalid-codec` for levels that are not 2^bits finite numbers in ascending order
 * @example
 * nuq({ bits: 2 }).levels(128).map((level) => level.toFixed(3)); // ['-0.554', '-0.168', '0.168', '0.554']
 */
export function nuq({ bits, levels }: NuqParams): ScalarCodec {
  if (levels !== undefined) checkLevels(bits, levels);
  let found = levels;
  return {
    kind: 'scalar',
    name: 'nuq',
    bits,
    levels: () => {
      found ??= gaussianLevels(bits);
      return found;
    },
    range: [-1, 1],
    device: { offset: middleOfRange, scale: coveringScale, code: nearestLevel, value: levelValue },
  };
}

function checkLevels(bits: number, levels: readonly number[]): void {
  const refuse = (received: string, hint: string): never => {
    const expected = `${2 ** bits} finite numbers, ascending`;
    throw new KvforgeError('invalid-codec', { at: 'nuq.levels', expected, received, hint });
  };
  const hint = 'Give what fitLevels returns for as many bits.';
  if (levels.length !== 2 ** bits) refuse(`${levels.length} numbers`, hint);
  for (const [i, level] of levels.entries()) {
    if (!Number.isFinite(level)) refuse(`${level} at ${i}`, hint);
    // As kernels read them.
    if (i > 0 && !(Math.fround(level) > Math.fround(levels[i - 1]!))) {
      refuse(`${levels[i - 1]} before ${level} at ${i}`, 'Sort them, and name none twice.');
    }
  }
}

/** Where the range of a Gaussian ends that leaves out half a percent at each end, in deviations. */
const end = Math.SQRT2 * erfinv(0.99);

/**
 * The levels of least squared error for a Gaussian between its 0.5 and 99.5 percentiles, over that range: Lloyd's rounds
 * for a table, which end where no level moves by more than 1e-12 (Lloyd 1982; Max 1960).
 */
function gaussianLevels(bits: number): readonly number[] {
  const count = 2 ** bits;
  const cumulative = (z: number) => 0.5 * (1 + erf(z / Math.SQRT2));
  const density = (z: number) => Math.exp(-0.5 * z * z) / Math.sqrt(2 * Math.PI);
  let levels = Array.from({ length: count }, (_, i) => ((2 * i + 1) / count - 1) * end);
  for (let moved = Number.POSITIVE_INFINITY; moved > 1e-12; ) {
    const edges = [-end, ...levels.slice(1).map((level, i) => (level + levels[i]!) / 2), end];
    const next = levels.map((_, i) => {
      const [low, high] = [edges[i]!, edges[i + 1]!];
      return (density(low) - density(high)) / (cumulative(high) - cumulative(low));
    });
    moved = Math.max(...next.map((level, i) => Math.abs(level - levels[i]!)));
    levels = next;
  }
  return levels.map((level) => level / end);
}

/** The middle between the ends of a block as f16, never infinite. */
export function middleOfRange(least: f32, greatest: f32): f32 {
  'device';
  return f32(f16(clamp(least * 0.5 + greatest * 0.5, -65504, 65504)));
}

/** The largest magnitude as f16, rounded up, so that the ends of the range are not beyond it; never infinite. */
export function coveringScale(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  const nearest = f32(f16(min(maxAbs, 65504)));
  // The next f16: one bit more of the ten that it keeps of a float32, and of a subnormal one 2^-24 more.
  const above = nearest < 6.103515625e-5 ? nearest + 5.9604644775390625e-8 : fromBits(u32(bitsOf(nearest) + 0x2000));
  return nearest < maxAbs ? min(above, 65504) : nearest;
}
