import { Matrix as Dense, EigenvalueDecomposition } from 'ml-matrix';
import { quantize } from './quantize.js';
import type { Matrix } from './shapes.js';

export interface Eigenbasis {
  /** [width][rank]: orthonormal columns, the entry of largest magnitude positive. */
  readonly vectors: Matrix;
  /** [rank], descending. */
  readonly values: Float64Array;
}

/**
 * The `rank` eigenvectors of a symmetric matrix that have the largest eigenvalues.
 *
 * @example
 * topEigenvectors({ rows: 2, columns: 2, data: Float64Array.of(1, 0, 0, 3) }, 1).vectors.data; // [0, 1]
 */
export function topEigenvectors(symmetric: Matrix, rank: number): Eigenbasis {
  const width = symmetric.columns;
  const dense = Dense.from1DArray(width, width, symmetric.data);
  const { realEigenvalues, eigenvectorMatrix } = new EigenvalueDecomposition(dense, { assumeSymmetric: true });
  const order = realEigenvalues.map((_, index) => index).sort((a, b) => realEigenvalues[b]! - realEigenvalues[a]!);
  const data = new Float64Array(width * rank);
  const values = new Float64Array(rank);
  for (let r = 0; r < rank; r++) {
    const column = eigenvectorMatrix.getColumn(order[r]!);
    const peak = column.reduce((best, x) => (Math.abs(x) > Math.abs(best) ? x : best), 0);
    // Rounding leaves eigenvalues of a singular matrix at about -1e-16; a variance is not negative.
    values[r] = Math.max(0, realEigenvalues[order[r]!]!);
    for (let i = 0; i < width; i++) data[i * rank + r] = peak < 0 ? -column[i]! : column[i]!;
  }
  return { vectors: { rows: width, columns: rank, data }, values };
}

export interface QuantizedBasis {
  /** [width][rank], each in [-127, 127]. */
  readonly codes: Int8Array;
  /** [rank], float16; entry = code * scale of its column. */
  readonly scales: Float64Array;
}

/** int8 with one scale a column: `max|column| / 127`, rounded to float16. */
export function quantizeBasis({ rows: width, columns: rank, data }: Matrix): QuantizedBasis {
  const codes = new Int8Array(width * rank);
  const scales = new Float64Array(rank);
  for (let r = 0; r < rank; r++) {
    const column = Float64Array.from({ length: width }, (_, i) => data[i * rank + r]!);
    const quantized = quantize(column, 8);
    scales[r] = quantized.scale;
    for (let i = 0; i < width; i++) codes[i * rank + r] = quantized.codes[i]!;
  }
  return { codes, scales };
}
