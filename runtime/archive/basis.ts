import { KvforgeError } from '../../dsl/errors.js';
import { topEigenvectors } from '../reference/basis.js';
import { meanOf, secondMomentOf } from '../reference/secondMoment.js';
import type { Matrix } from '../reference/shapes.js';
import { halfBitsOf, numbersOf } from './rows.js';

/**
 * What decorrelates rows, as it is kept: principal components of decreasing variance in eight bits an entry, which stand
 * for the vectors that `orthonormal` makes of them. Only rounding the directions is lost so, not that they are orthonormal:
 * the error of a row is that of its coefficients, and any number of the first components is a basis by itself.
 */
export interface StoredBasis {
  readonly width: number;
  readonly rank: number;
  /** f16 bits, [width]: the mean that is taken from every row. */
  readonly mean: Uint16Array;
  /** [rank][width] */
  readonly codes: Int8Array;
}

/** Rows that the second moments are summed over, at most; their time grows with rows and with the square of the width. */
const mostRows = 4096;

/** Every so many of the rows that at most `most` are left. */
export function sampleRows(matrix: Matrix, most: number): Matrix {
  const { rows, columns, data } = matrix;
  const step = Math.ceil(rows / most);
  if (step <= 1) return matrix;
  const count = Math.ceil(rows / step);
  const sample = new Float64Array(count * columns);
  for (let row = 0; row < count; row++) {
    sample.set(data.subarray(row * step * columns, (row * step + 1) * columns), row * columns);
  }
  return { rows: count, columns, data: sample };
}

/** All principal components of rows, those of largest variance first. */
export function fitBasis(rows: Matrix): StoredBasis {
  const sample = sampleRows(rows, mostRows);
  const width = rows.columns;
  const mean = halfBitsOf(meanOf(sample));
  const { vectors } = topEigenvectors(secondMomentOf(sample, numbersOf(mean)), width);
  const codes = new Int8Array(width * width);
  for (let component = 0; component < width; component++) {
    let largest = 0;
    for (let i = 0; i < width; i++) largest = Math.max(largest, Math.abs(vectors.data[i * width + component]!));
    for (let i = 0; i < width; i++) {
      codes[component * width + i] = Math.round((vectors.data[i * width + component]! / largest) * 127);
    }
  }
  return { width, rank: width, mean, codes };
}

/** Columns that nearly lie in the span of those before them: none of an orthonormal basis rounded to 8 bits does. */
const leastLength = 1e-3;

/**
 * The codes' directions made orthonormal in their order, by modified Gram-Schmidt: the first components do not depend on
 * how many follow.
 *
 * @returns [rank][width]
 * @throws KvforgeError `invalid-input` for codes that are no basis
 */
export function orthonormal({ width, rank, codes }: Omit<StoredBasis, 'mean'>): Float64Array {
  const vectors = new Float64Array(rank * width);
  for (let component = 0; component < rank; component++) {
    const own = vectors.subarray(component * width, (component + 1) * width);
    for (let i = 0; i < width; i++) own[i] = codes[component * width + i]!;
    scale(own, 1 / (length(own) || 1));
    for (let before = 0; before < component; before++) {
      const other = vectors.subarray(before * width, (before + 1) * width);
      let along = 0;
      for (let i = 0; i < width; i++) along += own[i]! * other[i]!;
      for (let i = 0; i < width; i++) own[i]! -= along * other[i]!;
    }
    const left = length(own);
    if (left < leastLength) {
      throw new KvforgeError('invalid-input', {
        at: `archive, basis, component ${component}`,
        expected: 'a direction that those before it do not have',
        received: `${left.toExponential(1)} of it left`,
        hint: 'Pack the cache again.',
      });
    }
    scale(own, 1 / left);
  }
  return vectors;
}

function length(vector: Float64Array): number {
  let squares = 0;
  for (let i = 0; i < vector.length; i++) squares += vector[i]! ** 2;
  return Math.sqrt(squares);
}

function scale(vector: Float64Array, factor: number): void {
  for (let i = 0; i < vector.length; i++) vector[i]! *= factor;
}

/** Coefficients of rows, [rank][rows]: a component's lie together, as they are coded. */
export function project({ rows, columns, data }: Matrix, mean: Float64Array, vectors: Float64Array): Matrix {
  const rank = vectors.length / columns;
  const coefficients = new Float64Array(rank * rows);
  const centred = new Float64Array(columns);
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < columns; i++) centred[i] = data[row * columns + i]! - mean[i]!;
    for (let component = 0; component < rank; component++) {
      let along = 0;
      const start = component * columns;
      for (let i = 0; i < columns; i++) along += centred[i]! * vectors[start + i]!;
      coefficients[component * rows + row] = along;
    }
  }
  return { rows: rank, columns: rows, data: coefficients };
}

/** Takes back `project`, as far as the components go. */
export function expand(coefficients: Matrix, mean: Float64Array, vectors: Float64Array): Matrix {
  const [rank, rows, columns] = [coefficients.rows, coefficients.columns, mean.length];
  const data = new Float64Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const own = data.subarray(row * columns, (row + 1) * columns);
    own.set(mean);
    for (let component = 0; component < rank; component++) {
      const factor = coefficients.data[component * rows + row]!;
      if (factor === 0) continue;
      const start = component * columns;
      for (let i = 0; i < columns; i++) own[i]! += factor * vectors[start + i]!;
    }
  }
  return { rows, columns, data };
}
