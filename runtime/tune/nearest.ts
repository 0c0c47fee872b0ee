import type { ShapeClass } from './shapeClass.js';

/** Blocks that share one row of tokens, as they were best for a shape class. */
export interface TunedSplits extends ShapeClass {
  readonly splits: number;
}

/** How far two shapes are apart: the doublings of the batch and of the tokens together. */
function distance(a: ShapeClass, b: ShapeClass): number {
  return Math.abs(Math.log2(a.sequences / b.sequences)) + Math.abs(Math.log2(a.tokens / b.tokens));
}

/**
 * The class that is nearest to a shape: doublings of the batch and of the tokens count alike. Of classes that are equally
 * near, the one with fewer sequences, then with fewer tokens.
 *
 * @example
 * nearestShape([{ sequences: 1, tokens: 8192 }, { sequences: 16, tokens: 8192 }], { sequences: 3, tokens: 8000 }); // { sequences: 1, tokens: 8192 }
 */
export function nearestShape<Class extends ShapeClass>(
  classes: readonly Class[],
  wanted: ShapeClass,
): Class | undefined {
  const inOrder = [...classes].sort((a, b) => a.sequences - b.sequences || a.tokens - b.tokens);
  let best: Class | undefined;
  for (const each of inOrder) {
    // Logarithms of equal ratios may differ in the last digit.
    if (best === undefined || distance(each, wanted) < distance(best, wanted) - 1e-9) best = each;
  }
  return best;
}

/** Beyond two doublings in all, what was best for a class says little. */
const farthest = 2;

/**
 * The splits that were tuned for the nearest class, where one is within two doublings of the batch and the tokens together;
 * undefined beyond, where the lengths decide.
 *
 * @example
 * tunedSplits([{ sequences: 1, tokens: 8192, splits: 33 }], { sequences: 1, tokens: 9000 }); // 33
 */
export function tunedSplits(tuned: readonly TunedSplits[], wanted: ShapeClass): number | undefined {
  const nearest = nearestShape(tuned, wanted);
  return nearest !== undefined && distance(nearest, wanted) <= farthest ? nearest.splits : undefined;
}
