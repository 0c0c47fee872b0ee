import { checkObject, checkWhole } from '../cache/checkInput.js';
import { type CachePolicy, tokensOf } from './policy.js';

/** What `heavyHitters` keeps beside the sinks. */
export interface HeavyHitterBudget {
  /** Older tokens that stay, at most: those with most attention. */
  readonly budget: number;
  /** The newest tokens, which stay in any case; those of the scheme's own window included. */
  readonly recent: number;
}

/**
 * Recent tokens, and of the older ones those that drew most attention so far, as H2O keeps them (Zhang et al. 2023, "H2O:
 * Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models"). H2O chooses for every head by itself;
 * here a layer has one choice, by the sum over its heads, since a row of the cache holds a token of all KV heads.
 *
 * Blocks that go together compete by the mean of their tokens. Of blocks with equal means the newer one stays.
 *
 * @throws KvforgeError `wrong-use` for a count that is no whole number from 0 to 2^24
 * @example
 * const policy = heavyHitters({ budget: 1, recent: 1 });
 * const lengths = { sinkTokens: 0, middleTokens: 3, streamTokens: 0, windowTokens: 1, windowStart: 0, promptTokens: 4 };
 * const blocks = [{ first: 0, end: 1 }, { first: 1, end: 2 }, { first: 2, end: 3 }];
 * policy.select({ lengths, tokens: 4, weights: Float64Array.of(0.1, 0.6, 0.2, 0.1), blocks }); // [1]
 */
export function heavyHitters(kept: HeavyHitterBudget): CachePolicy {
  checkObject(kept, 'heavyHitters', '{ budget, recent }');
  const { budget, recent } = kept;
  const hint = 'Give a number of tokens.';
  checkWhole(budget, { at: 'budget', least: 0, most: 2 ** 24, hint });
  checkWhole(recent, { at: 'recent', least: 0, most: 2 ** 24, hint });
  return {
    select: ({ tokens, weights, blocks }) => {
      const isRecent = blocks.map(({ end }) => end > tokens - recent);
      const means = blocks.map(({ first, end }) => {
        return weights.subarray(first, end).reduce((sum, weight) => sum + weight, 0) / (end - first);
      });
      const older = [...blocks.keys()].filter((index) => !isRecent[index]);
      older.sort((a, b) => means[b]! - means[a]! || b - a);
      const chosen = new Set<number>();
      let left = budget;
      for (const index of older) {
        const { first, end } = blocks[index]!;
        if (end - first > left) continue;
        left -= end - first;
        chosen.add(index);
      }
      return blocks.filter((_, index) => isRecent[index] || chosen.has(index)).flatMap(tokensOf);
    },
  };
}
