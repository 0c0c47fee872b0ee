import { setFloat16 } from '@petamoriken/float16';
import { type Rotation, rotate } from '../reference/rope.js';
import { unrotatedRows } from '../reference/secondMoment.js';
import { type HeadTensor, type Matrix, vectorAt } from '../reference/shapes.js';
import { tensorValues } from '../safetensors.js';

/** f16 bits [KV heads][tokens][head dim] of keys or values, and where they stand. */
export interface Tokens {
  readonly bits: Uint16Array;
  readonly kvHeads: number;
  readonly tokens: number;
  readonly headDim: number;
}

/** Of f16; beyond it lies infinity, which no cache takes. */
const largestHalf = 65504;

/**
 * Tokens first .. first+count-1, one row a token, its heads side by side.
 *
 * @param rope for keys, which are turned back to position 0; undefined for values
 */
export function rowsOf(all: Tokens, first: number, count: number, rope: Rotation | undefined): Matrix {
  const { kvHeads, headDim } = all;
  const tensor: HeadTensor = { heads: kvHeads, tokens: all.tokens, channels: headDim, data: numbersOf(all.bits) };
  if (rope) return unrotatedRows(tensor, first, count, rope);
  const columns = kvHeads * headDim;
  const data = new Float64Array(count * columns);
  for (let row = 0; row < count; row++) {
    for (let head = 0; head < kvHeads; head++) {
      data.set(vectorAt(tensor, head, first + row), row * columns + head * headDim);
    }
  }
  return { rows: count, columns, data };
}

/** Takes back `rowsOf`: writes rows to their tokens, rounded to f16. */
export function writeRows(rows: Matrix, to: Tokens, first: number, rope: Rotation | undefined): void {
  const { kvHeads, headDim, tokens, bits } = to;
  const view = new DataView(bits.buffer, bits.byteOffset, bits.byteLength);
  for (let row = 0; row < rows.rows; row++) {
    for (let head = 0; head < kvHeads; head++) {
      const start = row * rows.columns + head * headDim;
      const plain = rows.data.subarray(start, start + headDim);
      const vector = rope ? rotate(plain, first + row, rope) : plain;
      const place = (head * tokens + first + row) * headDim;
      for (let i = 0; i < headDim; i++) {
        setFloat16(view, (place + i) * 2, withinHalf(vector[i]!), true);
      }
    }
  }
}

/** Exactly the numbers of f16 bits. */
export function numbersOf({ buffer, byteOffset, byteLength, length }: Uint16Array): Float64Array {
  return tensorValues({ dtype: 'F16', shape: [length], bytes: new Uint8Array(buffer, byteOffset, byteLength) });
}

/** Whether no f16 is an infinity or NaN: a file's numbers go where such are refused. */
export function allFinite(bits: Uint16Array): boolean {
  return bits.every((half) => (half & 0x7c00) !== 0x7c00);
}

/** Rounded to f16; beyond its range, the largest. */
export function halfBitsOf(numbers: Float64Array): Uint16Array {
  const bits = new Uint16Array(numbers.length);
  const view = new DataView(bits.buffer);
  for (const [i, x] of numbers.entries()) setFloat16(view, i * 2, withinHalf(x), true);
  return bits;
}

// A pair that is turned may come to root 2 times what it was.
const withinHalf = (x: number) => Math.min(Math.max(x, -largestHalf), largestHalf);

/** Matrices of the same rows side by side. */
export function sideBySide(matrices: readonly Matrix[]): Matrix {
  const columns = matrices.reduce((sum, matrix) => sum + matrix.columns, 0);
  const rows = matrices[0]?.rows ?? 0;
  const data = new Float64Array(rows * columns);
  let column = 0;
  for (const matrix of matrices) {
    for (let row = 0; row < rows; row++) {
      const own = matrix.data.subarray(row * matrix.columns, (row + 1) * matrix.columns);
      data.set(own, row * columns + column);
    }
    column += matrix.columns;
  }
  return { rows, columns, data };
}

/** Some columns of a matrix, copied. */
export function columnsOf({ rows, columns, data }: Matrix, first: number, count: number): Matrix {
  const own = new Float64Array(rows * count);
  for (let row = 0; row < rows; row++) {
    own.set(data.subarray(row * columns + first, row * columns + first + count), row * count);
  }
  return { rows, columns: count, data: own };
}
