import type { TokenBlock } from '../cache.js';
import type { SequenceLengths } from '../record.js';

/** What a sequence holds, as a policy sees it. Tokens are counted as `KvCache.decompress` orders them. */
export interface HeldTokens {
  readonly lengths: SequenceLengths;
  /** Of all segments. */
  readonly tokens: number;
  /**
   * Attention that each token was given by the queries that were observed while it was held, summed over the heads of the
   * layer, [tokens]; zero for tokens that came after the last of them.
   */
  readonly weights: Float64Array;
  /** What can be evicted: tokens of the middle and of the stream, and which of them only together. */
  readonly blocks: readonly TokenBlock[];
}

/**
 * Chooses what a sequence keeps. Sinks and window stay whatever it says, and a block stays whole when one of its tokens is
 * chosen. A policy has no state: what was observed is the evictor's to keep.
 *
 * @example
 * const everySecond: CachePolicy = {
 *   select: ({ blocks }) => blocks.filter((_, index) => index % 2 === 0).map(({ first }) => first),
 * };
 */
export interface CachePolicy {
  /** Tokens of the middle and of the stream that are to be kept, ascending. */
  select(held: HeldTokens): readonly number[];
}

/** All tokens of a block. */
export function tokensOf({ first, end }: TokenBlock): readonly number[] {
  return Array.from({ length: end - first }, (_, index) => first + index);
}
