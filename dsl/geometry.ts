import type { FieldBits, LowRankCodec, QjlCodec, ScalarCodec } from './codec.js';
import { nearestLevel } from './codecs/lloydMax.js';
import { projectionSigns } from './codecs/qjl.js';
import { KvforgeError } from './errors.js';
import { type LatentGeometry, latentSizes } from './latentGeometry.js';
import type { ModelShape } from './model.js';
import {
  isAllocated,
  isLatent,
  isScalar,
  isTilt,
  type LatentChain,
  type LatentScheme,
  type LowRankScheme,
  outlierCap,
  quantizerOf,
  type ScalarChain,
  type ScalarScheme,
  type Scheme,
  type TiltScheme,
  type TiltValues,
  trimUnits,
} from './scheme.js';
import { type TiltGeometry, tiltSizes } from './tiltGeometry.js';

/** Components of the key code that share a width, and where their fields lie in a token's row. */
export interface KeyGroup {
  readonly index: number;
  readonly firstComponent: number;
  readonly components: number;
  readonly bits: number;
  readonly firstWord: number;
  readonly words: number;
}

/** What every scheme and model fix together. All counts are elements unless the name says words (of 32 bits). */
export interface CacheGeometry {
  readonly scheme: Scheme;
  readonly model: ModelShape;
  readonly headDim: number;
  /** Pairs of a head: the rotary ones first, then pairs of channels that are not rotated (see `firstOfPair`). */
  readonly pairs: number;
  readonly rotaryPairs: number;
  readonly heads: number;
  readonly kvHeads: number;
  /** Query heads that share one KV head. */
  readonly groupSize: number;
  /** kvHeads * headDim. */
  readonly width: number;
  /** Largest power of two that divides the head dimension. */
  readonly hadamardBlock: number;
  /** Keys are coded times a weight a channel, which reading divides out; tokens count as the prompt's queries see them. */
  readonly weighted: boolean;
  /** Words of the codes of one token's keys, all KV heads. */
  readonly keyRowWords: number;
  readonly valueRowWords: number;
  readonly streamBits: number;
  /** Words of one coded vector of the stream (one token, one KV head). */
  readonly streamWords: number;
  /** Words of one token's f16 norms in the stream. */
  readonly normWords: number;
  /** Tokens of the fine angle table; the coarse table has one row for every so many tokens. */
  readonly angleTile: number;
}

/** Sizes of a scheme with low-rank keys and vector-quantised values. */
export interface LowRankGeometry extends CacheGeometry {
  readonly family: 'low-rank';
  readonly scheme: LowRankScheme;
  readonly rank: number;
  /** Words of one basis row: four int8 columns a word. */
  readonly rankWords: number;
  /** Groups with fixed widths; none where every prompt allocates its own. */
  readonly keyGroups: readonly KeyGroup[];
  /** Groups of 16 components whose widths the prompt decides: word g of the part `keyWidths` describes group g. */
  readonly allocatedGroups: number;
  /** Components whose codes are unpacked together: the longest group. */
  readonly groupComponents: number;
  readonly channels: number;
  readonly entries: number;
}

/** How the channels of keys, or of values, are coded one by one. */
export interface ScalarGroups {
  readonly codec: ScalarCodec;
  readonly bits: number;
  /** Words of one coded vector (one token, one KV head). */
  readonly headWords: number;
  /** Keys are coded before RoPE. */
  readonly unrotated: boolean;
  /** Vectors are coded after the Hadamard transform. */
  readonly turned: boolean;
  /** Keys are coded as the radius and the angle over pi of each pair, in the places of its channels. */
  readonly polar: boolean;
  /** Tokens that share a scale; 0 for all of the prompt. */
  readonly scaleTokens: number;
  /** Channels of a head that share a scale. */
  readonly scaleChannels: number;
  /** What the codec's levels are asked for: numbers of a block, or where it is of the whole prompt those of a token. */
  readonly levelChannels: number;
  /** Words of the f16 scales of so many tokens, all KV heads. */
  readonly scaleRowWords: number;
  /** Of ten thousand numbers of a block, how many its range leaves out at each end. */
  readonly trim: number;
  /** Numbers kept beside the codes of a token and KV head, at most; 0 for none. */
  readonly outlierCap: number;
  /** 1 or -1 by channel, which a residual is multiplied with before its projection; none where no signs of it are kept. */
  readonly projection: readonly number[];
  /** From where to where a number over its scale is no outlier. */
  readonly range: readonly [number, number];
}

/** Sizes of a scheme that codes every channel by itself. */
export interface ScalarGeometry extends CacheGeometry {
  readonly family: 'scalar';
  readonly scheme: ScalarScheme;
  readonly keys: ScalarGroups;
  readonly values: ScalarGroups;
}

/** Every size that a scheme and a model fix together. */
export type Geometry = LowRankGeometry | ScalarGeometry | LatentGeometry | TiltGeometry;

/** The sizes that a scheme has, by its family. */
export type GeometryOf<Given extends Scheme> = Given extends LatentScheme
  ? LatentGeometry
  : Given extends TiltScheme
    ? TiltGeometry
    : Given extends LowRankScheme
      ? LowRankGeometry
      : ScalarGeometry;

/**
 * Specialises a scheme to a model.
 *
 * @throws KvforgeError `invalid-scheme` with the path of what cannot be, for this model
 * @example
 * geometryOf(shard, presetModel('llama-3.1-8b')).rank; // 192
 */
export function geometryOf<Given extends Scheme>(scheme: Given, model: ModelShape): GeometryOf<Given> {
  const refuse = (at: string, expected: string, received: string | number, hint: string): never => {
    throw new KvforgeError('invalid-scheme', { at, expected, received: String(received), hint });
  };
  if (!isLatent(scheme)) checkHeads(model, refuse);
  const own = isLatent(scheme)
    ? latentSizes(scheme, model, latentGroups(model, refuse), refuse)
    : isTilt(scheme)
      ? tiltSizes(scheme, model, scalarGroups(scheme.values, 'values', model, refuse), refuse)
      : isScalar(scheme)
        ? scalarSizes(scheme, model, refuse)
        : lowRankSizes(scheme, model, refuse);
  const streamed = isLatent(scheme) ? Object.values(model.latent!) : [model.headDim];
  for (const channels of streamed) checkLevels(scheme.stream, 'stream', channels, refuse);
  checkScores(model, refuse);
  const { headDim, kvHeads, heads, groupSize, width } = model;
  return {
    model,
    headDim,
    pairs: headDim / 2,
    rotaryPairs: model.rope.rotaryDim / 2,
    heads,
    kvHeads,
    groupSize,
    width,
    hadamardBlock: headDim & -headDim,
    streamBits: scheme.stream.bits,
    streamWords: Math.ceil((headDim * scheme.stream.bits) / 32),
    normWords: Math.ceil(kvHeads / 2),
    angleTile: isTilt(scheme) ? scheme.keys[1].tile : 64,
    ...own,
  } as GeometryOf<Given>;
}

type Own<Sizes extends Geometry> = Omit<
  Sizes,
  Exclude<keyof CacheGeometry, 'scheme' | 'weighted' | 'keyRowWords' | 'valueRowWords'>
>;

function lowRankSizes(scheme: LowRankScheme, model: ModelShape, refuse: Refuse): Own<LowRankGeometry> {
  const { headDim, width } = model;
  if (width < 16) refuse('model.width', 'at least 16', width, 'Such a model needs no compression.');
  const [, basis] = scheme.keys;
  const allocated = isAllocated(basis.bits) ? basis.bits : undefined;
  const automatic = Math.min(Math.floor(width / 16) * 16, Math.max(16, Math.round((width * 3) / 16 / 16) * 16));
  const rank = basis.rank === 'auto' ? automatic : basis.rank;
  if (rank > width) {
    refuse(
      'keys[1].rank',
      `at most ${width} (the width of ${model.name})`,
      rank,
      "Lower the rank, or write rank: 'auto'.",
    );
  }
  const keyGroups = isAllocated(basis.bits) ? [] : placeGroups(basis, basis.bits, { rank, name: model.name }, refuse);
  const budget = allocated?.budget === 'auto' ? rank * 4 : allocated?.budget;
  if (budget !== undefined && budget > rank * 8) {
    refuse('keys[1].bits.budget', `at most ${rank * 8} (8 bits for ${rank} components)`, budget, 'Lower the budget.');
  }
  const [, , quantizer] = scheme.values;
  if (headDim % (quantizer.channels * 4) !== 0) {
    refuse(
      'values[2].channels',
      `a number whose fourfold divides the head dimension ${headDim}`,
      quantizer.channels,
      'Four one-byte indices fill a word.',
    );
  }
  return {
    family: 'low-rank',
    scheme,
    rank,
    rankWords: Math.ceil(rank / 4),
    keyGroups,
    allocatedGroups: allocated ? rank / 16 : 0,
    groupComponents: allocated ? 16 : Math.max(...keyGroups.map((group) => group.components)),
    keyRowWords: budget === undefined ? keyGroups.reduce((sum, { words }) => sum + words, 0) : budget / 32,
    weighted: basis.weight === 'queries',
    channels: quantizer.channels,
    entries: quantizer.entries,
    valueRowWords: width / quantizer.channels / 4,
  };
}

function scalarSizes(scheme: ScalarScheme, model: ModelShape, refuse: Refuse): Own<ScalarGeometry> {
  const keys = scalarGroups(scheme.keys, 'keys', model, refuse);
  const values = scalarGroups(scheme.values, 'values', model, refuse);
  const rowWords = ({ headWords }: ScalarGroups) => model.kvHeads * headWords;
  return {
    family: 'scalar',
    scheme,
    keys,
    values,
    weighted: false,
    keyRowWords: rowWords(keys),
    valueRowWords: rowWords(values),
  };
}

/** Latents and rotary parts are coded as the one KV head of a model with so many channels would be. */
function latentGroups(model: ModelShape, refuse: Refuse) {
  return (chain: LatentChain, at: 'latent' | 'rotary', headDim: number) =>
    scalarGroups(chain, at, { ...model, headDim, kvHeads: 1 }, refuse);
}

/** What errors call the parts of a token that is no key and value of several heads. */
const tokenParts: ReadonlyMap<string, string> = new Map([
  ['latent', 'latent'],
  ['rotary', 'rotary part'],
]);

function scalarGroups(chain: ScalarChain | TiltValues, at: string, model: ModelShape, refuse: Refuse): ScalarGroups {
  const { headDim, kvHeads } = model;
  const quantizer = quantizerOf(chain);
  const { codec, block } = quantizer;
  const place = `${at}[${chain.indexOf(quantizer as never)}]`;
  const scaleChannels = block.channels === 'head' ? headDim : block.channels;
  if (headDim % scaleChannels !== 0) {
    const part = tokenParts.get(at);
    const whole = part ? `the ${headDim} channels of the ${part}` : `the head dimension ${headDim}`;
    const hint = part ? 'Scales do not cross from latents to rotary parts.' : 'Scales do not cross heads.';
    refuse(`${place}.block.channels`, `a number that divides ${whole}, or 'head'`, scaleChannels, hint);
  }
  // A block of the whole prompt has no known number; its scale is no norm, and levels do not depend on it.
  const levelChannels = block.tokens === 'prompt' ? scaleChannels : block.tokens * scaleChannels;
  const levelRange = checkLevels(codec, `${place}.codec`, levelChannels, refuse);
  return {
    codec,
    bits: codec.bits,
    headWords: Math.ceil((headDim * codec.bits) / 32),
    unrotated: chain.some(({ kind }) => kind === 'rotary'),
    turned: chain.some(({ kind }) => kind === 'transform'),
    polar: chain.some(({ kind }) => kind === 'polar'),
    scaleTokens: block.tokens === 'prompt' ? 0 : block.tokens,
    scaleChannels,
    levelChannels,
    scaleRowWords: Math.ceil((kvHeads * (headDim / scaleChannels)) / 2),
    trim: Math.round((quantizer.trim ?? 0) * trimUnits),
    outlierCap: outlierCap(chain),
    projection: projectionOf(chain, at, headDim, refuse),
    range: codec.range ?? levelRange,
  };
}

function projectionOf(chain: ScalarChain | TiltValues, at: string, headDim: number, refuse: Refuse): readonly number[] {
  const step = chain.findIndex(({ kind }) => kind === 'qjl');
  if (step < 0) return [];
  if (headDim < 32 || (headDim & (headDim - 1)) !== 0) {
    const hint = 'One transform projects a whole head; take the keys of turboquant4.';
    refuse(`${at}[${step}]`, 'a head dimension that is a power of two from 32 on', headDim, hint);
  }
  return projectionSigns((chain[step] as QjlCodec).seed, headDim);
}

/**
 * Whether a kernel reads `value` as what it is, to float32's precision, and not as infinite, nor as zero.
 *
 * @example
 * isNormalFloat(1e-40); // false
 */
export function isNormalFloat(value: number): boolean {
  const size = Math.abs(Math.fround(value));
  return size >= 2 ** -126 && size < Number.POSITIVE_INFINITY;
}

/**
 * Sizes that there are schedules for. A model may be put together by hand: kernels that trust counts which contradict one
 * another would read past a row, or miss heads.
 */
export function checkHeads({ heads, kvHeads, groupSize, headDim, width, latent }: ModelShape, refuse: Refuse): void {
  if (latent) {
    const received = `a latent of ${latent.latentDim} channels for all heads`;
    refuse(
      'model.latent',
      'keys and values for each KV head',
      received,
      'Take a scheme of latents, such as latent-int8.',
    );
  }
  const isCount = (value: number) => Number.isSafeInteger(value) && value > 0;
  if (!isCount(headDim) || headDim % 16 !== 0 || headDim > 256) {
    refuse('model.headDim', 'a multiple of 16, at most 256', headDim, 'Other head sizes have no schedule yet.');
  }
  const hint = 'Let modelFrom(config) or presetModel(name) make the model.';
  for (const [name, count] of Object.entries({ kvHeads, groupSize })) {
    if (!isCount(count)) refuse(`model.${name}`, 'a whole number of at least 1', count, hint);
  }
  const [wanted, whole] = [kvHeads * groupSize, kvHeads * headDim];
  if (heads !== wanted) {
    refuse('model.heads', `${wanted} (${kvHeads} KV heads of ${groupSize} query heads)`, heads, hint);
  }
  if (width !== whole) refuse('model.width', `${whole} (${kvHeads} KV heads x ${headDim})`, width, hint);
}

/** Kernels hold the scale and the cap, both also times log2(e), and scale / cap. */
export function checkScores({ scoreScale, scoreCap }: ModelShape, refuse: Refuse): void {
  const fits = (value: number) => value > 0 && isNormalFloat(value) && isNormalFloat(value * Math.LOG2E);
  const expected = 'a number above 0 that float32 holds at full precision';
  const hint = 'Most models have 1 / sqrt(headDim).';
  if (!fits(scoreScale)) refuse('model.scoreScale', expected, scoreScale, hint);
  if (scoreCap === undefined) return;
  if (!fits(scoreCap)) refuse('model.scoreCap', expected, scoreCap, 'Leave it out for scores without a cap.');
  if (!fits(scoreScale / scoreCap)) {
    refuse('model.scoreScale', `${expected}, over scoreCap too`, `${scoreScale} over ${scoreCap}`, hint);
  }
}

function placeGroups(
  basis: LowRankCodec,
  bits: FieldBits | readonly FieldBits[],
  { rank, name }: { readonly rank: number; readonly name: string },
  refuse: Refuse,
): KeyGroup[] {
  const count = Math.ceil(rank / basis.group);
  const widths = typeof bits === 'number' ? Array.from({ length: count }, () => bits) : bits;
  if (widths.length !== count) {
    refuse(
      'keys[1].bits',
      `${count} widths (rank ${rank} of ${name} in groups of ${basis.group})`,
      `${widths.length}`,
      'Give one width a group, or one for all.',
    );
  }
  const groups: KeyGroup[] = [];
  let firstWord = 0;
  for (const [index, width] of widths.entries()) {
    const firstComponent = index * basis.group;
    const components = Math.min(basis.group, rank - firstComponent);
    const words = Math.ceil((components * width) / 32);
    groups.push({ index, firstComponent, components, bits: width, firstWord, words });
    firstWord += words;
  }
  return groups;
}

/** Sums of a head's channels, each the largest level times the largest scale, stay far within float32. */
const largestLevel = 65504;

type Range = readonly [number, number];

/** Least and greatest level of tables that were found to be right; a codec is asked for its levels once a number of channels. */
const checkedLevels = new WeakMap<object, Map<number, Range>>();

type Refuse = (at: string, expected: string, received: string | number, hint: string) => never;

/**
 * One finite number a code. They need an order only where a code is found by bisection: a codec of floating-point numbers
 * goes from zero up and from zero down.
 */
/** The least and the greatest level. */
function checkLevels(codec: ScalarCodec, place: string, channels: number, refuse: Refuse): Range {
  const ranges = checkedLevels.get(codec) ?? new Map<number, Range>();
  checkedLevels.set(codec, ranges);
  const known = ranges.get(channels);
  if (known) return known;
  const count = 2 ** codec.bits;
  const bisected = codec.device.code === nearestLevel;
  const at = `${place}.levels`;
  const expected = `${count} finite numbers${bisected ? ', ascending,' : ''} for ${channels} channels`;
  const hint = 'Return one value for every code.';
  let levels: unknown;
  try {
    levels = codec.levels(channels);
  } catch (error) {
    refuse(at, expected, `an exception: ${error instanceof Error ? error.message : String(error)}`, hint);
  }
  if (!Array.isArray(levels)) refuse(at, expected, 'something else than an array', hint);
  const given = levels as readonly unknown[];
  if (given.length !== count) refuse(at, expected, `${given.length} numbers`, hint);
  // As a kernel reads them: float32.
  const read = given.map((level) => (typeof level === 'number' ? Math.fround(level) : Number.NaN));
  for (const [i, level] of read.entries()) {
    if (!Number.isFinite(level)) refuse(at, expected, `${String(given[i])} at ${i}`, hint);
    if (Math.abs(level) > largestLevel) {
      const most = `numbers up to ${largestLevel}, which a scale of f16 leaves finite`;
      refuse(at, most, `${String(given[i])} at ${i}`, 'Let the scale hold the size.');
    }
    if (bisected && i > 0 && level <= read[i - 1]!) {
      refuse(at, expected, `${given[i - 1]} before ${given[i]} at ${i}`, 'Sort them, and name none twice.');
    }
  }
  const range: Range = [Math.min(...(given as number[])), Math.max(...(given as number[]))];
  ranges.set(channels, range);
  return range;
}
