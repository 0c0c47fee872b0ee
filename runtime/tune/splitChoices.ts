import type { Geometry } from '../../dsl/geometry.js';
import { defaultSplits } from '../attendLaunches.js';
import type { ShapeClass } from './shapeClass.js';

/** A split of fewer tokens than this leaves most of a block idle. */
const leastTokens = 64;
const mostSplits = 1024;

/**
 * Numbers of splits worth trying for a shape: what a cache takes without tuning, powers of two, and those whose blocks
 * come in whole waves of the device's multiprocessors.
 */
export function splitChoices(
  g: Geometry,
  { sequences, tokens }: ShapeClass,
  multiprocessors?: number,
): readonly number[] {
  const most = Math.min(mostSplits, Math.max(1, Math.ceil(tokens / leastTokens)));
  const rows = sequences * g.kvHeads;
  const powers = Array.from({ length: 8 }, (_, exponent) => 2 ** exponent);
  const waves =
    multiprocessors === undefined ? [] : [1, 2, 3, 4].map((wave) => Math.floor((wave * multiprocessors) / rows));
  const others = [...powers, ...waves].filter((splits) => splits >= 1 && splits <= most);
  return [...new Set([defaultSplits(g, sequences, tokens, multiprocessors), ...others.sort((a, b) => a - b)])];
}
