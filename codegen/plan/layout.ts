import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import { splitFunctions, splitTile } from '../../dsl/ropeSplit.js';
import type { Extent } from '../../dsl/stage.js';

/** Where the number of rows of a part comes from. */
export type PartRows = 'sequence' | 'sinks' | 'window' | 'middle' | 'stream';

/** One named array in a sequence's share of the cache buffer. */
export interface PartDescriptor {
  readonly name: PartName;
  readonly rows: PartRows;
  readonly wordsPerRow: number;
  /** Contents and shape, for people. */
  readonly holds: string;
}

const partNames = [
  'sinkKeys',
  'sinkValues',
  'windowKeys',
  'windowValues',
  'keyCodes',
  'keyScales',
  'keyBasis',
  'keyBasisScales',
  'keyMean',
  'valueCodes',
  'codebook',
  'channelMax',
  'streamKeyCodes',
  'streamKeyNorms',
  'streamValueCodes',
  'streamValueNorms',
  'keyWidths',
  'keyWeights',
] as const;
export type PartName = (typeof partNames)[number];

/**
 * The record that describes one sequence to every kernel, in device memory: lengths first, then the offset of every
 * part in words from the start of the cache buffer. 64 words, so that WebGPU can bind one record alone.
 */
export const recordFields = {
  sinkTokens: 'exact tokens at the start',
  middleTokens: 'compressed tokens of the prompt',
  streamTokens: 'generated tokens that left the window',
  windowTokens: 'exact tokens in the ring',
  windowStart: "slot of the ring's oldest token",
  promptTokens: 'tokens of the prompt in the input of the encode stages',
  streamCapacity: 'tokens the stream has room for',
  refusedTokens: 'tokens refused because the stream was full',
  slidingWindow: 'tokens that a query sees, itself included; 0 for all',
  queryTokens: 'queries that came with the prompt, of its last tokens',
} as const;
export type RecordField = keyof typeof recordFields;
export const recordWords = 64;
export const recordBytes = recordWords * 4;

/** Word of a field, or of a part's offset, in the record. */
export function recordIndex(name: RecordField | PartName): number {
  const fields = Object.keys(recordFields);
  const field = fields.indexOf(name);
  return field >= 0 ? field : fields.length + partNames.indexOf(name as PartName);
}

/** The parts of one sequence and layer, in memory order; what a scheme has no use for is left out. */
export function partsOf(g: Geometry): readonly PartDescriptor[] {
  const heads = `[${g.kvHeads} KV heads][${g.headDim}]`;
  const widths = g.allocatedGroups > 0 ? '0- to 8' : [...new Set(g.keyGroups.map((group) => group.bits))].join('/');
  return [
    { name: 'sinkKeys', rows: 'sinks', wordsPerRow: g.width / 2, holds: `f16 [sinks]${heads}, after RoPE` },
    { name: 'sinkValues', rows: 'sinks', wordsPerRow: g.width / 2, holds: `f16 [sinks]${heads}` },
    { name: 'windowKeys', rows: 'window', wordsPerRow: g.width / 2, holds: `f16 ring [window]${heads}, after RoPE` },
    { name: 'windowValues', rows: 'window', wordsPerRow: g.width / 2, holds: `f16 ring [window]${heads}` },
    {
      name: 'keyCodes',
      rows: 'middle',
      wordsPerRow: g.keyRowWords,
      holds: `${widths}-bit fields [middle][${g.rank} components]`,
    },
    { name: 'keyScales', rows: 'sequence', wordsPerRow: Math.ceil(g.rank / 2), holds: `f16 [${g.rank} components]` },
    {
      name: 'keyBasis',
      rows: 'sequence',
      wordsPerRow: g.width * g.rankWords,
      holds: `i8 [${g.width} channels][${g.rank} components]`,
    },
    {
      name: 'keyBasisScales',
      rows: 'sequence',
      wordsPerRow: Math.ceil(g.rank / 2),
      holds: `f16 [${g.rank} components]`,
    },
    { name: 'keyMean', rows: 'sequence', wordsPerRow: g.width / 2, holds: `f16 [${g.width} channels], before RoPE` },
    {
      name: 'valueCodes',
      rows: 'middle',
      wordsPerRow: g.valueRowWords,
      holds: `u8 [middle][${g.width / g.channels} vectors]`,
    },
    {
      name: 'codebook',
      rows: 'sequence',
      wordsPerRow: (g.entries * g.channels) / 2,
      holds: `f16 [${g.entries} entries][${g.channels}]`,
    },
    { name: 'channelMax', rows: 'sequence', wordsPerRow: g.width / 2, holds: `f16 ${heads}, after Hadamard` },
    {
      name: 'streamKeyCodes',
      rows: 'stream',
      wordsPerRow: g.kvHeads * g.streamWords,
      holds: `${g.streamBits}-bit fields [stream]${heads}, after RoPE and Hadamard`,
    },
    { name: 'streamKeyNorms', rows: 'stream', wordsPerRow: g.normWords, holds: `f16 [stream][${g.kvHeads} KV heads]` },
    {
      name: 'streamValueCodes',
      rows: 'stream',
      wordsPerRow: g.kvHeads * g.streamWords,
      holds: `${g.streamBits}-bit fields [stream]${heads}, after Hadamard`,
    },
    {
      name: 'streamValueNorms',
      rows: 'stream',
      wordsPerRow: g.normWords,
      holds: `f16 [stream][${g.kvHeads} KV heads]`,
    },
    ...(g.allocatedGroups > 0 ? [keyWidths(g)] : []),
    ...(g.weighted ? [keyWeights(g)] : []),
  ];
}

function keyWidths(g: Geometry): PartDescriptor {
  return {
    name: 'keyWidths',
    rows: 'sequence',
    wordsPerRow: g.allocatedGroups,
    holds: `u32 [${g.allocatedGroups} groups of 16 components]: first bit in the row * 16 + bits a component`,
  };
}

function keyWeights(g: Geometry): PartDescriptor {
  const holds = `f16 [${g.width} channels], above 0: keys are coded times this`;
  return { name: 'keyWeights', rows: 'sequence', wordsPerRow: g.width / 2, holds };
}

/** A word of the record that describes one sequence. */
export interface RecordEntry {
  readonly name: RecordField | PartName;
  readonly word: number;
  readonly holds: string;
}

/** Every word of the record that is in use, in order. */
export function recordEntries(g: Geometry): readonly RecordEntry[] {
  return [
    ...Object.entries(recordFields).map(([name, holds]) => ({ name: name as RecordField, holds })),
    ...partsOf(g).map(({ name, holds }) => ({ name, holds: `first word of ${name}: ${holds}` })),
  ].map(({ name, holds }) => ({ name, word: recordIndex(name), holds }));
}

/** One of the constant tables that all kernels share, in one f32 buffer. */
export interface TableDescriptor {
  readonly name: 'levels' | 'fineAngles' | 'splitFunctions' | 'splitCoefficients' | 'coarseAngles';
  /** Numbers from the start of the buffer. */
  readonly offset: number;
  /** Row-major; `positions` is how many the angles must cover. */
  readonly shape: readonly Extent[];
  readonly holds: string;
}

/** The tables in memory order. */
export function tablesOf(
  g: Geometry,
): readonly [TableDescriptor, TableDescriptor, TableDescriptor, TableDescriptor, TableDescriptor] {
  const levels = 2 ** g.streamBits;
  const row = [g.pairs, 2] as const;
  const functions = levels + g.angleTile * g.pairs * 2;
  const coefficients = functions + splitTile * splitFunctions;
  return [
    { name: 'levels', offset: 0, shape: [levels], holds: 'stream levels' },
    {
      name: 'fineAngles',
      offset: levels,
      shape: [g.angleTile, ...row],
      holds: `(cosine, sine) of position % ${g.angleTile}`,
    },
    {
      name: 'splitFunctions',
      offset: functions,
      shape: [splitTile, splitFunctions],
      holds: `functions of position % ${splitTile} that stand for the rotation of the slow pairs`,
    },
    {
      name: 'splitCoefficients',
      offset: coefficients,
      shape: [g.pairs, splitFunctions, 2],
      holds: 'what of each function goes into (cosine, sine) of a slow pair',
    },
    {
      name: 'coarseAngles',
      offset: coefficients + g.pairs * splitFunctions * 2,
      shape: [{ ceilDiv: [{ dimension: 'positions' }, g.angleTile] }, ...row],
      holds: `(cosine, sine) of position - position % ${g.angleTile}`,
    },
  ];
}

export interface SequenceCapacity {
  readonly sinks: number;
  readonly middle: number;
  readonly stream: number;
  readonly window: number;
}

export interface PlacedPart extends PartDescriptor {
  /** Bytes from the start of the sequence's share. */
  readonly offset: number;
  /** Bytes of data; up to 12 more may follow as padding to 16. */
  readonly bytes: number;
}

export interface SequenceLayout {
  readonly capacity: SequenceCapacity;
  readonly parts: readonly PlacedPart[];
  /** Bytes of the share: parts and padding, a multiple of 256. */
  readonly bytes: number;
}

/**
 * Splits a prompt into sinks, middle and window; short prompts fill the sinks first, then the window.
 *
 * @example
 * splitPrompt(geometryOf(shard, model), 256); // { sinks: 4, middle: 188, window: 64 }
 */
export function splitPrompt(g: Geometry, tokens: number): { sinks: number; middle: number; window: number } {
  const sinks = Math.min(g.scheme.sinks, tokens);
  const window = Math.min(g.scheme.window, tokens - sinks);
  return { sinks, middle: tokens - sinks - window, window };
}

/**
 * Places every part of one sequence and layer: the only place that computes an offset or a size.
 *
 * @throws KvforgeError `wrong-use` when a count is not a whole number from 0 to 2^24
 * @example
 * layoutSequence(geometryOf(shard, presetModel('llama-3.1-8b')), { tokens: 8192, generated: 0 }).bytes; // 3341824
 */
export function layoutSequence(g: Geometry, counts: { tokens: number; generated: number }): SequenceLayout {
  for (const [name, value] of Object.entries(counts)) {
    if (!Number.isInteger(value) || value < 0 || value > 2 ** 24) {
      throw new KvforgeError('wrong-use', {
        at: name,
        expected: 'a whole number from 0 to 16777216',
        received: String(value),
        hint: 'Give the tokens of one sequence.',
      });
    }
  }
  const capacity = {
    sinks: g.scheme.sinks,
    middle: splitPrompt(g, counts.tokens).middle,
    stream: counts.generated,
    window: g.scheme.window,
  };
  const parts: PlacedPart[] = [];
  let offset = 0;
  for (const part of partsOf(g)) {
    const rows = part.rows === 'sequence' ? 1 : capacity[part.rows];
    const bytes = rows * part.wordsPerRow * 4;
    parts.push({ ...part, offset, bytes });
    offset += Math.ceil(bytes / 16) * 16;
  }
  return { capacity, parts, bytes: Math.ceil(offset / 256) * 256 };
}

/**
 * Bytes of the same tokens in f16, uncompressed.
 *
 * @example
 * halfPrecisionBytes(geometryOf(shard, presetModel('llama-3.1-8b')), 8192); // 33554432
 */
export function halfPrecisionBytes(g: Geometry, tokens: number): number {
  return tokens * g.width * 2 * 2;
}
