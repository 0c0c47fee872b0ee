import { partsOf } from '../../codegen/plan/layout.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import type { SequenceLengths } from '../record.js';
import { checkWhole, shown } from './checkInput.js';
import type { CacheMemory } from './memory.js';

/**
 * Tokens of the middle that can only be evicted together, as they share a row of scales: blocks of so many, counted from
 * the first token of the middle; the last block may have fewer. Only where nothing moves, as the first tokens of the middle
 * are kept and no later ones, may it end anywhere. Tokens of the stream are evicted one by one.
 *
 * @example
 * evictionUnit(geometryOf(kivi4, presetModel('llama-3.1-8b'))); // 32
 */
export function evictionUnit(geometry: Geometry): number {
  const rows = partsOf(geometry).map(({ tokensPerRow = 1 }) => tokensPerRow);
  return rows.reduce((unit, row) => (unit / greatestCommonDivisor(unit, row)) * row, 1);
}

function greatestCommonDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}

/** Tokens that are kept or evicted together, in the order of `decompress`: from `first` to before `end`. */
export interface TokenBlock {
  readonly first: number;
  readonly end: number;
}

/**
 * The tokens of the middle and of the stream as they can be evicted: the middle in blocks of `evictionUnit`, the stream
 * one by one. Where keys of the middle are coded before RoPE they take their position from their place, so that it is one
 * block: some of it cannot go while later ones stay.
 *
 * @example
 * const lengths = { sinkTokens: 4, middleTokens: 2, streamTokens: 0, windowTokens: 9, windowStart: 0, promptTokens: 15 };
 * evictionBlocks(geometryOf(int8, presetModel('llama-3.1-8b')), lengths); // [{ first: 4, end: 5 }, { first: 5, end: 6 }]
 */
export function evictionBlocks(
  geometry: Geometry,
  { sinkTokens, middleTokens, streamTokens }: SequenceLengths,
): readonly TokenBlock[] {
  const streamStart = sinkTokens + middleTokens;
  const unit = keysTakePlaceForPosition(geometry) ? Math.max(1, middleTokens) : evictionUnit(geometry);
  const middle = Array.from({ length: Math.ceil(middleTokens / unit) }, (_, block) => {
    const first = sinkTokens + block * unit;
    return { first, end: Math.min(first + unit, streamStart) };
  });
  const stream = Array.from({ length: streamTokens }, (_, token) => {
    return { first: streamStart + token, end: streamStart + token + 1 };
  });
  return [...middle, ...stream];
}

/** @throws KvforgeError `wrong-use` unless tokens of the middle and of the stream are named, ascending, each once */
export function checkKept(
  tokens: unknown,
  sequence: number,
  { sinkTokens, middleTokens, streamTokens }: SequenceLengths,
): readonly number[] {
  const hint = 'Name them as decompress orders them; sinks and window stay without being named.';
  const expected = 'a list of tokens to keep, ascending';
  if (!Array.isArray(tokens) && !(ArrayBuffer.isView(tokens) && !(tokens instanceof DataView))) {
    throw new KvforgeError('wrong-use', { at: 'tokens', expected, received: shown(tokens), hint });
  }
  const kept = Array.from(tokens as ArrayLike<unknown>);
  const end = sinkTokens + middleTokens + streamTokens;
  const segments = `the middle and the stream of sequence ${sequence}`;
  if (end === sinkTokens && kept.length > 0) {
    const none = `no token, as ${segments} are empty`;
    throw new KvforgeError('wrong-use', { at: 'tokens', expected: none, received: `${kept.length}`, hint });
  }
  for (const [index, token] of kept.entries()) {
    checkWhole(token, { at: `tokens[${index}]`, least: sinkTokens, most: end - 1, bounds: segments, hint });
    const before = kept[index - 1] as number | undefined;
    if (before === undefined || (token as number) > before) continue;
    const more = `more than ${before} (the token before it)`;
    throw new KvforgeError('wrong-use', { at: `tokens[${index}]`, expected: more, received: shown(token), hint });
  }
  return kept as number[];
}

/** @throws KvforgeError `wrong-use` where tokens cannot be evicted, or not one without the other */
export function checkEvictable(
  { geometry, layer }: CacheMemory,
  sequence: number,
  { sinkTokens, middleTokens, streamTokens }: SequenceLengths,
  kept: readonly number[],
): void {
  const refuse = (expected: string, received: string, hint: string): never => {
    throw new KvforgeError('wrong-use', { at: 'tokens', expected, received, hint });
  };
  if (kept.length === middleTokens + streamTokens) return;
  if (layer.slidingWindow !== undefined) {
    refuse(
      `all ${middleTokens + streamTokens} of sequence ${sequence}: the layer's sliding window counts tokens back`,
      `${kept.length}`,
      'Evict from layers that see all tokens.',
    );
  }
  const inMiddle = kept.filter((token) => token < sinkTokens + middleTokens).map((token) => token - sinkTokens);
  const moved = inMiddle.findIndex((token, index) => token !== index);
  // The first tokens of the middle stay where they are, as after a crop, and the last row may be of fewer.
  if (moved < 0) return;
  if (keysTakePlaceForPosition(geometry)) {
    refuse(
      `the first tokens of the middle, or none of it: keys of ${geometry.scheme.name} are coded before RoPE and take their position from their place`,
      `${inMiddle[moved]! + sinkTokens} after ${moved === 0 ? 'the sinks' : inMiddle[moved - 1]! + sinkTokens}`,
      'Take a scheme that codes keys after RoPE, or evict from the stream alone.',
    );
  }
  const unit = evictionUnit(geometry);
  const held = new Map<number, number>();
  for (const token of inMiddle) held.set(Math.floor(token / unit), (held.get(Math.floor(token / unit)) ?? 0) + 1);
  for (const [block, count] of held) {
    const [first, end] = [block * unit, Math.min((block + 1) * unit, middleTokens)];
    if (count === end - first) continue;
    refuse(
      `all or none of tokens ${sinkTokens + first} to ${sinkTokens + end - 1} of sequence ${sequence}, which share a row of scales`,
      `${count} of them`,
      `Keep whole blocks of evictionUnit(geometry) tokens, ${unit}, counted from the first of the middle.`,
    );
  }
}

/** Whether the middle's keys are turned to positions that follow from where their rows lie. */
function keysTakePlaceForPosition(geometry: Geometry): boolean {
  return geometry.family === 'scalar' ? geometry.keys.unrotated : geometry.family !== 'latent';
}
