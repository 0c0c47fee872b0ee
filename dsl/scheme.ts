import type {
  AllocatedBits,
  FieldBits,
  GainCodec,
  LowRankCodec,
  NormalizeCodec,
  OutlierCodec,
  PolarCodec,
  QjlCodec,
  Quantizer,
  RotaryCodec,
  ScalarCodec,
  TileRotation,
  TransformCode,
  TransformCodec,
  VectorQuantizer,
} from './codec.js';
import { vectorNorm } from './codecs/lloydMax.js';
import { KvforgeError } from './errors.js';

/** Keys as a linear code over all KV heads. */
export type LowRankKeys = readonly [RotaryCodec, LowRankCodec];
/** Values as indices into a fitted codebook. */
export type VectorValues = readonly [TransformCodec, NormalizeCodec, VectorQuantizer];
/** A code a channel, and the numbers that it does not reach beside it, or clamped. */
type Coded = readonly [Quantizer] | readonly [Quantizer, OutlierCodec];
/** Every channel coded by itself: as it is, or after the Hadamard transform. */
export type ScalarValues = Coded | readonly [TransformCodec, ...Coded];
/** Keys are as values are, coded before RoPE, or as radii and angles; after the transform the signs of what is left may follow. */
export type ScalarChain =
  | ScalarValues
  | readonly [RotaryCodec | PolarCodec, ...Coded]
  | readonly [TransformCodec, Quantizer, QjlCodec];

/** Keys rotated within tiles of tokens, and transform coded a KV head at a time. */
export type TiltKeys = readonly [RotaryCodec, TileRotation, TransformCode];
/** Values coded channel by channel after the Hadamard transform, and perhaps made unbiased. */
export type TiltValues = readonly [TransformCodec, Quantizer] | readonly [TransformCodec, Quantizer, GainCodec];

/** How keys are coded, first step first. */
export type KeyChain = LowRankKeys | ScalarChain | TiltKeys;
/** How values are coded, first step first. */
export type ValueChain = VectorValues | ScalarValues | TiltValues;

/** What every scheme has, whatever its codes. */
export interface SchemeSegments {
  /** Lower-case letters, digits and hyphens; it names files and kernels. */
  readonly name: string;
  /** First tokens kept in f16 (attention sinks), 0 to 64. */
  readonly sinks: number;
  /** Last tokens kept in f16, 1 to 1024. */
  readonly window: number;
  /** What a token becomes when it leaves the window during generation. */
  readonly stream: ScalarCodec;
}

export interface LowRankScheme extends SchemeSegments {
  readonly keys: LowRankKeys;
  readonly values: VectorValues;
  readonly latent?: never;
}

export interface ScalarScheme extends SchemeSegments {
  readonly keys: ScalarChain;
  readonly values: ScalarValues;
  readonly latent?: never;
}

/** Tile-rotated transform coding of keys, with values coded channel by channel. */
export interface TiltScheme extends SchemeSegments {
  readonly keys: TiltKeys;
  readonly values: TiltValues;
  readonly latent?: never;
}

/** Latents, token by token: as they are, or after the Hadamard transform. */
export type LatentChain = readonly [Quantizer] | readonly [TransformCodec, Quantizer];
/** The rotary part of a token beside its latent: with codes of its own, or in f16. */
export type RotaryChain = readonly [Quantizer] | 'exact';

/**
 * Multi-head latent attention (DeepSeek-V2, 2024): a token is one latent, which serves as key and as value of every head,
 * and a rotary part that all heads share.
 */
export interface LatentScheme extends SchemeSegments {
  readonly latent: LatentChain;
  readonly rotary: RotaryChain;
}

/**
 * A compression scheme: what a user writes and all that kvforge knows of it. Along the sequence it lays out
 * `sinks` exact tokens, the compressed middle, the stream of generated tokens, and a `window` of exact tokens.
 */
export type Scheme = LowRankScheme | ScalarScheme | LatentScheme | TiltScheme;

/** Whether a scheme codes every channel by itself. It need not have been checked: what is no list of codecs does not. */
export function isScalar(scheme: Scheme): scheme is ScalarScheme {
  return kindsOf((scheme as Partial<ScalarScheme>).keys)?.includes('quantizer') ?? false;
}

/** Whether keys are such steps as stand beside a quantizer, without one: what they lack is that, and no low-rank code. */
function lackQuantizer(keys: unknown): boolean {
  const kinds = kindsOf(keys) ?? [];
  const beside: readonly unknown[] = ['transform', 'polar', 'qjl', 'outliers'];
  return (
    kinds.some((kind) => beside.includes(kind)) && kinds.every((kind) => kind === 'rotary' || beside.includes(kind))
  );
}

/** Whether a scheme codes keys by a transform within tiles. It need not have been checked. */
export function isTilt(scheme: Scheme): scheme is TiltScheme {
  return kindsOf((scheme as Partial<TiltScheme>).keys)?.includes('transform-code') ?? false;
}

/** Whether a scheme codes latents. It need not have been checked. */
export function isLatent(scheme: Scheme): scheme is LatentScheme {
  // Names that it lacks are not read: a user's proxy may refuse them.
  return typeof scheme === 'object' && scheme !== null && 'latent' in scheme && scheme.latent !== undefined;
}

/** The kinds of a list of codecs, null for what has none; undefined for what is no list. */
function kindsOf(chain: unknown): readonly unknown[] | undefined {
  if (!Array.isArray(chain)) return undefined;
  return Array.from(chain, (codec) => (codec as { kind?: unknown } | null)?.kind ?? null);
}

/** The step of a chain of scalar codes that has the codec. */
export function quantizerOf(chain: ScalarChain | LatentChain | TiltValues): Quantizer {
  return chain.find((step) => step.kind === 'quantizer')!;
}

/** Numbers that a chain keeps beside the codes of a token and KV head, at most. */
export function outlierCap(chain: ScalarChain | TiltValues): number {
  return chain.find((step) => step.kind === 'outliers')?.cap ?? 0;
}

/** Of the share that a range leaves out: in ten thousandths kernels count without rounding. */
export const trimUnits = 10000;

/** A latent is key and value at once: a scheme of latents has neither beside them. */
type Alone<Declared> = Declared extends { readonly latent: LatentChain }
  ? { readonly keys?: never; readonly values?: never }
  : unknown;

/**
 * Declares a scheme and checks what can be checked without a model.
 *
 * @throws KvforgeError `invalid-scheme` with the path into the descriptor
 * @example
 * export const shardSmall = defineScheme({ ...shard, name: 'shard-small', keys: [unrope(), pca({ rank: 64, bits: 4, group: 64 })] });
 */
export function defineScheme<Declared extends Scheme>(scheme: Declared & Alone<Declared>): Declared {
  const refuse = (at: string, expected: string, received: unknown, hint: string): never => {
    throw new KvforgeError('invalid-scheme', { at, expected, received: shown(received), hint });
  };
  const isCount = (value: unknown, low: number, high: number) =>
    Number.isInteger(value) && (value as number) >= low && (value as number) <= high;

  if (typeof scheme !== 'object' || scheme === null) refuse('scheme', 'an object', scheme, 'Pass a descriptor.');
  if (typeof scheme.name !== 'string' || !/^[a-z][a-z0-9-]{0,39}$/.test(scheme.name)) {
    refuse(
      'name',
      'lower-case letters, digits and hyphens, at most 40',
      scheme.name,
      'The name becomes part of file names.',
    );
  }
  if (isLatent(scheme)) {
    checkLatent(scheme, refuse);
  } else if (isScalar(scheme) || lackQuantizer(scheme.keys)) {
    checkScalarChain(scheme.keys, 'keys', ['rotary', 'transform', 'polar'], refuse);
    checkScalarChain(scheme.values, 'values', ['transform'], refuse);
  } else if (isTilt(scheme)) {
    checkTiltChains(scheme, refuse);
  } else {
    checkKinds(scheme.keys, 'keys', ['rotary', 'low-rank'], 'unrope(), pca({...})', refuse);
    const kinds = ['transform', 'normalize', 'vector-quantizer'];
    checkKinds(scheme.values, 'values', kinds, 'hadamard(), channelMax(), vq({...})', refuse);
  }
  if (!isCount(scheme.sinks, 0, 64)) refuse('sinks', 'a whole number from 0 to 64', scheme.sinks, 'Shard keeps 4.');
  if (!isCount(scheme.window, 1, 1024))
    refuse('window', 'a whole number from 1 to 1024', scheme.window, 'Shard keeps 64.');
  if (isLatent(scheme)) {
    for (const [i, codec] of scheme.latent.entries()) checkName(codec, `latent[${i}]`, refuse);
    if (scheme.rotary !== 'exact') checkName(scheme.rotary[0], 'rotary[0]', refuse);
  } else {
    for (const [i, codec] of scheme.keys.entries()) checkName(codec, `keys[${i}]`, refuse);
    for (const [i, codec] of scheme.values.entries()) checkName(codec, `values[${i}]`, refuse);
  }
  checkKinds([scheme.stream], 'stream', ['scalar'], 'lloydMax({ bits: 8 })', refuse);

  checkName(scheme.stream, 'stream', refuse);

  if (isLatent(scheme)) {
    checkTokenQuantizer(scheme.latent, 'latent', refuse);
    if (scheme.rotary !== 'exact') checkTokenQuantizer(scheme.rotary, 'rotary', refuse);
  } else if (isScalar(scheme)) {
    checkQuantizer(scheme.keys, 'keys', refuse);
    checkQuantizer(scheme.values, 'values', refuse);
  } else if (isTilt(scheme)) {
    checkTilt(scheme, refuse);
  } else {
    checkLowRank(scheme, refuse);
  }
  checkScalarCodec(scheme.stream, 'stream', refuse);
  if (scheme.stream.device.offset !== undefined) {
    const hint = 'Take a codec without an offset, such as lloydMax or symmetric.';
    refuse('stream.device.offset', 'nothing, as the stream stores a scale alone', 'a function', hint);
  }
  return scheme;
}

function checkTiltChains({ keys, values }: TiltScheme, refuse: Refuse): void {
  const keyKinds = ['rotary', 'tile-rotation', 'transform-code'];
  checkKinds(keys, 'keys', keyKinds, 'unrope(), tileRotation({ tile: 64 }), transformCode({ bits: 1.5 })', refuse);
  const valueKinds = ['transform', 'quantizer', ...(kindsOf(values)?.at(-1) === 'gain' ? ['gain'] : [])];
  checkKinds(values, 'values', valueKinds, 'hadamard(), perToken(uniformNormal({ bits: 2 })), gain()', refuse);
}

function checkTilt({ keys, values }: TiltScheme, refuse: Refuse): void {
  const [, { tile }, { bits, rangeBlock }] = keys;
  if (![16, 32, 64, 128].includes(tile)) {
    refuse('keys[1].tile', '16, 32, 64 or 128', tile, 'With 64 attention turns a query once for 64 tokens.');
  }
  if (!(typeof bits === 'number' && Number.isInteger(bits * 4) && bits >= 0.25 && bits <= 6)) {
    refuse('keys[2].bits', 'a multiple of 1/4 from 1/4 to 6', bits, 'Give the mean over the channels: 1.5.');
  }
  if (![0, 128, 256, 512, 1024, 2048].includes(rangeBlock)) {
    refuse('keys[2].rangeBlock', '0, 128, 256, 512, 1024 or 2048', rangeBlock, 'Leave it out for 512.');
  }
  checkQuantizer(values, 'values', refuse);
  const [, { block }] = values;
  if (block.tokens !== 1) {
    refuse('values[1].block.tokens', '1', block.tokens, 'Write perToken(...).');
  }
}

function checkLowRank(scheme: LowRankScheme, refuse: Refuse): void {
  const isCount = (value: number, low: number) => Number.isInteger(value) && value >= low && value <= 65536;
  const [, basis] = scheme.keys;
  if (basis.rank !== 'auto' && !(isCount(basis.rank, 16) && basis.rank % 16 === 0)) {
    refuse(
      'keys[1].rank',
      "a multiple of 16 from 16 on, or 'auto'",
      basis.rank,
      'Tensor cores take components 16 at a time.',
    );
  }
  if (![16, 32, 64, 128].includes(basis.group)) {
    refuse('keys[1].group', '16, 32, 64 or 128', basis.group, 'Shard uses 64.');
  }
  if (isAllocated(basis.bits)) checkBudget(basis.bits.budget, basis.group, refuse);
  else checkWidths(basis, basis.bits, refuse);
  if (!['none', 'queries'].includes(basis.weight)) {
    refuse('keys[1].weight', "'none' or 'queries'", basis.weight, "Leave it out for 'none'.");
  }
  checkRounds(basis.iterations, basis.seed, 'keys[1]', refuse);

  const [, , quantizer] = scheme.values;
  if (![2, 4, 8].includes(quantizer.channels))
    refuse('values[2].channels', '2, 4 or 8', quantizer.channels, 'Shard uses 4.');
  if (![16, 32, 64, 128, 256].includes(quantizer.entries)) {
    refuse(
      'values[2].entries',
      '16, 32, 64, 128 or 256 (what a u8 index can name)',
      quantizer.entries,
      'Shard uses 256.',
    );
  }
  if (quantizer.index !== 'u8')
    refuse('values[2].index', "'u8'", quantizer.index, 'Leave it to vq({...}): an index is one byte.');
  if (typeof quantizer.unbiased !== 'boolean')
    refuse('values[2].unbiased', 'true or false', quantizer.unbiased, 'Leave it out for false.');
  checkRounds(quantizer.iterations, quantizer.seed, 'values[2]', refuse);
}

function checkLatent(scheme: LatentScheme, refuse: Refuse): void {
  for (const name of ['keys', 'values'] as const) {
    const given = (scheme as { readonly [part in typeof name]?: unknown })[name];
    if (given === undefined) continue;
    refuse(name, 'nothing beside latent', kindsOf(given) ?? given, 'A latent is key and value at once.');
  }
  checkScalarChain(scheme.latent, 'latent', ['transform'], refuse);
  if (scheme.rotary === 'exact') return;
  const kinds = kindsOf(scheme.rotary);
  if (kinds?.length === 1 && kinds[0] === 'quantizer') return;
  refuse('rotary', "a quantizer alone, or 'exact'", kinds ?? scheme.rotary, 'Write [perToken(...)].');
}

/** A token is coded by itself, in one pass: nothing is shared over tokens, left out of a range, or kept beside the codes. */
function checkTokenQuantizer(chain: LatentChain, at: 'latent' | 'rotary', refuse: Refuse): void {
  const last = chain[chain.length - 1]! as { readonly kind: string };
  if (last.kind === 'outliers')
    refuse(at, 'no outliers', kindsOf(chain), 'Leave them out: latents have none beside them.');
  checkQuantizer(chain, at, refuse);
  const { block, trim } = quantizerOf(chain);
  const place = `${at}[${chain.length - 1}]`;
  if (block.tokens !== 1) refuse(`${place}.block.tokens`, '1', block.tokens, 'Write perToken(...).');
  if (trim !== undefined) refuse(`${place}.trim`, 'nothing', trim, 'Write perToken(...) without trim.');
}

/** Whether a scale can be shared by so many tokens, or channels. */
const isBlockSide = (side: unknown) => [1, 16, 32, 64, 128].includes(side as number);

type ScalarPart = 'keys' | 'values' | 'latent';

function checkScalarChain(chain: unknown, at: ScalarPart, before: readonly string[], refuse: Refuse): void {
  const met = kindsOf(chain);
  const kinds = met ?? [];
  const example = at === 'keys' ? 'unrope(), polar() or hadamard()' : 'hadamard()';
  const [first] = kinds;
  const isSigned = at === 'keys' && first === 'transform' && kinds.length === 3 && kinds[2] === 'qjl';
  const coded = kinds.at(-1) === 'outliers' || isSigned ? kinds.slice(0, -1) : kinds;
  const fits = coded.at(-1) === 'quantizer' && coded.length <= 2;
  if (!fits || (coded.length === 2 && !before.includes(first as string))) {
    const expected = `a quantizer, after ${example} or alone`;
    const after = {
      keys: '; outliers({...}) may follow it, or qjl() where hadamard() comes first',
      values: '; outliers({...}) may follow it',
      latent: '',
    };
    refuse(at, expected, met ?? chain, `Write perToken(...)${after[at]}.`);
  }
}

function checkQuantizer(chain: ScalarChain | LatentChain | TiltValues, at: string, refuse: Refuse): void {
  const quantizer = quantizerOf(chain);
  const place = `${at}[${chain.indexOf(quantizer as never)}]`;
  const { codec, block, trim } = quantizer;
  checkKinds([codec], `${place}.codec`, ['scalar'], 'perToken(symmetric({ bits: 4 }))', refuse);
  checkName(codec, `${place}.codec`, refuse);
  checkScalarCodec(codec, `${place}.codec`, refuse);
  for (const [side, whole] of [
    ['tokens', 'prompt'],
    ['channels', 'head'],
  ] as const) {
    const given: unknown = block?.[side];
    if (given === whole || isBlockSide(given)) continue;
    refuse(
      `${place}.block.${side}`,
      `1, 16, 32, 64, 128 or '${whole}'`,
      given,
      'Write perToken(...) or perChannel(...).',
    );
  }
  if (chain.some(({ kind }) => kind === 'polar') && block.channels !== 1) {
    const hint = 'Write perChannel(...): radii and angles have no scale in common.';
    refuse(`${place}.block.channels`, '1 after polar()', block.channels, hint);
  }
  if (block.tokens === 'prompt' && codec.device.scale === vectorNorm) {
    const expected = 'a codec whose scale does not grow with the number of tokens';
    const hint = 'Take symmetric, asymmetric or table, or let fewer tokens share a scale.';
    refuse(`${place}.codec`, expected, codec.name, hint);
  }
  const units = Math.round((trim ?? 0) * trimUnits);
  if (trim !== undefined && !(units > 0 && units <= trimUnits / 5 && Math.abs(trim * trimUnits - units) < 1e-6)) {
    refuse(`${place}.trim`, 'a multiple of 0.0001 from 0.0001 to 0.2', trim, 'KVQuant leaves out 0.005 at each end.');
  }
  const last = chain[chain.length - 1]!;
  if (last.kind === 'qjl' && !(Number.isInteger(last.seed) && last.seed >= 0 && last.seed <= 0xffffffff)) {
    const hint = 'Leave it out for 1.';
    refuse(`${at}[${chain.length - 1}].seed`, 'a whole number from 0 to 4294967295', last.seed, hint);
  }
  if (last.kind !== 'outliers') return;
  const isCap = Number.isInteger(last.cap) && last.cap >= 1 && last.cap <= 8;
  if (!isCap) refuse(`${at}[${chain.length - 1}].cap`, 'a whole number from 1 to 8', last.cap, 'KVQuant keeps 1 %.');
}

function isAscendingPair(range: unknown): boolean {
  if (!Array.isArray(range) || range.length !== 2 || !range.every(Number.isFinite)) return false;
  return (range[0] as number) < (range[1] as number);
}

function checkScalarCodec(codec: ScalarCodec, at: string, refuse: Refuse): void {
  if (![2, 3, 4, 8].includes(codec.bits)) refuse(`${at}.bits`, '2, 3, 4 or 8', codec.bits, 'Shard ships 8.');
  const hint = 'Build the codec with defineCodec.';
  if (typeof codec.levels !== 'function') {
    refuse(`${at}.levels`, 'a function of the head dimension', codec.levels, hint);
  }
  for (const role of ['scale', 'code', 'value'] as const) {
    const fn: unknown = codec.device?.[role];
    if (typeof fn !== 'function') refuse(`${at}.device.${role}`, "a function marked 'device'", fn, hint);
  }
  const range: unknown = codec.range;
  if (range !== undefined && !isAscendingPair(range)) {
    refuse(
      `${at}.range`,
      'two finite numbers, ascending, or nothing',
      range,
      'Leave it out for the first and last level.',
    );
  }
  const { offset } = codec.device;
  if (offset !== undefined && typeof offset !== 'function') {
    refuse(`${at}.device.offset`, "a function marked 'device', or nothing", offset, hint);
  }
}

/** A value as a text; it may be anything, as a scheme comes from a user's file. */
function shown(value: unknown): string {
  if (typeof value === 'bigint') return `${value}n`;
  // JSON writes NaN and Infinity as null, which would hide the fault.
  if (typeof value === 'number' || typeof value === 'symbol') return String(value);
  try {
    const text = JSON.stringify(value, (_, inner: unknown) => (typeof inner === 'bigint' ? `${inner}n` : inner));
    return text ?? 'undefined';
  } catch {
    return 'an object that has no JSON';
  }
}

/** Whether widths are decided by each prompt instead of by the scheme. */
export function isAllocated(bits: LowRankCodec['bits']): bits is AllocatedBits {
  return typeof bits === 'object' && bits !== null && 'budget' in bits;
}

function checkBudget(budget: unknown, group: number, refuse: Refuse): void {
  const isBudget = Number.isInteger(budget) && (budget as number) >= 32 && (budget as number) <= 8192;
  if (budget !== 'auto' && !(isBudget && (budget as number) % 32 === 0)) {
    refuse('keys[1].bits.budget', "a multiple of 32 from 32 to 8192, or 'auto'", budget, 'A row is whole words.');
  }
  if (group !== 16) {
    refuse('keys[1].group', '16, as bits are allocated', group, 'A group is what a tensor core takes at a time.');
  }
}

function checkWidths(basis: LowRankCodec, given: FieldBits | readonly FieldBits[], refuse: Refuse): void {
  const widths: readonly FieldBits[] = typeof given === 'number' ? [given] : given;
  if (!Array.isArray(widths) || widths.length === 0)
    refuse('keys[1].bits', 'a width, a list of widths or { budget }', given, 'Write bits: 4.');
  for (const [i, bits] of widths.entries()) {
    const at = typeof given === 'number' ? 'keys[1].bits' : `keys[1].bits[${i}]`;
    if (![0, 2, 4, 6, 8].includes(bits)) refuse(at, '0, 2, 4, 6 or 8', bits, 'Codes are packed at these widths.');
  }
  if (widths.every((bits) => bits === 0)) refuse('keys[1].bits', 'at least one width above 0', given, 'Write bits: 4.');
  if (typeof given !== 'number' && basis.rank !== 'auto' && widths.length !== Math.ceil(basis.rank / basis.group)) {
    refuse(
      'keys[1].bits',
      `${Math.ceil(basis.rank / basis.group)} widths (rank ${basis.rank} in groups of ${basis.group})`,
      given,
      'Give one width a group.',
    );
  }
}

type Refuse = (at: string, expected: string, received: unknown, hint: string) => never;

function checkKinds(chain: unknown, at: string, kinds: readonly string[], example: string, refuse: Refuse): void {
  const met = kindsOf(chain);
  if (met?.length !== kinds.length || met.some((kind, i) => kind !== kinds[i])) {
    refuse(at, `codecs of kind ${kinds.join(', ')}`, met ?? chain, `Write ${example}.`);
  }
}

function checkName(codec: { readonly name: string }, at: string, refuse: Refuse): void {
  if (typeof codec.name === 'string' && /^[A-Za-z][A-Za-z0-9_-]{0,39}$/.test(codec.name)) return;
  const expected = 'a letter, then letters, digits, hyphens and underscores, at most 40';
  refuse(`${at}.name`, expected, codec.name, 'The name is printed in generated text.');
}

function checkRounds(iterations: number, seed: number, at: string, refuse: Refuse): void {
  if (!Number.isInteger(iterations) || iterations < 1 || iterations > 1000) {
    refuse(`${at}.iterations`, 'a whole number from 1 to 1000', iterations, 'Leave it out for the published value.');
  }
  if (!Number.isInteger(seed) || seed < 0 || seed > 0xffffffff) {
    refuse(`${at}.seed`, 'a whole number from 0 to 4294967295', seed, 'Leave it out for 1.');
  }
}
