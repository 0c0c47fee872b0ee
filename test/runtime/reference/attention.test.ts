import fc from 'fast-check';
import { expect, test } from 'vitest';
import { attend, attentionError, type Matrix, mergeByLse } from '../../../runtime/reference/index.js';

const rows = (count: number, d: number, data: ArrayLike<number>): Matrix => ({
  rows: count,
  columns: d,
  data: Float64Array.from(data),
});

test('two tokens by hand: scores 0 and ln 3 weigh 1/4 and 3/4', () => {
  const keys = rows(2, 1, [0, Math.log(3)]);
  const { output, lse } = attend({ query: Float64Array.of(1), keys, values: rows(2, 1, [4, 8]) });
  expect(output[0]).toBeCloseTo(7, 14);
  expect(lse).toBeCloseTo(Math.log(4), 14);
});

test('scores are scaled by 1/sqrt(d) unless told otherwise', () => {
  const keys = rows(1, 4, [1, 1, 1, 1]);
  const query = Float64Array.of(2, 2, 2, 2);
  expect(attend({ query, keys, values: keys }).lse).toBe(4);
  expect(attend({ query, keys, values: keys, scale: 1 }).lse).toBe(8);
});

test('no tokens give an output of zero and a sum of zero', () => {
  const none = rows(0, 2, []);
  const part = { output: new Float64Array(2), lse: -Infinity };
  expect(attend({ query: Float64Array.of(1, 1), keys: none, values: none })).toEqual(part);
  expect(mergeByLse([part, part])).toEqual(part);
});

test('scores far beyond the range of exp are no problem', () => {
  const keys = rows(2, 1, [5000, -5000]);
  expect([...attend({ query: Float64Array.of(1), keys, values: rows(2, 1, [1, 2]) }).output]).toEqual([1]);
});

test('attention over parts, merged, is attention over the whole', () => {
  const d = 3;
  const numbers = fc.array(fc.double({ min: -9, max: 9, noNaN: true }), { minLength: 6 * d, maxLength: 6 * d });
  fc.assert(
    fc.property(numbers, numbers, fc.nat(6), (k, v, cut) => {
      const query = Float64Array.of(1, -0.5, 2);
      const part = (from: number, to: number) =>
        attend({
          query,
          keys: rows(to - from, d, k.slice(from * d, to * d)),
          values: rows(to - from, d, v.slice(from * d, to * d)),
        });
      const whole = part(0, 6);
      const merged = mergeByLse([part(0, cut), part(cut, 6)]);
      return (
        Math.abs(whole.lse - merged.lse) < 1e-12 &&
        whole.output.every((x, i) => Math.abs(x - merged.output[i]!) < 1e-12)
      );
    }),
  );
});

test('the attention error is relative, over all heads, and sees only visible tokens', () => {
  const tensor = (...data: number[]) => ({ heads: 1, tokens: 2, channels: 1, data: Float64Array.from(data) });
  const exact = { keys: tensor(0, 0), values: tensor(1, 3) };
  const decoded = { keys: tensor(0, 0), values: tensor(1, 4) };
  // Two query heads read the one KV head.
  const queries = { heads: 2, tokens: 1, channels: 1, data: Float64Array.of(1, 2) };
  expect(attentionError({ queries, exact, decoded })).toBeCloseTo(0.25, 14);
  expect(attentionError({ queries, exact, decoded, visible: [1] })).toBe(0);
});
