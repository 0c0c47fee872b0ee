import { expect, test } from 'vitest';
import { meanOf, rotate, secondMomentOf, unrotatedRows } from '../../../runtime/reference/index.js';

test('mean and second moments of two tokens, by hand', () => {
  const rows = { rows: 2, columns: 2, data: Float64Array.of(1, 5, 3, -1) };
  expect([...meanOf(rows)]).toEqual([2, 2]);
  expect([...secondMomentOf(rows, meanOf(rows)).data]).toEqual([1, -3, -3, 9]);
});

test('no tokens have mean and moments of zero', () => {
  const rows = { rows: 0, columns: 1, data: new Float64Array() };
  expect([...meanOf(rows)]).toEqual([0]);
  expect([...secondMomentOf(rows, meanOf(rows)).data]).toEqual([0]);
});

test('rows hold the heads of a token side by side, with the rotation of its own position undone', () => {
  const rope = { invFreq: [0.7], pairing: 'half' } as const;
  const plain = [
    [Float64Array.of(1, 2), Float64Array.of(3, 4), Float64Array.of(5, 6)],
    [Float64Array.of(7, 8), Float64Array.of(9, 10), Float64Array.of(11, 12)],
  ];
  const data = plain.flatMap((head) => head.flatMap((key, position) => [...rotate(key, position, rope)]));
  const keys = { heads: 2, tokens: 3, channels: 2, data: Float64Array.from(data) };
  const rows = unrotatedRows(keys, 1, 2, rope);
  [3, 4, 9, 10, 5, 6, 11, 12].forEach((expected, i) => {
    expect(rows.data[i]).toBeCloseTo(expected, 12);
  });
});
