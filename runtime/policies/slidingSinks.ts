import { checkObject, checkWhole } from '../cache/checkInput.js';
import { type CachePolicy, tokensOf } from './policy.js';

/** What `slidingSinks` keeps. */
export interface SlidingSinks {
  /** The newest tokens, which stay; those of the scheme's own window included. */
  readonly window: number;
  /** The first tokens, which stay; those that are the scheme's own sinks included. 4 if left out. */
  readonly sinks?: number;
}

/**
 * The first tokens and the newest, as StreamingLLM keeps them (Xiao et al. 2024, "Efficient Streaming Language Models with
 * Attention Sinks"): the first ones draw attention that has nowhere else to go, and outputs fall apart without them; four are
 * enough. It asks for no weights.
 *
 * StreamingLLM numbers positions anew within the cache, to go on past the positions that a model was trained for. Keys of
 * a cache of kvforge keep their positions, so that this bounds the cache, not the positions.
 *
 * @throws KvforgeError `wrong-use` for a count that is no whole number from 0 to 2^24
 * @example
 * const policy = slidingSinks({ window: 2, sinks: 1 });
 * const lengths = { sinkTokens: 1, middleTokens: 3, streamTokens: 0, windowTokens: 1, windowStart: 0, promptTokens: 5 };
 * const blocks = [{ first: 1, end: 2 }, { first: 2, end: 3 }, { first: 3, end: 4 }];
 * policy.select({ lengths, tokens: 5, weights: new Float64Array(5), blocks }); // [3]
 */
export function slidingSinks(kept: SlidingSinks): CachePolicy {
  checkObject(kept, 'slidingSinks', '{ window, sinks }, sinks optional');
  const { window, sinks = 4 } = kept;
  const hint = 'Give a number of tokens.';
  checkWhole(window, { at: 'window', least: 0, most: 2 ** 24, hint });
  checkWhole(sinks, { at: 'sinks', least: 0, most: 2 ** 24, hint });
  return {
    select: ({ tokens, blocks }) =>
      blocks.filter(({ first, end }) => first < sinks || end > tokens - window).flatMap(tokensOf),
  };
}
