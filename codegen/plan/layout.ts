import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry, LowRankGeometry, ScalarGeometry, ScalarGroups } from '../../dsl/geometry.js';
import { splitFunctions, splitTile } from '../../dsl/ropeSplit.js';
import type { Extent } from '../../dsl/stage.js';
import { latentParts, latentTables } from './latentParts.js';
import { tiltParts, tiltTables } from './tiltParts.js';

/**
 * Where the number of rows of a part comes from. Rows of `tiles` are aligned to positions and begin at position 0: those
 * of the sinks count too.
 */
export type PartRows = 'sequence' | 'sinks' | 'window' | 'middle' | 'stream' | 'tiles';

/** One named array in a sequence's share of the cache buffer. */
export interface PartDescriptor {
  readonly name: PartName;
  readonly rows: PartRows;
  /** Elements, by the names of safetensors; fields that straddle words are U32. */
  readonly dtype: 'F16' | 'U32' | 'I8' | 'U8';
  /** Tokens that a row is for, where that is more than one. */
  readonly tokensPerRow?: number;
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
  'keyOffsets',
  'valueScales',
  'valueOffsets',
  'keyOutliers',
  'valueOutliers',
  'outlierCounts',
  'latentCodes',
  'latentScales',
  'latentOffsets',
  'rotaryKeys',
  'rotaryScales',
  'rotaryOffsets',
  'streamLatents',
  'streamRotaryKeys',
  'streamNorms',
  'tileCodes',
  'keySteps',
  'keyFields',
  'valueGains',
  'residualSigns',
  'residualNorms',
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
/** Word of a record that no kernel reads: tokens that were evicted. The last one, so that fields and parts have theirs. */
export const evictedWord = recordWords - 1;

/** Word of a field, or of a part's offset, in the record. */
export function recordIndex(name: RecordField | PartName): number {
  const fields = Object.keys(recordFields);
  const field = fields.indexOf(name);
  return field >= 0 ? field : fields.length + partNames.indexOf(name as PartName);
}

/** The parts of one sequence and layer, in memory order; what a scheme has no use for is left out. */
export function partsOf(g: Geometry): readonly PartDescriptor[] {
  if (g.family === 'latent') return latentParts(g);
  const heads = `[${g.kvHeads} KV heads][${g.headDim}]`;
  const vectors = { rows: 'stream', dtype: 'U32', wordsPerRow: g.kvHeads * g.streamWords } as const;
  const norms = {
    rows: 'stream',
    dtype: 'F16',
    wordsPerRow: g.normWords,
    holds: `f16 [stream][${g.kvHeads} KV heads]`,
  } as const;
  const fields = `${g.streamBits}-bit fields [stream]${heads}`;
  return [
    {
      name: 'sinkKeys',
      rows: 'sinks',
      dtype: 'F16',
      wordsPerRow: g.width / 2,
      holds: `f16 [sinks]${heads}, after RoPE`,
    },
    { name: 'sinkValues', rows: 'sinks', dtype: 'F16', wordsPerRow: g.width / 2, holds: `f16 [sinks]${heads}` },
    {
      name: 'windowKeys',
      rows: 'window',
      dtype: 'F16',
      wordsPerRow: g.width / 2,
      holds: `f16 ring [window]${heads}, after RoPE`,
    },
    {
      name: 'windowValues',
      rows: 'window',
      dtype: 'F16',
      wordsPerRow: g.width / 2,
      holds: `f16 ring [window]${heads}`,
    },
    ...(g.family === 'scalar' ? scalarParts(g) : g.family === 'tilt' ? tiltParts(g) : lowRankParts(g)),
    { name: 'streamKeyCodes', ...vectors, holds: `${fields}, after RoPE and Hadamard` },
    { name: 'streamKeyNorms', ...norms },
    { name: 'streamValueCodes', ...vectors, holds: `${fields}, after Hadamard` },
    { name: 'streamValueNorms', ...norms },
    ...(g.family === 'low-rank' && g.allocatedGroups > 0 ? [keyWidths(g)] : []),
    ...(g.weighted ? [keyWeights(g)] : []),
  ];
}

function lowRankParts(g: LowRankGeometry): readonly PartDescriptor[] {
  const heads = `[${g.kvHeads} KV heads][${g.headDim}]`;
  const widths = g.allocatedGroups > 0 ? '0- to 8' : [...new Set(g.keyGroups.map((group) => group.bits))].join('/');
  return [
    {
      name: 'keyCodes',
      rows: 'middle',
      dtype: 'U32',
      wordsPerRow: g.keyRowWords,
      holds: `${widths}-bit fields [middle][${g.rank} components]`,
    },
    {
      name: 'keyScales',
      rows: 'sequence',
      dtype: 'F16',
      wordsPerRow: Math.ceil(g.rank / 2),
      holds: `f16 [${g.rank} components]`,
    },
    {
      name: 'keyBasis',
      rows: 'sequence',
      dtype: 'I8',
      wordsPerRow: g.width * g.rankWords,
      holds: `i8 [${g.width} channels][${g.rank} components]`,
    },
    {
      name: 'keyBasisScales',
      rows: 'sequence',
      dtype: 'F16',
      wordsPerRow: Math.ceil(g.rank / 2),
      holds: `f16 [${g.rank} components]`,
    },
    {
      name: 'keyMean',
      rows: 'sequence',
      dtype: 'F16',
      wordsPerRow: g.width / 2,
      holds: `f16 [${g.width} channels], before RoPE`,
    },
    {
      name: 'valueCodes',
      rows: 'middle',
      dtype: 'U8',
      wordsPerRow: g.valueRowWords,
      holds: `u8 [middle][${g.width / g.channels} vectors]`,
    },
    {
      name: 'codebook',
      rows: 'sequence',
      dtype: 'F16',
      wordsPerRow: (g.entries * g.channels) / 2,
      holds: `f16 [${g.entries} entries][${g.channels}]`,
    },
    {
      name: 'channelMax',
      rows: 'sequence',
      dtype: 'F16',
      wordsPerRow: g.width / 2,
      holds: `f16 ${heads}, after Hadamard`,
    },
  ];
}

/** Codes, scales and offsets of keys, then those of values. */
function scalarParts(g: ScalarGeometry): readonly PartDescriptor[] {
  const of = (
    groups: ScalarGroups,
    names: readonly [PartName, PartName, PartName, PartName],
  ): readonly PartDescriptor[] => {
    const [codes, scales, offsets, outliers] = names;
    const { bits, headWords, unrotated, turned, polar, scaleTokens, scaleChannels, scaleRowWords } = groups;
    const where = turned ? ', after Hadamard' : unrotated ? ', before RoPE' : polar ? ', radius and angle / pi' : '';
    const blocks = `[${g.kvHeads} KV heads][${g.headDim / scaleChannels} of ${scaleChannels} channels]`;
    const [rows, holds] =
      scaleTokens === 0
        ? (['sequence', `f16 ${blocks}`] as const)
        : (['middle', `f16 [middle, ${scaleTokens} a row]${blocks}`] as const);
    const perRow = scaleTokens > 1 ? { tokensPerRow: scaleTokens } : {};
    const shared = { rows, dtype: 'F16', ...perRow, wordsPerRow: scaleRowWords } as const;
    return [
      {
        name: codes,
        rows: 'middle',
        dtype: 'U32',
        wordsPerRow: g.kvHeads * headWords,
        holds: `${bits}-bit fields [middle][${g.kvHeads} KV heads][${g.headDim}]${where}`,
      },
      { name: scales, ...shared, holds },
      ...(groups.codec.device.offset ? [{ name: offsets, ...shared, holds }] : []),
      ...(groups.outlierCap > 0 ? [outlierPart(g, groups, outliers, where)] : []),
    ];
  };
  return [
    ...of(g.keys, ['keyCodes', 'keyScales', 'keyOffsets', 'keyOutliers']),
    ...of(g.values, ['valueCodes', 'valueScales', 'valueOffsets', 'valueOutliers']),
    ...(g.keys.outlierCap + g.values.outlierCap > 0 ? [outlierCounts] : []),
    ...(g.keys.projection.length > 0 ? residualParts(g) : []),
  ];
}

/** What is kept of what the codes of keys leave. */
function residualParts({ kvHeads, headDim, normWords }: ScalarGeometry): readonly PartDescriptor[] {
  const vectors = `[middle][${kvHeads} KV heads]`;
  return [
    {
      name: 'residualSigns',
      rows: 'middle',
      dtype: 'U32',
      wordsPerRow: (kvHeads * headDim) / 32,
      holds: `bits ${vectors}[${headDim}]: 1 where the projection of what the codes leave is not below zero`,
    },
    {
      name: 'residualNorms',
      rows: 'middle',
      dtype: 'F16',
      wordsPerRow: normWords,
      holds: `f16 ${vectors}: length of what the codes leave`,
    },
  ];
}

function outlierPart(
  { kvHeads }: ScalarGeometry,
  { outlierCap }: ScalarGroups,
  name: PartName,
  where: string,
): PartDescriptor {
  return {
    name,
    rows: 'middle',
    dtype: 'U32',
    wordsPerRow: kvHeads * outlierCap,
    holds: `u32 [middle][${kvHeads} KV heads][${outlierCap} largest residuals first]: channel + f16 residual * 2^16${where}; 0 for none`,
  };
}

const outlierCounts: PartDescriptor = {
  name: 'outlierCounts',
  rows: 'sequence',
  dtype: 'U32',
  wordsPerRow: 2,
  holds: 'u32 [keys, values]: outliers of the prompt past their caps, which are clamped',
};

function keyWidths(g: LowRankGeometry): PartDescriptor {
  return {
    name: 'keyWidths',
    rows: 'sequence',
    dtype: 'U32',
    wordsPerRow: g.allocatedGroups,
    holds: `u32 [${g.allocatedGroups} groups of 16 components]: first bit in the row * 16 + bits a component`,
  };
}

function keyWeights(g: Geometry): PartDescriptor {
  const holds = `f16 [${g.width} channels], above 0: keys are coded times this`;
  return { name: 'keyWeights', rows: 'sequence', dtype: 'F16', wordsPerRow: g.width / 2, holds };
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

export type TableName =
  | 'levels'
  | 'keyLevels'
  | 'valueLevels'
  | 'latentLevels'
  | 'rotaryLevels'
  | 'streamRotaryLevels'
  | 'projectionSigns'
  | 'fineAngles'
  | 'tileAngles'
  | 'splitFunctions'
  | 'splitCoefficients'
  | 'coarseAngles';

/** One of the constant tables that all kernels share, in one f32 buffer. */
export interface TableDescriptor {
  readonly name: TableName;
  /** Numbers from the start of the buffer. */
  readonly offset: number;
  /** Row-major; `positions` is how many the angles must cover. */
  readonly shape: readonly Extent[];
  readonly holds: string;
}

/** The tables in memory order; the last one alone is as long as a cache makes it. */
export function tablesOf(g: Geometry): readonly TableDescriptor[] {
  if (g.family === 'latent') return latentTables(g);
  const row = [g.pairs, 2] as const;
  const angles = `(cosine, sine) of position`;
  const own: readonly Omit<TableDescriptor, 'offset'>[] =
    g.family === 'scalar'
      ? [
          { name: 'keyLevels', shape: [2 ** g.keys.bits], holds: 'values of the codes of keys, over their scales' },
          {
            name: 'valueLevels',
            shape: [2 ** g.values.bits],
            holds: 'values of the codes of values, over their scales',
          },
          ...(g.keys.projection.length > 0
            ? [
                {
                  name: 'projectionSigns',
                  shape: [g.headDim],
                  holds: 'signs of channels before the projection',
                } as const,
              ]
            : []),
        ]
      : g.family === 'tilt'
        ? tiltTables(g)[0]
        : [];
  const inTiles = g.family === 'tilt' ? tiltTables(g)[1] : [];
  const split: readonly Omit<TableDescriptor, 'offset'>[] =
    g.family === 'low-rank'
      ? [
          {
            name: 'splitFunctions',
            shape: [splitTile, splitFunctions],
            holds: `functions of position % ${splitTile} that stand for the rotation of the slow pairs`,
          },
          {
            name: 'splitCoefficients',
            shape: [g.pairs, splitFunctions, 2],
            holds: 'what of each function goes into (cosine, sine) of a slow pair',
          },
        ]
      : [];
  const placed: TableDescriptor[] = [];
  let offset = 0;
  for (const table of [
    { name: 'levels', shape: [2 ** g.streamBits], holds: 'stream levels' } as const,
    ...own,
    { name: 'fineAngles', shape: [g.angleTile, ...row], holds: `${angles} % ${g.angleTile}` } as const,
    ...split,
    ...inTiles,
  ]) {
    placed.push({ ...table, offset });
    offset += (table.shape as readonly number[]).reduce((product, side) => product * side, 1);
  }
  const tiles = { ceilDiv: [{ dimension: 'positions' }, g.angleTile] } as const;
  placed.push({ name: 'coarseAngles', offset, shape: [tiles, ...row], holds: `${angles} - position % ${g.angleTile}` });
  return placed;
}

export interface SequenceCapacity {
  readonly sinks: number;
  readonly middle: number;
  readonly stream: number;
  readonly window: number;
}

/** Rows of a part that the capacity makes room for. */
export function rowsOf({ rows, tokensPerRow = 1 }: PartDescriptor, capacity: SequenceCapacity): number {
  if (rows === 'tiles') return Math.ceil((capacity.sinks + capacity.middle) / tokensPerRow);
  return rows === 'sequence' ? 1 : Math.ceil(capacity[rows] / tokensPerRow);
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
    const rows = rowsOf(part, capacity);
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
  return tokens * g.width * 2 * (g.family === 'latent' ? 1 : 2);
}
