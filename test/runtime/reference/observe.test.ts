import { expect, test } from 'vitest';
import {
  type HeadTensor,
  lastQueries,
  observe,
  observedProbabilities,
  observedWeights,
} from '../../../runtime/reference/index.js';

const tensor = (heads: number, channels: number, ...data: number[]): HeadTensor => ({
  heads,
  tokens: data.length / heads / channels,
  channels,
  data: Float64Array.from(data),
});

test('the last queries of every head are kept', () => {
  expect([...lastQueries(tensor(2, 1, 1, 2, 3, 4, 5, 6), 2).data]).toEqual([2, 3, 5, 6]);
  expect(lastQueries(tensor(2, 1, 1, 2), 5).tokens).toBe(1);
});

test('a query sees the tokens up to its own, and of these the sliding window', () => {
  const scores = { rows: 2, columns: 4, data: new Float64Array(8) };
  const third = 1 / 3;
  expect([...observedProbabilities(scores, 2).data]).toEqual([third, third, third, 0, 0.25, 0.25, 0.25, 0.25]);
  expect([...observedProbabilities(scores, 2, 2).data]).toEqual([0, 0.5, 0.5, 0, 0, 0, 0.5, 0.5]);
});

test('a token matters by its probability and by what sets its value apart', () => {
  // Two tokens with the probability 1/2 each, values 1 and 3: the output is 2.
  const keys = tensor(1, 1, 0, 0);
  const sums = observe({ keys, values: tensor(1, 1, 1, 3), queries: tensor(1, 1, 5) }, { scale: 1 }, 0, 2);
  expect([...sums.sensitivities]).toEqual([0.25, 0.25]);
  expect([...sums.masses]).toEqual([0.5, 0.5]);
  // The third query head is the first of the second KV head, whose values are alike: nothing is at stake there.
  const two = observe(
    { keys: tensor(2, 1, 0, 0, 0, 0), values: tensor(2, 1, 1, 3, 4, 4), queries: tensor(4, 1, 5, 6, 7, 8) },
    { scale: 1 },
    1,
    1,
  );
  expect([...two.sensitivities]).toEqual([0.5, 0]);
  expect([...two.masses]).toEqual([1, 1]);
  expect([...observedWeights(two).heads]).toEqual([1, 0]);
});

test('weights of tokens have the mean 1, and none is far below the others', () => {
  const sums = { kvHeads: 1, sensitivities: Float64Array.of(0, 0, 0, 16), masses: Float64Array.of(0, 0, 0, 1) };
  const { tokens, values } = observedWeights(sums);
  expect([...tokens]).toEqual([1, 1, 1, 16].map((part) => (part * 4) / 19));
  expect([...values]).toEqual([0.5, 0.5, 0.5, 2.5]);
});

test('what says nothing weighs all alike', () => {
  const sums = { kvHeads: 2, sensitivities: new Float64Array(6), masses: new Float64Array(6) };
  const { tokens, values, heads } = observedWeights(sums);
  for (const weights of [tokens, values, heads]) expect(new Set(weights)).toEqual(new Set([1]));
  expect(observedWeights({ kvHeads: 1, sensitivities: new Float64Array(0), masses: new Float64Array(0) })).toEqual({
    tokens: new Float64Array(0),
    values: new Float64Array(0),
    heads: Float64Array.of(1),
  });
});
