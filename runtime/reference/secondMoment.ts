import { type Rotation, unrotate } from './rope.js';
import { type HeadTensor, type Matrix, vectorAt } from './shapes.js';

/**
 * Keys of tokens first .. first+count-1 with RoPE undone, one row a token, its heads side by side.
 *
 * @param keys after RoPE; token t stands at position t
 * @returns [count][heads*channels]
 */
export function unrotatedRows(keys: HeadTensor, first: number, count: number, rope: Rotation): Matrix {
  const columns = keys.heads * keys.channels;
  const data = new Float64Array(count * columns);
  for (let row = 0; row < count; row++) {
    for (let head = 0; head < keys.heads; head++) {
      const key = unrotate(vectorAt(keys, head, first + row), first + row, rope);
      data.set(key, row * columns + head * keys.channels);
    }
  }
  return { rows: count, columns, data };
}

/**
 * Mean of the rows, [columns]; zero if there are none.
 *
 * @param weights of the rows, their mean 1; all 1 if left out
 */
export function meanOf({ rows, columns, data }: Matrix, weights?: ArrayLike<number>): Float64Array {
  const mean = new Float64Array(columns);
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < columns; i++) mean[i]! += ((weights?.[row] ?? 1) * data[row * columns + i]!) / rows;
  }
  return mean;
}

/**
 * Second moments about `mean`: `sum over rows of (x - mean)(x - mean)^T / rows`.
 *
 * @returns [columns][columns], symmetric; zero if there are no rows
 * @example
 * const rows = { rows: 2, columns: 1, data: Float64Array.of(1, 3) };
 * secondMomentOf(rows, meanOf(rows)).data; // [1]
 */
export function secondMomentOf({ rows, columns, data }: Matrix, mean: Float64Array): Matrix {
  const moment = new Float64Array(columns * columns);
  const centred = new Float64Array(columns);
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < columns; i++) centred[i] = data[row * columns + i]! - mean[i]!;
    for (let i = 0; i < columns; i++) {
      for (let j = 0; j < columns; j++) moment[i * columns + j]! += centred[i]! * centred[j]!;
    }
  }
  return { rows: columns, columns, data: moment.map((sum) => sum / Math.max(rows, 1)) };
}
