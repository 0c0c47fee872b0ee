import { topEigenvectors } from '../reference/basis.js';
import { hadamard } from '../reference/hadamard.js';
import type { Rotation } from '../reference/rope.js';
import { meanOf, secondMomentOf, unrotatedRows } from '../reference/secondMoment.js';
import { type HeadTensor, type Matrix, vectorAt } from '../reference/shapes.js';
import { channelMaximum } from '../reference/vectorQuantization.js';

export interface Bin {
  readonly from: number;
  readonly to: number;
  /** Part of all values that lies in the bin. */
  readonly share: number;
}

/** A histogram over `range`; what lies outside is counted in the outermost bins. */
export function histogram(values: Float64Array, range: readonly [number, number], bins: number): readonly Bin[] {
  const [low, high] = range;
  const width = (high - low) / bins;
  const counts = new Float64Array(bins);
  for (const value of values) {
    counts[Math.max(0, Math.min(bins - 1, Math.floor((value - low) / width)))]! += 1;
  }
  return Array.from(counts, (count, index) => ({
    from: low + index * width,
    to: low + (index + 1) * width,
    share: count / values.length,
  }));
}

/** All tokens as rows, their KV heads side by side: [tokens][heads * channels]. */
export function tokenRows(tensor: HeadTensor): Matrix {
  const columns = tensor.heads * tensor.channels;
  const data = new Float64Array(tensor.tokens * columns);
  for (let token = 0; token < tensor.tokens; token++) {
    for (let head = 0; head < tensor.heads; head++) {
      data.set(vectorAt(tensor, head, token), token * columns + head * tensor.channels);
    }
  }
  return { rows: tensor.tokens, columns, data };
}

/** Keys with RoPE undone. */
export function plainKeys(keys: HeadTensor, rope: Rotation): Matrix {
  return unrotatedRows(keys, 0, keys.tokens, rope);
}

export function column({ rows, columns, data }: Matrix, index: number): Float64Array {
  return Float64Array.from({ length: rows }, (_, row) => data[row * columns + index]!);
}

/** Part of the energy about the mean that the largest r directions hold, for r from 1 to all of them. */
export function cumulativeEnergy(rows: Matrix): readonly number[] {
  const { values } = topEigenvectors(secondMomentOf(rows, meanOf(rows)), rows.columns);
  const total = values.reduce((sum, value) => sum + value, 0);
  let sum = 0;
  return Array.from(values, (value) => {
    sum += value;
    return total === 0 ? 1 : sum / total;
  });
}

/** Largest magnitude of every channel. */
export function columnMaxima(rows: Matrix): Float64Array {
  return Float64Array.from({ length: rows.columns }, (_, index) =>
    column(rows, index).reduce((largest, value) => Math.max(largest, Math.abs(value)), 0),
  );
}

/** Values after the Hadamard transform of every head, each channel over its largest magnitude: what a codebook sees. */
export function normalizedValues(values: HeadTensor): Matrix {
  const { heads, tokens, channels } = values;
  const columns = heads * channels;
  const data = new Float64Array(tokens * columns);
  for (let head = 0; head < heads; head++) {
    const turned = new Float64Array(tokens * channels);
    for (let token = 0; token < tokens; token++) turned.set(hadamard(vectorAt(values, head, token)), token * channels);
    const maximum = channelMaximum({ rows: tokens, columns: channels, data: turned });
    for (let token = 0; token < tokens; token++) {
      for (let i = 0; i < channels; i++) {
        data[token * columns + head * channels + i] = turned[token * channels + i]! / maximum[i]!;
      }
    }
  }
  return { rows: tokens, columns, data };
}
