import type { CacheGeometry } from '../geometry.js';
import { defineStage, oneOf, type Tunable } from '../stage.js';
import { scoreConstants } from './attendPlan.js';
import { reads, sequenceRecord, writes } from './bindings.js';

/** Words of the call: query tokens, and tokens that the sequence holds after the last of them. */
export const massCallWords = 2;

/**
 * Attention mass of tokens: what query tokens make of every token that a sequence holds, by which policies choose whom to
 * evict. Keys are decoded ones, so that it serves every scheme, and costs a pass over decoded keys: a policy asks every so
 * many tokens, not in each step.
 */
export const massStage = defineStage<Readonly<Record<'tileTokens', Tunable>>, CacheGeometry>({
  name: 'mass',
  summary: 'Sum the softmax weights that query tokens give to every token of a sequence.',
  // Few where a token is a long latent.
  tunables: () => ({ tileTokens: oneOf(32, 16, 8) }),
  constraints: [],
  kernels: (g, { tileTokens }) => {
    const threads = 256;
    // An odd number of words a token, so that the tokens of a tile lie in different banks.
    const stride = g.headDim / 2 + 1;
    const call = reads('call', 'u32', '[query tokens, tokens held after the last of them]');
    const scores = `[${g.heads} heads][query tokens][tokens], base-2 exponents`;
    return [
      {
        entry: 'mass_scores',
        summary: 'Scores of the query tokens and a tile of decoded tokens, for all query heads of a KV head.',
        bindings: [
          sequenceRecord,
          call,
          reads('keys', 'u32', `f16 [${g.kvHeads} KV heads][tokens][${g.headDim}], after RoPE`),
          reads('query', 'u32', `f16 [query tokens][${g.heads} heads][${g.headDim}], after RoPE`),
          writes('scores', 'f32', scores),
        ],
        threads,
        grid: [{ ceilDiv: [{ dimension: 'tokens' }, tileTokens] }, g.kvHeads, 1],
        constants: { TILE_TOKENS: tileTokens, TOKEN_STRIDE: stride, ...scoreConstants(g) },
        functions: {},
        sharedBytes: { fixed: tileTokens * stride * 4, dynamic: 0 },
      },
      {
        entry: 'mass_tokens',
        summary: 'Softmax of every row of scores, summed over the query tokens and heads of a KV head; one block each.',
        bindings: [
          sequenceRecord,
          call,
          reads('scores', 'f32', scores),
          writes('masses', 'f32', `[${g.kvHeads} KV heads][tokens]`),
        ],
        threads,
        grid: [g.kvHeads, 1, 1],
        constants: {},
        functions: {},
        sharedBytes: { fixed: threads * 4, dynamic: 0 },
      },
    ];
  },
});
