import type { ScalarCodec } from '../codec.js';
import { KvforgeError } from '../errors.js';
import { levelValue, nearestLevel } from './lloydMax.js';
import { magnitudeScale } from './uniform.js';

export interface TableParams {
  /** Printed in generated text: a letter, then letters, digits, hyphens and underscores, at most 40. */
  readonly name: string;
  /** 4, 8, 16 or 256 numbers, ascending: what the codes stand for, over the largest magnitude of the numbers coded. */
  readonly levels: readonly number[];
}

/** Bits of a code, by the number of levels. */
const widths = new Map<number, ScalarCodec['bits']>([
  [4, 2],
  [8, 3],
  [16, 4],
  [256, 8],
]);

/**
 * A codec of the levels given: the scale is the largest magnitude, the code that of the nearest level, the lower one where
 * two are equally near. Beyond the first and the last level numbers saturate, so that levels within [-1, 1] clip nothing
 * only if they reach both ends.
 *
 * @throws KvforgeError `invalid-codec` for another number of levels; their order is checked where a model is known
 * @example
 * const fourths = table({ name: 'fourths', levels: [-1, -0.25, 0.25, 1] });
 * fourths.bits; // 2
 */
export function table({ name, levels }: TableParams): ScalarCodec {
  const bits = widths.get(levels.length);
  if (bits === undefined) {
    throw new KvforgeError('invalid-codec', {
      at: `${name}.levels`,
      expected: `${[...widths.keys()].join(', ').replace(/, (?=\d+$)/, ' or ')} numbers`,
      received: `${levels.length}`,
      hint: 'A code of 2, 3, 4 or 8 bits names every level.',
    });
  }
  return {
    kind: 'scalar',
    name,
    bits,
    levels: () => levels,
    device: { scale: magnitudeScale, code: nearestLevel, value: levelValue },
  };
}
