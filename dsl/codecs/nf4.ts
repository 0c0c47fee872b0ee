import erfinv from '@stdlib/math-base-special-erfinv';
import type { ScalarCodec } from '../codec.js';
import { table } from './levelTable.js';

/**
 * The 16 levels of NormalFloat (QLoRA, Dettmers et al. 2023, Appendix E), over the largest magnitude: zero, seven
 * quantiles of N(0, 1) below it and eight above, each side spread evenly over probabilities from 1/2 to the same extreme,
 * all over the quantile there. One level is exactly 0 and the first and the last are -1 and 1.
 *
 * @example
 * nf4().levels(64)[7]; // 0
 */
export function nf4(): ScalarCodec {
  return table({ name: 'nf4', levels: normalFloatLevels });
}

/** The quantile of N(0, 1) at a probability between 0 and 1. */
const quantile = (probability: number) => Math.SQRT2 * erfinv(2 * probability - 1);

/**
 * Half-way between where the extremes of 16 levels would lie if each stood for the middle of 1/16 and of 1/15 of the
 * probability.
 */
const extreme = 1 - (1 / 32 + 1 / 30) / 2;

/** `count` levels from the extreme down to the last one above zero. */
const side = (count: number) =>
  Array.from({ length: count }, (_, i) => quantile(extreme + (i / count) * (0.5 - extreme)) / quantile(extreme));

const normalFloatLevels: readonly number[] = [...side(7).map((level) => -level), 0, ...side(8).reverse()];
