import { KvCache } from '../../runtime/cache.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { attentionError, decodeSequence, lastQueries } from '../../runtime/reference/index.js';
import { unpackShare } from '../../runtime/reference/unpackShare.js';
import type { LayerActivations } from '../../runtime/report/activations.js';
import { codeValues } from '../../runtime/verify/codeValues.js';

/**
 * The attention error of queries that prefill has not seen: the prompt ends before the last `judged` of the recorded
 * positions, whose tokens are appended as if they had been generated, and only their queries are judged.
 */
export async function heldOutError(
  kernels: LoadedKernels,
  { tokens, keyBits, valueBits, queryBits, exact, queries, visible }: LayerActivations,
  judged: number,
): Promise<number> {
  const g = kernels.geometry;
  const prompt = tokens - judged;
  const seen = queries.tokens - judged;
  /** Positions first..end of [heads][positions][head dim]. */
  const part = (bits: Uint16Array, heads: number, first: number, end: number) => {
    const row = bits.length / heads;
    const rows = Array.from({ length: heads }, (_, head) =>
      bits.subarray(head * row + first * g.headDim, head * row + end * g.headDim),
    );
    return Uint16Array.from(rows.flatMap((numbers) => [...numbers]));
  };
  const cache = KvCache.open(kernels, { sequences: 1, tokens: prompt, generated: judged });
  try {
    await cache.prefill(0, {
      keys: part(keyBits, g.kvHeads, 0, prompt),
      values: part(valueBits, g.kvHeads, 0, prompt),
      queries: part(queryBits, g.heads, 0, seen),
      tokens: prompt,
    });
    for (let token = prompt; token < tokens; token++) {
      await cache.append(part(keyBits, g.kvHeads, token, token + 1), part(valueBits, g.kvHeads, token, token + 1));
    }
    const [share, lengths] = [await cache.readShare(0), await cache.lengths(0)];
    const decoded = decodeSequence(unpackShare(g, cache.layout, share, lengths, codeValues(g)));
    return attentionError({
      queries: lastQueries(queries, judged),
      exact,
      decoded,
      visible: visible.slice(seen),
    });
  } finally {
    await cache.release();
  }
}
