import { type Cache, emptyTensor, type HeadTensor, headRows, type Matrix, vectorAt } from './shapes.js';

export interface AttentionPart {
  /** [d]; zero if there are no tokens. */
  readonly output: Float64Array;
  /** Natural logarithm of the sum of exp(score); -Infinity if there are no tokens. */
  readonly lse: number;
}

export interface AttentionInput {
  /** [d], after RoPE. */
  readonly query: Float64Array;
  /** [tokens][d], after RoPE. */
  readonly keys: Matrix;
  /** [tokens][d] */
  readonly values: Matrix;
  /** Factor of every score; 1/sqrt(d) if left out. */
  readonly scale?: number;
  /** Scores become `cap * tanh(score / cap)` (Gemma 2); as they are if left out. */
  readonly cap?: number | undefined;
}

/**
 * Softmax attention of one query head over all given tokens.
 *
 * @example
 * const one = { rows: 1, columns: 2, data: Float64Array.of(3, 4) };
 * attend({ query: Float64Array.of(1, 0), keys: one, values: one }).output; // [3, 4]
 */
export function attend(input: AttentionInput): AttentionPart {
  const { query, keys, values, scale = 1 / Math.sqrt(input.query.length), cap } = input;
  const d = query.length;
  const scores = Float64Array.from({ length: keys.rows }, (_, token) => {
    let dot = 0;
    for (let i = 0; i < d; i++) dot += query[i]! * keys.data[token * d + i]!;
    return cap === undefined ? dot * scale : cap * Math.tanh((dot * scale) / cap);
  });
  const largest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const output = new Float64Array(d);
  if (largest === -Infinity) return { output, lse: -Infinity };
  const weights = scores.map((score) => Math.exp(score - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  for (let token = 0; token < keys.rows; token++) {
    for (let i = 0; i < d; i++) output[i]! += (weights[token]! / total) * values.data[token * d + i]!;
  }
  return { output, lse: largest + Math.log(total) };
}

/** Attention over the union of the parts' tokens. At least one part. */
export function mergeByLse(parts: readonly AttentionPart[]): AttentionPart {
  const largest = parts.reduce((most, { lse }) => Math.max(most, lse), -Infinity);
  const output = new Float64Array(parts[0]!.output.length);
  if (largest === -Infinity) return { output, lse: -Infinity };
  const weights = parts.map(({ lse }) => Math.exp(lse - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  parts.forEach((part, index) => {
    for (let i = 0; i < output.length; i++) output[i]! += (weights[index]! / total) * part.output[i]!;
  });
  return { output, lse: largest + Math.log(total) };
}

export interface AttentionErrorInput {
  /** [query head][query][d], after RoPE; query head h reads KV head floor(h / (heads / kvHeads)). */
  readonly queries: HeadTensor;
  readonly exact: Cache;
  readonly decoded: Cache;
  /** Cached tokens each query sees, counted from the first; all of them if left out. */
  readonly visible?: readonly number[];
}

/** What compression did to attention outputs, all of them together. */
export interface OutputDifference {
  /** `sqrt(sum |b - a|^2 / sum |a|^2)`, a exact and b decoded; `sqrt(sum |b|^2)` where a is zero. */
  readonly error: number;
  /** The part of the difference that lies along the exact output: `sum (b - a).a / sum a.a`, 0 where a is zero. */
  readonly bias: number;
}

/**
 * How far outputs are from the exact ones, and how much of that shrinks them (a bias below 0) or stretches them.
 *
 * @param exact any number of outputs, one after the other
 * @param decoded the same, from decoded keys and values
 * @example
 * outputDifference(Float64Array.of(3, 4), Float64Array.of(3, 0)); // { error: 0.8, bias: -0.64 }
 */
export function outputDifference(exact: Float64Array, decoded: Float64Array): OutputDifference {
  let [error, along, energy] = [0, 0, 0];
  exact.forEach((a, i) => {
    const difference = decoded[i]! - a;
    error += difference ** 2;
    along += difference * a;
    energy += a ** 2;
  });
  if (energy === 0) return { error: Math.sqrt(error), bias: 0 };
  return { error: Math.sqrt(error / energy), bias: along / energy };
}

/** `sqrt(sum |a - b|^2 / sum |a|^2)` over all query heads and queries, a the exact attention output and b the decoded. */
export function attentionError({ queries, exact, decoded, visible }: AttentionErrorInput): number {
  const groupSize = queries.heads / exact.keys.heads;
  const outputsOf = ({ keys, values }: Cache): Float64Array => {
    const outputs = emptyTensor(queries.heads, queries.tokens, queries.channels);
    for (let head = 0; head < queries.heads; head++) {
      const kvHead = Math.floor(head / groupSize);
      for (let index = 0; index < queries.tokens; index++) {
        const tokens = visible?.[index] ?? exact.keys.tokens;
        const rows = { keys: headRows(keys, kvHead, tokens), values: headRows(values, kvHead, tokens) };
        vectorAt(outputs, head, index).set(attend({ query: vectorAt(queries, head, index), ...rows }).output);
      }
    }
    return outputs.data;
  };
  return outputDifference(outputsOf(exact), outputsOf(decoded)).error;
}
