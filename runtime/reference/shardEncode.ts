import { layerShape, type ModelShape } from '../../dsl/model.js';
import { quantizeBasis, topEigenvectors } from './basis.js';
import { unbiasedGain } from './gain.js';
import { hadamard } from './hadamard.js';
import { midRise } from './midRise.js';
import { lastQueries, type ObservedWeights, observe, observedWeights } from './observe.js';
import { quantize, toHalf } from './quantize.js';
import { meanOf, secondMomentOf, unrotatedRows } from './secondMoment.js';
import { encodeSegments, requireCache, type SegmentOptions, sliceTokens } from './segmentsEncode.js';
import { type Cache, type HeadTensor, type Matrix, vectorAt } from './shapes.js';
import type { ShardMiddle, ShardParts } from './shard.js';
import { assign, channelMaximum, kMeans, smallestChannelMax } from './vectorQuantization.js';
import { bestWidths } from './waterFilling.js';
import { queryWeights } from './weights.js';

/** Queries that are observed, the last ones. */
const observedAtMost = 32;

export interface ShardOptions extends SegmentOptions {
  /** Components of the keys that are kept, at most kvHeads*d. */
  readonly rank: number;
  /** Width of each group of components, in bits; one for every group. Ignored where there is a budget. */
  readonly bits: readonly number[];
  /** Bits of a token's key code: widths are then allocated, and codes mid-rise. */
  readonly budget?: number;
  /** Of the prompt's last positions, after RoPE: where given, all parts are fitted to what the last 32 of them ask. */
  readonly queries?: HeadTensor;
  /** The layer of the model whose RoPE and sliding window these are; the first if left out. */
  readonly layer?: number;
  /** Gains make the coded values unbiased. */
  readonly unbiased?: boolean;
  /** Components in a group; the last may be shorter. */
  readonly group: number;
  /** Channels in a value code; a divisor of d. */
  readonly channels: number;
  /** Entries of the value codebook, at most 65536. */
  readonly entries: number;
  /** Lloyd rounds of the value codebook. */
  readonly iterations: number;
  readonly seed: number;
}

/**
 * Compresses one layer of a prompt at positions 0 .. T-1 by the whole Shard scheme, in float64; only what the format
 * stores is rounded.
 *
 * @param cache finite; keys after RoPE
 * @example
 * const { middle } = encodeShard(exact, model, {
 *   rank: 16, bits: [4], group: 16, channels: 4, entries: 16, iterations: 30, seed: 1, sinks: 4, window: 8,
 * });
 * middle.tokens; // exact.keys.tokens - 12
 */
export function encodeShard(cache: Cache, model: ModelShape, options: ShardOptions): ShardParts {
  requireCache(cache, model);
  requireFitting(model, options);
  const { middle, ...segments } = encodeSegments(cache, options);
  const { first, tokens } = middle;
  const { rope, slidingWindow } = layerShape(model, options.layer ?? 0);
  const queries = options.queries && lastQueries(options.queries, observedAtMost);
  const rule = { scale: model.scoreScale, cap: model.scoreCap, slidingWindow };
  const observed = queries && observedWeights(observe({ ...cache, queries }, rule, first, tokens));
  return {
    kvHeads: model.kvHeads,
    headDim: model.headDim,
    rope,
    ...segments,
    middle: {
      tokens,
      firstPosition: first,
      ...encodeKeys(
        unrotatedRows(cache.keys, first, tokens, rope),
        { ...model, rope },
        { ...options, queries, observed },
      ),
      ...encodeValues(sliceTokens(cache.values, first, tokens), { ...options, weights: observed?.values }),
    },
  };
}

function requireFitting(model: ModelShape, options: ShardOptions): void {
  const { rank, bits, group, channels, entries } = options;
  const faults: [fault: boolean, message: string][] = [
    [rank < 1 || rank > model.width, `rank ${rank} is not in 1 to ${model.width}`],
    [
      options.budget === undefined && bits.length !== Math.ceil(rank / group),
      `${bits.length} widths for ${Math.ceil(rank / group)} groups`,
    ],
    [model.headDim % channels !== 0, `${channels} channels a code do not divide a head of ${model.headDim}`],
    [entries < 1 || entries > 65536, `${entries} entries do not fit 16-bit codes`],
  ];
  for (const [fault, message] of faults) if (fault) throw new RangeError(message);
}

type KeyParts = Pick<
  ShardMiddle,
  | 'rank'
  | 'coefficientCodes'
  | 'codeOffset'
  | 'groupBits'
  | 'coefficientScales'
  | 'basisCodes'
  | 'basisScales'
  | 'mean'
  | 'weights'
>;

/** @param rows [M][kvHeads*d], before RoPE */
function encodeKeys(
  rows: Matrix,
  { kvHeads, rope }: ModelShape,
  options: Omit<ShardOptions, 'queries'> & {
    readonly queries: HeadTensor | undefined;
    readonly observed: ObservedWeights | undefined;
  },
): KeyParts {
  const { rank, bits, group, budget, queries, observed } = options;
  const { columns: width, data } = rows;
  const exactMean = meanOf(rows, observed?.tokens);
  const weights = queries
    ? queryWeights(queries, kvHeads, rope, observed?.heads).map(toHalf)
    : new Float64Array(width).fill(1);
  const roots = observed?.tokens.map(Math.sqrt) ?? new Float64Array(rows.rows).fill(1);
  const weighted = data.map((x, at) => {
    const i = at % width;
    return roots[Math.floor(at / width)]! * weights[i]! * (x - exactMean[i]!);
  });
  const moment = secondMomentOf({ ...rows, data: weighted }, new Float64Array(width));
  const { vectors, values } = topEigenvectors(moment, rank);
  const basis = quantizeBasis(vectors);
  const allocated = budget === undefined ? undefined : allocate(values, group, budget);
  // Coefficients are about the mean that is stored, so that its rounding is not lost.
  const mean = exactMean.map(toHalf);
  const coefficientCodes = new Int32Array(rows.rows * rank);
  const coefficientScales = new Float64Array(rank);
  for (let r = 0; r < rank; r++) {
    const coefficients = Float64Array.from({ length: rows.rows }, (_, token) => {
      let sum = 0;
      for (let i = 0; i < width; i++) {
        sum += vectors.data[i * rank + r]! * weights[i]! * (data[token * width + i]! - mean[i]!);
      }
      return sum;
    });
    const index = Math.floor(r / group);
    const { codes, scale } = allocated
      ? midRise(coefficients, allocated[index]!)
      : quantize(coefficients, bits[index]!);
    coefficientScales[r] = scale;
    for (let token = 0; token < rows.rows; token++) coefficientCodes[token * rank + r] = codes[token]!;
  }
  return {
    rank,
    coefficientCodes,
    codeOffset: allocated ? 0.5 : 0,
    ...(allocated ? { groupBits: allocated } : {}),
    coefficientScales,
    basisCodes: basis.codes,
    basisScales: basis.scales,
    mean,
    weights,
  };
}

/** Widths of whole groups, by the variances of their components. */
function allocate(values: Float64Array, group: number, budget: number): readonly number[] {
  const variances = Array.from({ length: values.length / group }, (_, index) =>
    values.subarray(index * group, (index + 1) * group).reduce((sum, value) => sum + value, 0),
  );
  return bestWidths(variances, Math.floor(budget / group)).bits;
}

type ValueParts = Pick<ShardMiddle, 'channels' | 'valueCodes' | 'codebook' | 'channelMax'>;

/** @param options with the weights of [token][head] in the codebook */
function encodeValues(
  values: HeadTensor,
  options: ShardOptions & { readonly weights: Float64Array | undefined },
): ValueParts {
  const { channels, entries, iterations, seed, unbiased = false } = options;
  const { heads, tokens, channels: d } = values;
  const channelMax = new Float64Array(heads * d);
  const scaled = new Float64Array(tokens * heads * d);
  for (let head = 0; head < heads; head++) {
    const turned = new Float64Array(tokens * d);
    for (let token = 0; token < tokens; token++) turned.set(hadamard(vectorAt(values, head, token)), token * d);
    const maximum = channelMaximum({ rows: tokens, columns: d, data: turned });
    channelMax.set(maximum, head * d);
    for (let token = 0; token < tokens; token++) {
      for (let i = 0; i < d; i++) scaled[(token * heads + head) * d + i] = turned[token * d + i]! / maximum[i]!;
    }
  }
  const points = { rows: scaled.length / channels, columns: channels, data: scaled };
  // A point is a part of one head's vector.
  const { weights: ofVectors } = options;
  const ofPoint = (_: unknown, row: number) => ofVectors![Math.floor((row * channels) / d)]!;
  const weights = ofVectors && Float64Array.from({ length: points.rows }, ofPoint);
  const codebook = kMeans(points, { entries, iterations, seed, weights }).data.map(toHalf);
  const valueCodes = assign(points, { rows: entries, columns: channels, data: codebook });
  if (unbiased) {
    // Sums of y * y and of y * coded y, both over the square of the channel's maximum.
    const squares = new Float64Array(heads * d);
    const products = new Float64Array(heads * d);
    for (const [at, y] of scaled.entries()) {
      const channel = at % (heads * d);
      squares[channel]! += y * y;
      products[channel]! += y * codebook[valueCodes[Math.floor(at / channels)]! * channels + (at % channels)]!;
    }
    for (const [channel, largest] of channelMax.entries()) {
      const gain = unbiasedGain(squares[channel]!, products[channel]!);
      channelMax[channel] = toHalf(Math.max(smallestChannelMax, largest * gain));
    }
  }
  return { channels, valueCodes, codebook, channelMax };
}
