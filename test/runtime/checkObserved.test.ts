import { describe, expect, test } from 'vitest';
import { geometryOf } from '../../dsl/geometry.js';
import { shardPlus } from '../../dsl/index.js';
import { modelFrom } from '../../dsl/model.js';
import { observedQueries } from '../../dsl/stages/observe.js';
import { emptyTensor, type HeadTensor, lastQueries, observe, observedWeights } from '../../runtime/reference/index.js';
import { checkObserved, type ObservedEvidence } from '../../runtime/verify/checkObserved.js';
import { halfBits, halfValues, type Kind, kinds, numbers } from '../../runtime/verify/draws.js';
import { Judge } from '../../runtime/verify/judge.js';

const model = modelFrom({
  model_type: 'llama',
  hidden_size: 64,
  num_hidden_layers: 1,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 1024,
});
const g = geometryOf(shardPlus, model);
const tokens = 60;
const [firstToken, middle] = [4, 40];
const rule = { scale: model.scoreScale };

interface Drawn {
  readonly kind: Kind;
  readonly seed: number;
  readonly factor?: number;
}

function draw(heads: number, count: number, { factor = 1, ...data }: Drawn): HeadTensor {
  const given = halfBits(numbers(data, heads * count, g.headDim).map((x) => x * factor));
  return { ...emptyTensor(heads, count, g.headDim), data: halfValues(given) };
}

/** A prompt of a kind, and what float64 makes of it, as float32. */
function setting(kind: Kind, factor = 1) {
  const prompt = { keys: draw(2, tokens, { kind, seed: 1 }), values: draw(2, tokens, { kind, seed: 2 }) };
  const queries = draw(4, 40, { kind, seed: 3, factor });
  const last = lastQueries(queries, observedQueries);
  const exact = observedWeights(observe({ ...prompt, queries: last }, rule, firstToken, middle));
  const evidence: ObservedEvidence = {
    queries,
    tokenWeights: Float32Array.from(exact.tokens),
    headFactors: Float32Array.from(exact.heads),
  };
  return { evidence, judged: (change: Partial<ObservedEvidence> = {}) => judged(prompt, { ...evidence, ...change }) };
}

function judged(prompt: { readonly keys: HeadTensor; readonly values: HeadTensor }, evidence: ObservedEvidence): Judge {
  const judge = new Judge();
  checkObserved(g, { ...prompt, firstToken, middle, rule }, evidence, judge);
  return judge;
}

/** Every kind as it is, and scores of which float32 knows too little. */
const settings = [...kinds.map((kind) => [kind, 1] as const), ['normal', 100] as const];

describe.each(settings)('what a prompt of the kind "%s" is observed to be, queries times %i', (kind, factor) => {
  const { evidence, judged: judge } = setting(kind, factor);

  test('passes if it is what float64 finds, and what cannot be held to that is counted', () => {
    const { failures, skipped } = judge();
    expect(failures).toEqual([]);
    expect(skipped.length).toBe(factor > 1 ? 2 : 0);
  });

  test('fails if it is nonsense', () => {
    const failed = (change: Partial<ObservedEvidence>) => judge(change).failures.length > 0;
    const { tokenWeights, headFactors } = evidence;
    expect(failed({ tokenWeights: tokenWeights.map(() => 1e6) })).toBe(true);
    expect(failed({ tokenWeights: tokenWeights.map(() => Number.NaN) })).toBe(true);
    expect(failed({ tokenWeights: tokenWeights.map((_, token) => (token === 0 ? middle : 0)) })).toBe(true);
    expect(failed({ headFactors: headFactors.map(() => 1e6) })).toBe(true);
    expect(failed({ headFactors: headFactors.map(() => 0) })).toBe(true);
    expect(failed({ headFactors: headFactors.map((_, head) => 1 - 2 * head) })).toBe(true);
  });
});

test("weights that are another prompt's fail, or are counted as not held", () => {
  for (const [kind, factor] of settings) {
    const { evidence, judged: judge } = setting(kind, factor);
    const shifted = evidence.tokenWeights.map((_, token) => evidence.tokenWeights[(token + 1) % middle]!);
    const { failures, skipped } = judge({ tokenWeights: shifted });
    const alike = new Set(evidence.tokenWeights).size === 1;
    if (!alike) expect(failures.length + skipped.length, kind).toBeGreaterThan(0);
  }
});
