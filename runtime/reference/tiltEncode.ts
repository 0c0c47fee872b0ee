import { layerShape, type ModelShape } from '../../dsl/model.js';
import { topEigenvectors } from './basis.js';
import { unbiasedGain } from './gain.js';
import { hadamard } from './hadamard.js';
import { nearestInteger, toHalf } from './quantize.js';
import { type Rotation, rotate } from './rope.js';
import { encodeBlock, type ScalarRule } from './scalarEncode.js';
import { meanOf, secondMomentOf, unrotatedRows } from './secondMoment.js';
import { encodeSegments, requireCache, type SegmentOptions, sliceTokens } from './segmentsEncode.js';
import { type Cache, type HeadTensor, type Matrix, vectorAt } from './shapes.js';
import { placeInTile, rangeBlockOf, type TiltMiddle, type TiltParts, type TiltValueCodes } from './tilt.js';
import { fittingWidths } from './tiltPlaces.js';
import { queryWeights } from './weights.js';

/** How keys are cut: sizes that their fit and their codes share. */
export interface TiltSizes {
  /** Positions of a tile. */
  readonly tile: number;
  /** Components that share a width; a divisor of d. */
  readonly group: number;
}

/** What keys are coded by, of this prompt or of other text: everything but mean, steps and codes. */
export interface TiltFit {
  /** [kvHeads*d], float16 above 0, both channels of a pair alike. */
  readonly weights: Float64Array;
  /** Of each KV head, [d channels][d components]: orthonormal columns of descending variance. */
  readonly bases: readonly Matrix[];
  /** Variances of the components, [kvHeads][d]. */
  readonly variances: readonly Float64Array[];
  /** Bits of each group of each head, [kvHeads][d/group]. */
  readonly widths: readonly number[];
}

export interface TiltOptions extends TiltSizes, SegmentOptions {
  /** Mean bits of a channel of the keys. */
  readonly bits: number;
  /** Positions that share the steps of the components; 0 for all. */
  readonly rangeBlock: number;
  /** Of the prompt, after RoPE: where given, keys are weighted by them. */
  readonly queries?: HeadTensor;
  /** Basis, weights and widths of other text; those of the prompt if left out. */
  readonly fit?: TiltFit;
  readonly values: { readonly rule: ScalarRule; readonly channels: number };
  /** Gains make the coded values unbiased. */
  readonly gains: boolean;
  /** The layer of the model whose RoPE this is; the first if left out. */
  readonly layer?: number;
}

/**
 * Compresses one layer of a prompt at positions 0 .. T-1, in float64; only what the format stores is rounded.
 *
 * @param cache finite; keys after RoPE
 * @example
 * const rule = { levels: [-1, 0, 1], scale: 'largest', offset: 'none' } as const;
 * const { middle } = encodeTilt(exact, model, {
 *   bits: 2, tile: 16, rangeBlock: 128, group: 8, gains: true, values: { rule, channels: 8 }, sinks: 4, window: 8,
 * });
 * middle.tokens; // 36
 */
export function encodeTilt(cache: Cache, model: ModelShape, options: TiltOptions): TiltParts {
  requireCache(cache, model);
  if (model.headDim % options.group !== 0) {
    throw new RangeError(`groups of ${options.group} components do not divide a head of ${model.headDim}`);
  }
  const { middle, ...segments } = encodeSegments(cache, options);
  const { first, tokens } = middle;
  const { rope } = layerShape(model, options.layer ?? 0);
  const rows = unrotatedRows(cache.keys, first, tokens, rope);
  const fit = options.fit ?? fitTilt(rows, first, { ...model, rope }, options);
  return {
    kvHeads: model.kvHeads,
    headDim: model.headDim,
    rope,
    ...segments,
    middle: {
      tokens,
      firstPosition: first,
      ...codeTiltKeys(rows, first, { ...model, rope }, { ...options, fit }),
      tiltValues: codeTiltValues(sliceTokens(cache.values, first, tokens), options),
    },
  };
}

type HeadShape = Pick<ModelShape, 'kvHeads' | 'headDim'> & { readonly rope: Rotation };

/**
 * Fits weights, bases and widths to keys before RoPE.
 *
 * @param rows [M][kvHeads*d], tokens from position `first` on
 */
export function fitTilt(
  rows: Matrix,
  first: number,
  shape: HeadShape,
  { tile, group, bits, queries }: Pick<TiltOptions, 'tile' | 'group' | 'bits' | 'queries'>,
): TiltFit {
  const { kvHeads, headDim: d, rope } = shape;
  const weights = queries ? queryWeights(queries, kvHeads, rope).map(toHalf) : new Float64Array(kvHeads * d).fill(1);
  const fits = Array.from({ length: kvHeads }, (_, head) => {
    const weighted = tiledRows(rows, { first, head, mean: meanOf(rows), weights }, { tile, shape });
    return topEigenvectors(secondMomentOf(weighted, new Float64Array(d)), d);
  });
  const variances = fits.map(({ values }) => values);
  return { weights, bases: fits.map(({ vectors }) => vectors), variances, widths: widthsOf(variances, group, bits) };
}

/** Widths of least expected error of all heads together, under `bits` a channel, whose fields fit into rows. */
export function widthsOf(variances: readonly Float64Array[], group: number, bits: number): readonly number[] {
  const groups = variances.flatMap((values) =>
    Array.from({ length: values.length / group }, (_, index) =>
      values.subarray(index * group, (index + 1) * group).reduce((sum, value) => sum + value, 0),
    ),
  );
  return fittingWidths(groups, groups.length / variances.length, Math.ceil((bits * groups.length) / 4));
}

/** One head's keys about a mean, rotated to their places in the tile and weighted, [M][d]. */
export function tiledRows(
  { rows: tokens, columns, data }: Matrix,
  own: { readonly first: number; readonly head: number; readonly mean: Float64Array; readonly weights: Float64Array },
  { tile, shape: { headDim: d, rope } }: { readonly tile: number; readonly shape: HeadShape },
): Matrix {
  const tiled = new Float64Array(tokens * d);
  const from = own.head * d;
  for (let token = 0; token < tokens; token++) {
    const key = data.subarray(token * columns + from, token * columns + from + d);
    const centred = key.map((x, i) => x - own.mean[from + i]!);
    const turned = rotate(centred, placeInTile(own.first + token, tile), rope);
    for (let i = 0; i < d; i++) tiled[token * d + i] = own.weights[from + i]! * turned[i]!;
  }
  return { rows: tokens, columns: d, data: tiled };
}

type KeyParts = Omit<TiltMiddle, 'tokens' | 'firstPosition' | 'tiltValues'>;

/**
 * Codes keys by a fit: the mean is theirs, and so are the steps of every range block.
 *
 * @param rows [M][kvHeads*d] before RoPE, tokens from position `first` on
 */
export function codeTiltKeys(
  rows: Matrix,
  first: number,
  shape: HeadShape,
  { tile, group, rangeBlock, fit }: TiltSizes & Pick<TiltOptions, 'rangeBlock'> & { readonly fit: TiltFit },
): KeyParts {
  const { kvHeads, headDim: d } = shape;
  const { weights, bases, widths } = fit;
  const mean = meanOf(rows).map(toHalf);
  const blocks = rows.rows === 0 ? 0 : rangeBlockOf(first + rows.rows - 1, rangeBlock) + 1;
  const keyCodes = new Int32Array(rows.rows * kvHeads * d);
  const steps = new Float64Array(blocks * kvHeads * d);
  const basisCodes = new Int8Array(kvHeads * d * d);
  for (const [head, basis] of bases.entries()) {
    const scales = Array.from({ length: d }, (_, r) => {
      let largest = 0;
      for (let i = 0; i < d; i++) largest = Math.max(largest, Math.abs(basis.data[i * d + r]!));
      for (let i = 0; i < d; i++) {
        basisCodes[(head * d + r) * d + i] = nearestInteger((basis.data[i * d + r]! / largest) * 127);
      }
      return largest / 127;
    });
    const tiled = tiledRows(rows, { first, head, mean, weights }, { tile, shape });
    for (let block = 0; block < blocks; block++) {
      const tokens = Array.from({ length: rows.rows }, (_, token) => token).filter(
        (token) => rangeBlockOf(first + token, rangeBlock) === block,
      );
      for (let r = 0; r < d; r++) {
        const components = Float64Array.from(tokens, (token) => {
          let sum = 0;
          for (let i = 0; i < d; i++) sum += basis.data[i * d + r]! * tiled.data[token * d + i]!;
          return sum;
        });
        const bits = widths[head * (d / group) + Math.floor(r / group)]!;
        const stored = toHalf(128 * scales[r]! * midRiseStep(components, bits));
        steps[(block * kvHeads + head) * d + r] = stored;
        const step = stored / (128 * scales[r]!);
        for (const [i, token] of tokens.entries()) {
          keyCodes[(token * kvHeads + head) * d + r] = midRiseCode(components[i]!, step, bits);
        }
      }
    }
  }
  return { tile, rangeBlock, group, widths, keyCodes, steps, basisCodes, mean, weights };
}

/** The range of the components in 2^bits steps; for one bit twice the mean magnitude; zero without bits. */
export function midRiseStep(components: Float64Array, bits: number): number {
  if (bits === 0) return 0;
  const magnitudes = components.map(Math.abs);
  if (bits === 1) return (2 * magnitudes.reduce((sum, x) => sum + x, 0)) / Math.max(1, components.length);
  return (2 * magnitudes.reduce((a, b) => Math.max(a, b), 0)) / 2 ** bits;
}

/** floor(component / step), within the codes that the bits have; zero where there is no step. */
export function midRiseCode(component: number, step: number, bits: number): number {
  if (step === 0) return 0;
  const half = 2 ** (bits - 1);
  return Math.max(-half, Math.min(half - 1, Math.floor(component / step)));
}

/** Codes values after the Hadamard transform, a scale for so many channels of a token. */
export function codeTiltValues(
  values: HeadTensor,
  { values: { rule, channels }, gains: gained }: Pick<TiltOptions, 'values' | 'gains'>,
): TiltValueCodes {
  const { heads, tokens, channels: d } = values;
  const codes = new Uint8Array(tokens * heads * d);
  const scales = new Float64Array((tokens * heads * d) / channels);
  const offsets = new Float64Array(scales.length);
  const squares = new Float64Array(heads * d);
  const products = new Float64Array(heads * d);
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < heads; head++) {
      const turned = hadamard(vectorAt(values, head, token));
      for (let from = 0; from < d; from += channels) {
        const at = (token * heads + head) * d + from;
        const block = encodeBlock(turned.slice(from, from + channels), rule);
        codes.set(block.codes, at);
        scales[at / channels] = block.scale;
        offsets[at / channels] = block.offset;
        for (const [i, code] of block.codes.entries()) {
          const y = turned[from + i]!;
          squares[head * d + from + i]! += y * y;
          products[head * d + from + i]! += y * (block.offset + block.scale * rule.levels[code]!);
        }
      }
    }
  }
  return {
    scaleChannels: channels,
    codes,
    scales,
    ...(rule.offset === 'none' ? {} : { offsets }),
    levels: Float64Array.from(rule.levels),
    ...(gained ? { gains: squares.map((sum, i) => toHalf(unbiasedGain(sum, products[i]!))) } : {}),
  };
}
