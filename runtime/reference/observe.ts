import { type HeadTensor, type Matrix, vectorAt } from './shapes.js';

/** How scores are formed, and what a query sees. */
export interface ScoreRule {
  readonly scale: number;
  /** Scores become `cap * tanh(score / cap)`; as they are if left out. */
  readonly cap?: number | undefined;
  /** Tokens that a query sees, itself included; all if left out or zero. */
  readonly slidingWindow?: number | undefined;
}

/** A prompt's keys (after RoPE) and values, and the queries of its last positions. */
export interface Observed {
  readonly keys: HeadTensor;
  readonly values: HeadTensor;
  readonly queries: HeadTensor;
}

/**
 * The queries that are looked at: the last ones, at most `most`.
 *
 * @example
 * lastQueries({ heads: 1, tokens: 3, channels: 1, data: Float64Array.of(7, 8, 9) }, 2).data; // [8, 9]
 */
export function lastQueries({ heads, tokens, channels, data }: HeadTensor, most: number): HeadTensor {
  const kept = Math.min(most, tokens);
  const last = new Float64Array(heads * kept * channels);
  for (let head = 0; head < heads; head++) {
    const end = (head + 1) * tokens * channels;
    last.set(data.subarray(end - kept * channels, end), head * kept * channels);
  }
  return { heads, tokens: kept, channels, data: last };
}

/** Scores before the softmax in nats, [heads * queries][prompt tokens], of tokens in sight and out of it. */
export function observedScores({ keys, queries }: Pick<Observed, 'keys' | 'queries'>, rule: ScoreRule): Matrix {
  const groupSize = queries.heads / keys.heads;
  const data = new Float64Array(queries.heads * queries.tokens * keys.tokens);
  let at = 0;
  for (let head = 0; head < queries.heads; head++) {
    for (let index = 0; index < queries.tokens; index++) {
      const query = vectorAt(queries, head, index);
      for (let token = 0; token < keys.tokens; token++) {
        const key = vectorAt(keys, Math.floor(head / groupSize), token);
        let dot = 0;
        for (let i = 0; i < query.length; i++) dot += query[i]! * key[i]!;
        const score = dot * rule.scale;
        data[at++] = rule.cap === undefined ? score : rule.cap * Math.tanh(score / rule.cap);
      }
    }
  }
  return { rows: queries.heads * queries.tokens, columns: keys.tokens, data };
}

/**
 * Softmax of every row over the tokens that its query sees; zero elsewhere.
 *
 * @param scores [heads * queries][prompt tokens], the queries of each head at the last positions, in order
 */
export function observedProbabilities(scores: Matrix, queries: number, slidingWindow = 0): Matrix {
  const { rows, columns } = scores;
  const data = new Float64Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const end = columns - queries + (row % queries) + 1;
    const begin = slidingWindow === 0 ? 0 : Math.max(0, end - slidingWindow);
    const seen = scores.data.subarray(row * columns + begin, row * columns + end);
    const largest = seen.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
    const weights = seen.map((score) => Math.exp(score - largest));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    for (const [i, weight] of weights.entries()) data[row * columns + begin + i] = weight / total;
  }
  return { rows, columns, data };
}

/** Attention outputs, [heads * queries][channels]. */
export function observedOutputs(probabilities: Matrix, values: HeadTensor): Matrix {
  const { rows, columns } = probabilities;
  const data = new Float64Array(rows * values.channels);
  for (let row = 0; row < rows; row++) {
    const kvHead = Math.floor((row * values.heads) / rows);
    for (let token = 0; token < columns; token++) {
      const probability = probabilities.data[row * columns + token]!;
      const value = vectorAt(values, kvHead, token);
      for (let i = 0; i < value.length; i++) data[row * values.channels + i]! += probability * value[i]!;
    }
  }
  return { rows, columns: values.channels, data };
}

/** What the observed queries make of some tokens, each [tokens][KV heads], summed over the queries of a head's group. */
export interface TokenSums {
  readonly kvHeads: number;
  /** Sums of (probability * distance of value and output)^2. */
  readonly sensitivities: Float64Array;
  /** Sums of probabilities. */
  readonly masses: Float64Array;
}

/** The sums of the tokens from `first` on. */
export function observedSums(
  { probabilities, outputs, values }: { probabilities: Matrix; outputs: Matrix; values: HeadTensor },
  first: number,
  count: number,
): TokenSums {
  const kvHeads = values.heads;
  const sensitivities = new Float64Array(count * kvHeads);
  const masses = new Float64Array(count * kvHeads);
  for (let row = 0; row < probabilities.rows; row++) {
    const kvHead = Math.floor((row * kvHeads) / probabilities.rows);
    const output = outputs.data.subarray(row * values.channels, (row + 1) * values.channels);
    for (let token = 0; token < count; token++) {
      const probability = probabilities.data[row * probabilities.columns + first + token]!;
      const value = vectorAt(values, kvHead, first + token);
      let distance = 0;
      for (let i = 0; i < value.length; i++) distance += (value[i]! - output[i]!) ** 2;
      sensitivities[token * kvHeads + kvHead]! += probability ** 2 * distance;
      masses[token * kvHeads + kvHead]! += probability;
    }
  }
  return { kvHeads, sensitivities, masses };
}

export interface ObservedWeights {
  /** Of every token in the fit of the key basis, [tokens]; their mean is 1. */
  readonly tokens: Float64Array;
  /** Of every token in the fit of the value codebook, [tokens][KV heads]. */
  readonly values: Float64Array;
  /** Factors of the weights of key channels, [KV heads]. */
  readonly heads: Float64Array;
}

/** Least weight of a token, before the mean is made 1. */
const leastTokenWeight = 0.25;
/** Sums of sensitivities or masses, over tokens, that say nothing. */
const nothing = 1e-30;

/** The weights that the sums give; 1 where they say nothing. */
export function observedWeights({ kvHeads, sensitivities, masses }: TokenSums): ObservedWeights {
  const count = masses.length / kvHeads;
  const totals = { sensitivities: new Float64Array(kvHeads), masses: new Float64Array(kvHeads) };
  const roots = new Float64Array(count);
  for (let token = 0; token < count; token++) {
    let sum = 0;
    for (let head = 0; head < kvHeads; head++) {
      const at = token * kvHeads + head;
      totals.sensitivities[head]! += sensitivities[at]!;
      totals.masses[head]! += masses[at]!;
      sum += sensitivities[at]!;
    }
    roots[token] = Math.sqrt(sum);
  }
  const mean = roots.reduce((sum, root) => sum + root, 0) / count;
  const raised = roots.map((root) => (mean > Math.sqrt(nothing) ? Math.max(root / mean, leastTokenWeight) : 1));
  const raisedMean = raised.reduce((sum, weight) => sum + weight, 0) / count;
  const largest = totals.sensitivities.reduce((a, b) => Math.max(a, b), 0);
  return {
    tokens: raised.map((weight) => weight / raisedMean),
    values: masses.map((mass, at) => {
      const average = totals.masses[at % kvHeads]! / count;
      return average > nothing ? (1 + mass / average) / 2 : 1;
    }),
    heads: totals.sensitivities.map((sum) => (largest > nothing ? Math.sqrt(sum / largest) : 1)),
  };
}

/** All of it: the weights of tokens first .. first+count-1 by what the queries of the prompt's end make of them. */
export function observe({ keys, values, queries }: Observed, rule: ScoreRule, first: number, count: number): TokenSums {
  const scores = observedScores({ keys, queries }, rule);
  const probabilities = observedProbabilities(scores, queries.tokens, rule.slidingWindow);
  const outputs = observedOutputs(probabilities, values);
  return observedSums({ probabilities, outputs, values }, first, count);
}
