import { layerShape, type ModelShape } from '../../dsl/model.js';
import { hadamard } from './hadamard.js';
import { nearestLevel } from './lloydMax.js';
import { encodeOutliers, type OutlierRule } from './outliers.js';
import { polarForm } from './polar.js';
import { largestHalf, toHalf } from './quantize.js';
import { encodeResiduals } from './residualSigns.js';
import { type Rotation, unrotate } from './rope.js';
import { codedVector, type ScalarBlock, type ScalarCodes, type ScalarParts } from './scalar.js';
import { encodeSegments, requireCache, type SegmentOptions, sliceTokens } from './segmentsEncode.js';
import { type Cache, type HeadTensor, vectorAt } from './shapes.js';

/** How the numbers of a block become codes. */
export interface ScalarRule {
  /** What codes stand for, over the scale; ascending, at most 256. A number gets the code nearest to it. */
  readonly levels: readonly number[];
  /** What is taken off every number: nothing, the least of the block, or the middle between it and the greatest. */
  readonly offset: 'none' | 'least' | 'middle';
  /** What the rest is divided by: its Euclidean length over the block, its largest magnitude, or no less than that. */
  readonly scale: 'norm' | 'largest' | 'covering';
  /** Of ten thousand numbers of a block, how many are clamped to the others at each end; none if left out. */
  readonly trim?: number;
}

/** A block of numbers as it is stored. */
export interface CodedBlock {
  readonly codes: Uint8Array;
  /** Float16. */
  readonly scale: number;
  /** Float16; zero where the rule takes nothing off. */
  readonly offset: number;
}

/**
 * Codes the numbers that share a scale. A scale of zero, of a block that is flat or too small for float16, gives every
 * number the code nearest to zero.
 *
 * @param x finite
 * @example
 * encodeBlock(Float64Array.of(1, 2, 3), { levels: [0, 0.5, 1], offset: 'least', scale: 'largest' }); // { codes: [0, 1, 2], scale: 2, offset: 1 }
 */
export function encodeBlock(
  x: Float64Array,
  { levels, offset: taken, scale: measure, trim = 0 }: ScalarRule,
): CodedBlock {
  const table = Float64Array.from(levels);
  const { least, greatest } = rangeOf(x, trim);
  const offset = taken === 'none' ? 0 : toHalf(taken === 'least' ? least : (least + greatest) / 2);
  const rest = x.map((number) => Math.min(Math.max(number, least), greatest) - offset);
  const largest = rest.reduce((most, y) => Math.max(most, Math.abs(y)), 0);
  const nearest = toHalf(measure === 'norm' ? Math.hypot(...rest) : largest);
  const scale = measure === 'covering' && nearest < largest ? nextHalf(nearest) : nearest;
  const codes = Uint8Array.from(x, (number) => nearestLevel(scale > 0 ? (number - offset) / scale : 0, table));
  return { codes, scale, offset };
}

/**
 * The ends of numbers once the least and the greatest trim * count / 10000 of them, rounded, are left out; zeros of none.
 *
 * @param trim in ten thousandths
 * @example
 * rangeOf(Float64Array.of(5, 1, 2, 3, 4), 2000); // { least: 2, greatest: 4 }
 */
export function rangeOf(x: Float64Array, trim: number): { readonly least: number; readonly greatest: number } {
  const sorted = x.slice().sort();
  const leftOut = Math.round((trim * x.length) / 10000);
  return { least: sorted[leftOut] ?? 0, greatest: sorted[sorted.length - 1 - leftOut] ?? 0 };
}

/** The float16 above one that is not negative; the largest has none. */
function nextHalf(x: number): number {
  if (x >= largestHalf) return x;
  const exponent = x < 2 ** -14 ? -14 : Math.floor(Math.log2(x));
  return x + 2 ** (exponent - 10);
}

/** How the keys, or the values, of a middle are coded. */
export interface ScalarCoding extends Pick<ScalarCodes, 'form' | 'block'> {
  readonly rule: ScalarRule;
  /** What is kept beside the codes; nothing if left out. */
  readonly outliers?: OutlierRule;
  /** [d], 1 or -1, for the signs of what the codes leave; none are kept if left out. */
  readonly projection?: ArrayLike<number>;
}

export interface ScalarOptions extends SegmentOptions {
  readonly keys: ScalarCoding;
  /** Neither before RoPE nor as radii and angles. */
  readonly values: ScalarCoding;
  /** The layer of the model whose RoPE this is; the first if left out. */
  readonly layer?: number;
}

/**
 * Compresses one layer of a prompt at positions 0 .. T-1 with a code for every channel, in float64; only what the format
 * stores is rounded.
 *
 * @param cache finite; keys after RoPE
 * @example
 * const rule = { levels: [0, 1 / 3, 2 / 3, 1], offset: 'least', scale: 'largest' } as const;
 * const { middle } = encodeScalar(exact, model, {
 *   keys: { rule, form: 'cached', block: { tokens: 16, channels: 1 } },
 *   values: { rule, form: 'cached', block: { tokens: 1, channels: 16 } },
 *   sinks: 4,
 *   window: 8,
 * });
 * middle.tokens; // 36
 */
export function encodeScalar(cache: Cache, model: ModelShape, options: ScalarOptions): ScalarParts {
  requireCache(cache, model);
  const faults: [fault: boolean, message: string][] = [
    [options.values.form === 'unrotated', 'values have no RoPE to take off'],
    [options.values.form === 'polar', 'values have no pairs that RoPE turns'],
    [options.keys.form === 'polar' && options.keys.block.channels > 1, 'radii and angles have no scale in common'],
    ...[options.keys, options.values].map(({ block }): [boolean, string] => [
      model.headDim % block.channels !== 0,
      `${block.channels} channels of a scale do not divide a head of ${model.headDim}`,
    ]),
  ];
  for (const [fault, message] of faults) if (fault) throw new RangeError(message);
  const { middle, ...segments } = encodeSegments(cache, options);
  const { first, tokens } = middle;
  const { rope } = layerShape(model, options.layer ?? 0);
  const coded = (tensor: HeadTensor, coding: ScalarCoding) =>
    encodeNumbers(inForm(sliceTokens(tensor, first, tokens), coding.form, first, rope), coding);
  const keys = coded(cache.keys, options.keys);
  const values = coded(cache.values, options.values);
  const hasOutliers = options.keys.outliers !== undefined || options.values.outliers !== undefined;
  return {
    kvHeads: model.kvHeads,
    headDim: model.headDim,
    rope,
    ...segments,
    middle: {
      tokens,
      firstPosition: first,
      keys: keys.codes,
      values: values.codes,
      ...(hasOutliers ? { clamped: { keys: keys.clamped, values: values.clamped } } : {}),
    },
  };
}

/**
 * The vectors of a middle in the form that is coded.
 *
 * @param tensor of the middle alone
 * @param first position of its first token
 */
export function inForm(tensor: HeadTensor, form: ScalarCodes['form'], first: number, rope: Rotation): HeadTensor {
  const data = new Float64Array(tensor.data.length);
  const formed = { ...tensor, data };
  for (let head = 0; head < tensor.heads; head++) {
    for (let token = 0; token < tensor.tokens; token++) {
      const vector = vectorAt(tensor, head, token);
      const turned = form === 'turned' ? hadamard(vector) : vector;
      const coded =
        form === 'polar'
          ? polarForm(vector, rope)
          : form === 'unrotated'
            ? unrotate(vector, first + token, rope)
            : turned;
      vectorAt(formed, head, token).set(coded);
    }
  }
  return formed;
}

/** One block of a middle, and where its scale is stored. */
export interface PlacedBlock {
  readonly head: number;
  readonly firstToken: number;
  readonly tokens: number;
  readonly firstChannel: number;
  readonly channels: number;
  /** Index of its scale. */
  readonly at: number;
}

/** Every block of a middle, in the order of their scales. */
export function blocksOf(block: ScalarBlock, { heads, tokens, channels }: HeadTensor): readonly PlacedBlock[] {
  const placed: PlacedBlock[] = [];
  const length = block.tokens === 'prompt' ? tokens : block.tokens;
  for (let firstToken = 0; firstToken < tokens; firstToken += length) {
    for (let head = 0; head < heads; head++) {
      for (let firstChannel = 0; firstChannel < channels; firstChannel += block.channels) {
        const size = { tokens: Math.min(length, tokens - firstToken), channels: block.channels };
        placed.push({ head, firstToken, firstChannel, ...size, at: placed.length });
      }
    }
  }
  return placed;
}

/** The numbers of a block, token by token. */
export function numbersOf(
  tensor: HeadTensor,
  { head, firstToken, tokens, firstChannel, channels }: PlacedBlock,
): Float64Array {
  const numbers = new Float64Array(tokens * channels);
  for (let i = 0; i < tokens; i++) {
    const vector = vectorAt(tensor, head, firstToken + i);
    numbers.set(vector.subarray(firstChannel, firstChannel + channels), i * channels);
  }
  return numbers;
}

function encodeNumbers(
  numbers: HeadTensor,
  { rule, form, block, outliers, projection }: ScalarCoding,
): { readonly codes: ScalarCodes; readonly clamped: number } {
  const { heads, channels: d } = numbers;
  const blocks = blocksOf(block, numbers);
  const codes = new Uint8Array(numbers.data.length);
  const scales = new Float64Array(blocks.length);
  const offsets = new Float64Array(blocks.length);
  for (const placed of blocks) {
    const { head, firstToken, tokens, firstChannel, channels, at } = placed;
    const coded = encodeBlock(numbersOf(numbers, placed), rule);
    scales[at] = coded.scale;
    offsets[at] = coded.offset;
    for (let i = 0; i < tokens; i++) {
      const row = coded.codes.subarray(i * channels, (i + 1) * channels);
      codes.set(row, ((firstToken + i) * heads + head) * d + firstChannel);
    }
  }
  const values = Float64Array.from(rule.levels);
  const dense = { form, block, codes, scales, ...(rule.offset === 'none' ? {} : { offsets }), values };
  if (projection) {
    const left = { ...numbers, data: new Float64Array(numbers.data.length) };
    for (let head = 0; head < heads; head++) {
      for (let token = 0; token < numbers.tokens; token++) {
        const stands = codedVector(dense, { token, head, heads, channels: d });
        vectorAt(left, head, token).set(vectorAt(numbers, head, token).map((x, i) => x - stands[i]!));
      }
    }
    return { codes: { ...dense, residuals: encodeResiduals(left, projection) }, clamped: 0 };
  }
  if (!outliers) return { codes: dense, clamped: 0 };
  const { kept, clamped } = encodeOutliers(numbers, dense, outliers);
  return { codes: { ...dense, outliers: kept }, clamped };
}
