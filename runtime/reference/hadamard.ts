/**
 * The orthonormal Hadamard matrix in Sylvester order, `H[i][j] = (-1)^popcount(i & j) / sqrt(n)`: symmetric, its own
 * inverse.
 *
 * @param n a power of two
 * @returns [n][n]
 * @example
 * hadamardMatrix(4).map((entry) => 2 * entry).slice(4, 8); // [1, -1, 1, -1]
 */
export function hadamardMatrix(n: number): Float64Array {
  const matrix = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) matrix[i * n + j] = (popcount(i & j) % 2 === 0 ? 1 : -1) / Math.sqrt(n);
  }
  return matrix;
}

/** Size of one block of the transform of d channels: the largest power of two that divides d. */
export function blockSize(d: number): number {
  let size = 1;
  while (d % (size * 2) === 0) size *= 2;
  return size;
}

const matrices = new Map<number, Float64Array>();

/**
 * The block-diagonal Hadamard transform of one vector; applied twice it gives the vector back.
 *
 * @param x [d]; one block if d is a power of two
 */
export function hadamard(x: Float64Array): Float64Array {
  const n = blockSize(x.length);
  let matrix = matrices.get(n);
  if (!matrix) {
    matrix = hadamardMatrix(n);
    matrices.set(n, matrix);
  }
  const y = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += n) {
    for (let i = 0; i < n; i++) {
      let sum = 0;
      for (let j = 0; j < n; j++) sum += matrix[i * n + j]! * x[start + j]!;
      y[start + i] = sum;
    }
  }
  return y;
}

function popcount(bits: number): number {
  let count = 0;
  for (let rest = bits; rest > 0; rest = Math.floor(rest / 2)) count += rest % 2;
  return count;
}
