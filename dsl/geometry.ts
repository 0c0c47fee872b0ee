import { KvforgeError } from './errors.js';
import type { ModelShape } from './model.js';
import type { Scheme } from './scheme.js';

/** Components of the key code that share a width, and where their fields lie in a token's row. */
export interface KeyGroup {
  readonly index: number;
  readonly firstComponent: number;
  readonly components: number;
  readonly bits: number;
  readonly firstWord: number;
  readonly words: number;
}

/** Every size that a scheme and a model fix together. All counts are elements unless the name says words (of 32 bits). */
export interface Geometry {
  readonly scheme: Scheme;
  readonly model: ModelShape;
  readonly headDim: number;
  readonly pairs: number;
  readonly heads: number;
  readonly kvHeads: number;
  /** Query heads that share one KV head. */
  readonly groupSize: number;
  /** kvHeads * headDim. */
  readonly width: number;
  readonly rank: number;
  /** Words of one basis row: four int8 columns a word. */
  readonly rankWords: number;
  readonly keyGroups: readonly KeyGroup[];
  readonly keyRowWords: number;
  /** Largest power of two that divides the head dimension. */
  readonly hadamardBlock: number;
  readonly channels: number;
  readonly entries: number;
  readonly valueRowWords: number;
  readonly streamBits: number;
  /** Words of one coded vector of the stream (one token, one KV head). */
  readonly streamWords: number;
  /** Words of one token's f16 norms in the stream. */
  readonly normWords: number;
  /** Tokens of the fine angle table; the coarse table has one row for every so many tokens. */
  readonly angleTile: number;
}

/**
 * Specialises a scheme to a model.
 *
 * @throws KvforgeError `invalid-scheme` with the path of what cannot be, for this model
 * @example
 * geometryOf(shard, presetModel('llama-3.1-8b')).rank; // 192
 */
export function geometryOf(scheme: Scheme, model: ModelShape): Geometry {
  const refuse = (at: string, expected: string, received: string | number, hint: string): never => {
    throw new KvforgeError('invalid-scheme', { at, expected, received: String(received), hint });
  };
  const { headDim, kvHeads, heads, groupSize, width } = model;
  if (headDim % 16 !== 0 || headDim > 256) {
    refuse('model.headDim', 'a multiple of 16, at most 256', headDim, 'Other head sizes have no schedule yet.');
  }
  if (width < 16) refuse('model.width', 'at least 16', width, 'Such a model needs no compression.');
  const [, basis] = scheme.keys;
  const automatic = Math.min(width, Math.max(16, Math.round((width * 3) / 16 / 16) * 16));
  const rank = basis.rank === 'auto' ? automatic : basis.rank;
  if (rank > width) {
    refuse(
      'keys[1].rank',
      `at most ${width} (the width of ${model.name})`,
      rank,
      "Lower the rank, or write rank: 'auto'.",
    );
  }
  const groupCount = Math.ceil(rank / basis.group);
  const widths =
    typeof basis.bits === 'number' ? Array.from({ length: groupCount }, () => basis.bits as number) : basis.bits;
  if (widths.length !== groupCount) {
    refuse(
      'keys[1].bits',
      `${groupCount} widths (rank ${rank} of ${model.name} in groups of ${basis.group})`,
      `${widths.length}`,
      'Give one width a group, or one for all.',
    );
  }
  const keyGroups: KeyGroup[] = [];
  let firstWord = 0;
  for (const [index, bits] of widths.entries()) {
    const firstComponent = index * basis.group;
    const components = Math.min(basis.group, rank - firstComponent);
    const words = Math.ceil((components * bits) / 32);
    keyGroups.push({ index, firstComponent, components, bits, firstWord, words });
    firstWord += words;
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
  checkLevels(scheme, headDim, refuse);
  return {
    scheme,
    model,
    headDim,
    pairs: headDim / 2,
    heads,
    kvHeads,
    groupSize,
    width,
    rank,
    rankWords: Math.ceil(rank / 4),
    keyGroups,
    keyRowWords: firstWord,
    hadamardBlock: headDim & -headDim,
    channels: quantizer.channels,
    entries: quantizer.entries,
    valueRowWords: width / quantizer.channels / 4,
    streamBits: scheme.stream.bits,
    streamWords: Math.ceil((headDim * scheme.stream.bits) / 32),
    normWords: Math.ceil(kvHeads / 2),
    angleTile: 64,
  };
}

/** Tables that were found to be right; a codec is asked for its levels once a head dimension. */
const checkedLevels = new WeakMap<object, Set<number>>();

type Refuse = (at: string, expected: string, received: string | number, hint: string) => never;

function checkLevels({ stream }: Scheme, headDim: number, refuse: Refuse): void {
  const known = checkedLevels.get(stream);
  if (known?.has(headDim)) return;
  const count = 2 ** stream.bits;
  const expected = `${count} finite numbers, ascending, for a head dimension of ${headDim}`;
  const hint = 'Return one value for every code.';
  let levels: unknown;
  try {
    levels = stream.levels(headDim);
  } catch (error) {
    refuse('stream.levels', expected, `an exception: ${error instanceof Error ? error.message : String(error)}`, hint);
  }
  if (!Array.isArray(levels)) refuse('stream.levels', expected, 'something else than an array', hint);
  const given = levels as readonly unknown[];
  if (given.length !== count) refuse('stream.levels', expected, `${given.length} numbers`, hint);
  // As a kernel reads them: float32.
  const read = given.map((level) => (typeof level === 'number' ? Math.fround(level) : Number.NaN));
  for (const [i, level] of read.entries()) {
    if (!Number.isFinite(level)) refuse('stream.levels', expected, `${String(given[i])} at ${i}`, hint);
    if (i > 0 && level <= read[i - 1]!) {
      refuse(
        'stream.levels',
        expected,
        `${given[i - 1]} before ${given[i]} at ${i}`,
        'Sort them, and name none twice.',
      );
    }
  }
  checkedLevels.set(stream, (known ?? new Set()).add(headDim));
}
