import { defineStage, oneOf } from '../stage.js';
import { scoreConstants } from './attendPlan.js';
import { reads, sequenceRecord, tokenWeights, valueWeights, writes } from './bindings.js';

/** Most queries that are observed, the last ones; more would cost scratch for every token and tell little. */
export const observedQueries = 32;

/**
 * Attention of the prompt's last queries over the whole prompt, as it is before anything is compressed: what they look
 * at now is what the next queries will look at (Li et al. 2024, "SnapKV"). Tokens whose keys matter to the output count
 * more when the key basis is fitted, and tokens with attention more when the value codebook is.
 */
export const observeStage = defineStage({
  name: 'observe',
  summary: 'Weigh the tokens of the middle by what the last queries of the prompt make of them.',
  tunables: () => ({ tileTokens: oneOf(32, 16) }),
  constraints: [],
  kernels: (g, { tileTokens }) => {
    if (!g.weighted) return [];
    const threads = 256;
    const words = g.headDim / 2;
    // An odd number of words a token, so that the tokens of a tile lie in different banks.
    const tile = { TILE_TOKENS: tileTokens, TOKEN_STRIDE: words + 1 };
    const tileBytes = tileTokens * (words + 1) * 4;
    const window = { OBSERVED_QUERIES: observedQueries };
    const perRow = `${g.heads} heads][observed queries`;
    const perHead = `[middle tokens][${g.kvHeads} KV heads]`;
    const keys = reads('keys', 'u32', `f16 [${g.kvHeads} KV heads][prompt tokens][${g.headDim}], after RoPE`);
    const values = reads('values', 'u32', `f16 [${g.kvHeads} KV heads][prompt tokens][${g.headDim}]`);
    const probabilities = reads('probabilities', 'f32', `[${perRow}][prompt tokens], 0 for tokens out of sight`);
    const outputs = `[${perRow}][${g.headDim}]`;
    return [
      {
        entry: 'observe_scores',
        summary: 'Scores of the observed queries and a tile of prompt tokens, for all query heads of a KV head.',
        bindings: [
          sequenceRecord,
          keys,
          reads(
            'queries',
            'u32',
            `f16 [${g.heads} heads][query tokens][${g.headDim}], the last of the prompt, after RoPE`,
          ),
          writes('scores', 'f32', `[${perRow}][prompt tokens], base-2 exponents`),
        ],
        threads,
        grid: [{ ceilDiv: [{ dimension: 'promptTokens' }, tileTokens] }, g.kvHeads, 1],
        constants: { ...tile, ...window, ...scoreConstants(g) },
        functions: {},
        sharedBytes: { fixed: tileBytes, dynamic: 0 },
      },
      {
        entry: 'observe_softmax',
        summary: 'Turns the scores of one query of one head into probabilities, in place, and takes its output.',
        bindings: [
          sequenceRecord,
          values,
          writes('probabilities', 'f32', `[${perRow}][prompt tokens], scores at first`),
          writes('outputs', 'f32', outputs),
        ],
        threads,
        grid: [observedQueries, g.heads, 1],
        constants: { ...window, SLICES: Math.floor(threads / words) },
        functions: {},
        sharedBytes: { fixed: threads * 3 * 4, dynamic: 0 },
      },
      {
        entry: 'observe_tokens',
        summary: 'Sensitivity and attention of a tile of middle tokens, summed over queries and heads of a KV head.',
        bindings: [
          sequenceRecord,
          values,
          probabilities,
          reads('outputs', 'f32', outputs),
          writes('sensitivities', 'f32', `${perHead}: sums of (probability * |value - output|)^2`),
          writes('masses', 'f32', `${perHead}: sums of probabilities`),
        ],
        threads,
        grid: [{ ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, g.kvHeads, 1],
        constants: { ...tile, ...window, SLICES: threads / tileTokens },
        functions: {},
        sharedBytes: { fixed: tileBytes + threads * 2 * 4, dynamic: 0 },
      },
      {
        entry: 'observe_finish',
        summary: 'Weights of tokens and values, and factors of KV heads, from the sums; one block.',
        bindings: [
          sequenceRecord,
          reads('sensitivities', 'f32', perHead),
          reads('masses', 'f32', perHead),
          writes('token_weights', 'f32', tokenWeights.holds),
          writes('value_weights', 'f32', valueWeights(g).holds),
          writes('head_factors', 'f32', `[${g.kvHeads} KV heads], at most 1`),
        ],
        threads,
        grid: [1, 1, 1],
        constants: {},
        functions: {
          tokenWeight: { name: 'tokenWeight' },
          valueWeight: { name: 'valueWeight' },
          headFactor: { name: 'headFactor' },
        },
        sharedBytes: { fixed: threads * 4, dynamic: 0 },
      },
    ];
  },
});
