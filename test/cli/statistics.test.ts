import { expect, test } from 'vitest';
import { column, cumulativeEnergy, histogram, normalizedValues, tokenRows } from '../../runtime/report/statistics.js';

test('a histogram counts every value once, those outside of the range in the outermost bins', () => {
  const bins = histogram(Float64Array.of(-9, 0, 0.1, 1, 9), [-1, 1], 4);
  expect(bins.map(({ share }) => share)).toEqual([0.2, 0, 0.4, 0.4]);
  expect(bins[3]).toMatchObject({ from: 0.5, to: 1 });
});

test('rows of tokens hold the heads side by side', () => {
  const rows = tokenRows({ heads: 2, tokens: 2, channels: 1, data: Float64Array.of(1, 2, 10, 20) });
  expect([...rows.data]).toEqual([1, 10, 2, 20]);
  expect([...column(rows, 1)]).toEqual([10, 20]);
});

test('one direction holds all the energy of rows on a line', () => {
  const energy = cumulativeEnergy({ rows: 3, columns: 2, data: Float64Array.of(1, 2, 2, 4, 3, 6) });
  expect(energy[0]).toBeCloseTo(1, 12);
  expect(energy[1]).toBeCloseTo(1, 12);
});

test('constant rows have no energy to lose', () => {
  expect(cumulativeEnergy({ rows: 2, columns: 2, data: Float64Array.of(1, 2, 1, 2) })).toEqual([1, 1]);
});

test('normalized values fill the range up to the rounding of the scale', () => {
  const { data } = normalizedValues({
    heads: 1,
    tokens: 2,
    channels: 4,
    data: Float64Array.of(1, 2, 3, 4, -4, 3, 2, 1),
  });
  const largest = data.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  expect(largest).toBeCloseTo(1, 3);
});
