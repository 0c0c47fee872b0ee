import { expect, test } from 'vitest';
import { normalFrom, quantizeBasis, seededRandom, topEigenvectors } from '../../../runtime/reference/index.js';

test('eigenvectors of [[2, 1], [1, 2]] are (1, 1) and (1, -1) for 3 and 1', () => {
  const { vectors, values } = topEigenvectors({ rows: 2, columns: 2, data: Float64Array.of(2, 1, 1, 2) }, 2);
  const h = Math.SQRT1_2;
  expect(values[0]).toBeCloseTo(3, 14);
  expect(values[1]).toBeCloseTo(1, 14);
  expect(vectors.data[0]).toBeCloseTo(h, 14);
  expect(vectors.data[2]).toBeCloseTo(h, 14);
  expect(Math.abs(vectors.data[1]! + vectors.data[3]!)).toBeLessThan(1e-14);
});

test('columns are orthonormal, solve A v = lambda v and come in descending order', () => {
  const n = 24;
  const rank = 9;
  const random = seededRandom(5);
  const half = Float64Array.from({ length: n * n }, () => normalFrom(random));
  const data = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      for (let k = 0; k < n; k++) data[i * n + j]! += half[i * n + k]! * half[j * n + k]!;
    }
  }
  const { vectors, values } = topEigenvectors({ rows: n, columns: n, data }, rank);
  for (let r = 0; r < rank; r++) {
    if (r > 0) expect(values[r]).toBeLessThanOrEqual(values[r - 1]!);
    for (let other = 0; other < rank; other++) {
      let dot = 0;
      for (let i = 0; i < n; i++) dot += vectors.data[i * rank + r]! * vectors.data[i * rank + other]!;
      expect(Math.abs(dot - (r === other ? 1 : 0))).toBeLessThan(1e-12);
    }
    for (let i = 0; i < n; i++) {
      let product = 0;
      for (let j = 0; j < n; j++) product += data[i * n + j]! * vectors.data[j * rank + r]!;
      expect(Math.abs(product - values[r]! * vectors.data[i * rank + r]!)).toBeLessThan(1e-10);
    }
  }
});

test('each column is quantised by its own float16 scale; a column of zeros stays zero', () => {
  // 0.5/127 rounds down to the float16 1032 * 2^-18, so 0.25 is 63.504 steps.
  const { codes, scales } = quantizeBasis({ rows: 2, columns: 3, data: Float64Array.of(127, 0.25, 0, -31.6, -0.5, 0) });
  expect([...codes]).toEqual([127, 64, 0, -32, -127, 0]);
  expect([...scales]).toEqual([1, 1032 * 2 ** -18, 0]);
});
