import { checkObject } from '../cache/checkInput.js';
import { checkKept } from '../cache/evictable.js';
import { totalTokens } from '../cache/lengths.js';
import { evictionBlocks, type KvCache, type TokenWeightsOptions } from '../cache.js';
import type { SequenceLengths } from '../record.js';
import { type CachePolicy, tokensOf } from './policy.js';

/**
 * Holds a sequence to a policy: adds up the attention that its tokens are given, and evicts when it is told to. Between its
 * calls the sequence may grow. After a prompt, a `crop`, or a `fork` or `reorder` that gives it other tokens, what was
 * observed is of others: open another evictor.
 *
 * @example
 * const policy = heavyHitters({ budget: 32, recent: 96 });
 * const own = await LoadedKernels.load(device, await generate(int8, model, defaultTargets.cuda));
 * const scalar = KvCache.open(own, { sequences: 1, tokens: 256, generated: 64 });
 * await scalar.prefill(0, { keys, values, tokens: 256 });
 * const evictor = new Evictor(scalar, 0, policy);
 * await evictor.observe(query);
 * const kept = await evictor.evict();
 * kept.length; // 64
 * (await scalar.lengths(0)).middleTokens; // 64
 * await scalar.release();
 */
export class Evictor {
  readonly #cache: KvCache;
  readonly #sequence: number;
  readonly #policy: CachePolicy;
  /** Of the tokens held when they were last asked for; those that came since have none. */
  #weights = new Float64Array(0);

  /** @throws KvforgeError `wrong-use` without a cache or a policy */
  constructor(cache: KvCache, sequence: number, policy: CachePolicy) {
    checkObject(cache, 'cache', 'what KvCache.open gives');
    checkObject(policy, 'policy', 'a policy, which has select');
    this.#cache = cache;
    this.#sequence = sequence;
    this.#policy = policy;
  }

  /**
   * Adds what query tokens make of the tokens that the sequence holds. It decodes keys, so it is for every so many steps;
   * policies that ask for no weights need none.
   *
   * @param query f16 bits [queries][heads][head dim], after RoPE: of the last tokens that the sequence holds
   * @throws KvforgeError `invalid-input` as `KvCache.tokenWeights` does
   */
  async observe(query: Uint16Array, options?: TokenWeightsOptions): Promise<void> {
    const { weights, tokens } = await this.#cache.tokenWeights(this.#sequence, query, options);
    const sums = this.#weightsOf(tokens);
    for (const [at, weight] of weights.entries()) sums[at % tokens]! += weight;
    this.#weights = sums;
  }

  /**
   * Evicts what the policy does not keep.
   *
   * @returns the tokens of the middle and of the stream that were kept, by their numbers before
   * @throws KvforgeError `wrong-use` where the policy names what is no such token, and as `KvCache.keep` does
   */
  async evict(): Promise<readonly number[]> {
    let kept: readonly number[] = [];
    let all: readonly number[] = [];
    let weights = this.#weights;
    await this.#cache.keep(this.#sequence, (lengths) => {
      const tokens = totalTokens(lengths);
      weights = this.#weightsOf(tokens);
      const blocks = evictionBlocks(this.#cache.geometry, lengths);
      const chosen = new Set(
        checkKept(this.#policy.select({ lengths, tokens, weights, blocks }), this.#sequence, lengths),
      );
      kept = blocks
        .map(tokensOf)
        .filter((block) => block.some((token) => chosen.has(token)))
        .flat();
      all = withExact(kept, lengths);
      return kept;
    });
    this.#weights = Float64Array.from(all, (token) => weights[token]!);
    return kept;
  }

  /** The sums so far for as many tokens. */
  #weightsOf(tokens: number): Float64Array<ArrayBuffer> {
    const sums = new Float64Array(tokens);
    sums.set(this.#weights.subarray(0, tokens));
    return sums;
  }
}

/** What stays with the tokens of middle and stream: sinks and window. */
function withExact(kept: readonly number[], lengths: SequenceLengths): readonly number[] {
  const { sinkTokens, middleTokens, streamTokens, windowTokens } = lengths;
  const windowStart = sinkTokens + middleTokens + streamTokens;
  const window = tokensOf({ first: windowStart, end: windowStart + windowTokens });
  return [...tokensOf({ first: 0, end: sinkTokens }), ...kept, ...window];
}
