import type { ScalarGroups } from '../../dsl/geometry.js';
import { levelsOf } from '../../dsl/levels.js';
import { trimUnits } from '../../dsl/scheme.js';
import { hadamard } from '../reference/hadamard.js';
import { fromPolarForm } from '../reference/polar.js';
import { toHalf } from '../reference/quantize.js';
import { encodeResiduals, residualOf } from '../reference/residualSigns.js';
import { type Rotation, rotate } from '../reference/rope.js';
import type { ScalarCodes } from '../reference/scalar.js';
import { blocksOf, inForm, numbersOf } from '../reference/scalarEncode.js';
import { sliceTokens } from '../reference/segmentsEncode.js';
import { type HeadTensor, vectorAt } from '../reference/shapes.js';
import { codingOf } from '../reference/unpackScalar.js';

/** Tokens of a prompt that are coded: consecutive, from one on. */
export interface CodedTokens {
  readonly first: number;
  readonly tokens: number;
}

/**
 * What is read back of keys, or of values, of a prompt whose middle is coded: by the codec's own device functions in
 * Node, so that any scalar codec can be asked, with neither a device nor a compiler, and the answer is the same everywhere.
 * All but what a codec rounds is float64: where a number lies between two codes, kernels may choose the other one.
 *
 * @param exact [KV heads][tokens][head dim], numbers of float16, keys after RoPE
 * @param middle all tokens but sinks and window, which stay as they are
 * @param rope of the layer; used where keys are coded before RoPE
 */
export function readBack(groups: ScalarGroups, exact: HeadTensor, middle: CodedTokens, rope: Rotation): HeadTensor {
  const { first, tokens } = middle;
  const { form } = codingOf(groups);
  const decoded = decodedNumbers(groups, inForm(sliceTokens(exact, first, tokens), form, first, rope));
  const read: HeadTensor = { ...exact, data: exact.data.slice() };
  for (let head = 0; head < exact.heads; head++) {
    for (let token = 0; token < tokens; token++) {
      const vector = vectorAt(decoded, head, token);
      vectorAt(read, head, first + token).set(inCacheForm(vector, form, first + token, rope));
    }
  }
  return read;
}

/** A vector as the cache has it, from the form that is coded. */
function inCacheForm(vector: Float64Array, form: ScalarCodes['form'], position: number, rope: Rotation): Float64Array {
  switch (form) {
    case 'turned':
      return hadamard(vector);
    case 'unrotated':
      return rotate(vector, position, rope);
    case 'polar':
      return fromPolarForm(vector, rope);
    case 'cached':
      return vector;
  }
}

/** What the codes of numbers stand for, with the outliers that are kept beside them. */
function decodedNumbers(groups: ScalarGroups, numbers: HeadTensor): HeadTensor {
  const decoded: HeadTensor = { ...numbers, data: new Float64Array(numbers.data.length) };
  const residuals: HeadTensor = { ...numbers, data: new Float64Array(numbers.data.length) };
  const tokens = groups.scaleTokens === 0 ? 'prompt' : groups.scaleTokens;
  for (const block of blocksOf({ tokens, channels: groups.scaleChannels }, numbers)) {
    const x = numbersOf(numbers, block);
    const { values, beyond } = codedBlock(groups, x);
    for (let i = 0; i < block.tokens; i++) {
      const from = block.firstChannel;
      const row = (all: Float64Array) => all.subarray(i * block.channels, (i + 1) * block.channels);
      vectorAt(decoded, block.head, block.firstToken + i).set(row(values), from);
      vectorAt(residuals, block.head, block.firstToken + i).set(row(beyond), from);
    }
  }
  if (groups.outlierCap > 0) addOutliers(groups.outlierCap, decoded, residuals);
  if (groups.projection.length > 0) addSigned(groups.projection, decoded, numbers);
  return decoded;
}

/** What the signs and the length of what codes leave stand for. */
function addSigned(projection: readonly number[], decoded: HeadTensor, numbers: HeadTensor): void {
  const { channels: d, heads } = numbers;
  const left = { ...numbers, data: numbers.data.map((x, i) => x - decoded.data[i]!) };
  const { signs, norms } = encodeResiduals(left, projection);
  for (let head = 0; head < heads; head++) {
    for (let token = 0; token < numbers.tokens; token++) {
      const at = token * heads + head;
      const kept = residualOf(signs.subarray(at * d, (at + 1) * d), norms[at]!, projection);
      const vector = vectorAt(decoded, head, token);
      for (let i = 0; i < d; i++) vector[i]! += kept[i]!;
    }
  }
}

interface CodedBlock {
  /** What the codes stand for. */
  readonly values: Float64Array;
  /** What is left of a number beyond the range of its code; 0 for the others. */
  readonly beyond: Float64Array;
}

/** The numbers that share a scale. */
function codedBlock({ codec, bits, levelChannels, trim, range }: ScalarGroups, x: Float64Array): CodedBlock {
  const { offset: offsetOf, scale: scaleOf, code, value } = codec.device;
  const table = levelsOf(codec, levelChannels);
  const levels = (index: number) => table[index]!;
  const sorted = x.slice().sort();
  const leftOut = Math.round((x.length * trim) / trimUnits);
  const [least, greatest] = [Math.fround(sorted[leftOut]!), Math.fround(sorted[x.length - 1 - leftOut]!)];
  const offset = offsetOf?.(least, greatest) ?? 0;
  const largest = Math.max(Math.abs(least - offset), Math.abs(greatest - offset));
  const squares = x.reduce((sum, number) => {
    const within = Math.min(Math.max(number, least), greatest);
    return sum + ((within - offset) / (largest > 0 ? largest : 1)) ** 2;
  }, 0);
  const scale = scaleOf(Math.fround(squares), Math.fround(largest));
  const values = x.map(
    (number) => offset + scale * value(code(scale > 0 ? (number - offset) / scale : 0, levels, bits), levels),
  );
  const beyond = x.map((number, i) => {
    const inside = number - offset >= scale * range[0] && number - offset <= scale * range[1];
    return inside ? 0 : number - values[i]!;
  });
  return { values, beyond };
}

/** Of every token and KV head those with the largest residuals, the first channel before others of one size. */
function addOutliers(cap: number, decoded: HeadTensor, residuals: HeadTensor): void {
  for (let head = 0; head < decoded.heads; head++) {
    for (let token = 0; token < decoded.tokens; token++) {
      const left = vectorAt(residuals, head, token);
      const kept = [...left.keys()].sort((a, b) => Math.abs(left[b]!) - Math.abs(left[a]!) || a - b).slice(0, cap);
      const vector = vectorAt(decoded, head, token);
      for (const channel of kept) vector[channel]! += toHalf(left[channel]!);
    }
  }
}
