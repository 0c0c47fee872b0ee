import {
  type Geometry,
  isNormalFloat,
  type LowRankGeometry,
  type ScalarGeometry,
  type ScalarGroups,
} from '../dsl/geometry.js';
import type { HeadGeometry } from '../dsl/headGeometry.js';
import { latentConstants } from './plan/latentConstants.js';
import { recordEntries, recordWords, type TableName, tablesOf } from './plan/layout.js';
import { tiltConstants } from './plan/tiltConstants.js';

/** A named number of the generated text, with what it counts. */
export interface Constant {
  readonly name: string;
  /** Of the name, never of the value: a float may happen to be whole. */
  readonly type: 'u32' | 'f32';
  readonly value: number;
  readonly comment: string;
}

/** `middleTokens` to `MIDDLE_TOKENS`. */
export function constantName(name: string): string {
  return name.replace(/([a-z0-9])([A-Z])/g, '$1_$2').toUpperCase();
}

/** What is not a count. */
const floatNames: ReadonlySet<string> = new Set([
  'HADAMARD_SCALE',
  'KEY_TABLE_FACTOR',
  'LATENT_BASE',
  'LATENT_HADAMARD_SCALE',
  'LATENT_STEP',
  'ROTARY_BASE',
  'ROTARY_HADAMARD_SCALE',
  'ROTARY_STEP',
  'RANGE_GREATEST',
  'RANGE_LEAST',
  'RESIDUAL_SCALE',
  'SCORE_CAP',
  'SCORE_SCALE',
  'VALUE_TABLE_FACTOR',
]);

/**
 * A constant with the type of its name.
 *
 * @throws Error where kernels would read another number: compilers refuse one that is too large, devices may take a
 * subnormal for zero
 */
function typed(name: string, value: number, comment: string): Constant {
  const type = floatNames.has(name) ? 'f32' : 'u32';
  const isFloat = isNormalFloat(value) || (value === 0 && /^RANGE_|_BASE$/.test(name));
  const fits = type === 'f32' ? isFloat : value === value >>> 0;
  if (!fits) throw new Error(`${name} = ${value} is no ${type === 'f32' ? 'normal float32' : 'u32'}`);
  return { name, type, value, comment };
}

/** The numbers of a model's heads. */
export function headConstants(g: HeadGeometry): readonly Constant[] {
  const constants: readonly Omit<Constant, 'type'>[] = [
    { name: 'HEAD_DIM', value: g.headDim, comment: 'channels of a head' },
    { name: 'HEADS', value: g.heads, comment: 'query heads' },
    { name: 'KV_HEADS', value: g.kvHeads, comment: 'KV heads' },
    { name: 'GROUP_SIZE', value: g.groupSize, comment: 'query heads that share a KV head' },
    { name: 'WIDTH', value: g.width, comment: 'KV_HEADS * HEAD_DIM' },
  ];
  return constants.map(({ name, value, comment }) => typed(name, value, comment));
}

/** A constant before its type is found. */
type Untyped = Omit<Constant, 'type'>;

/** Every number of the geometry that a template may name; the renderer prints those that it does name. */
export function geometryConstants(g: Geometry): readonly Constant[] {
  const [channels, ...heads] = headConstants(g);
  const [beforeHadamard, afterHadamard]: AroundHadamard =
    g.family === 'latent'
      ? [latentConstants(g), []]
      : g.family === 'tilt'
        ? [tiltConstants(g), []]
        : g.family === 'low-rank'
          ? lowRankConstants(g)
          : scalarConstants(g);
  const constants: readonly Untyped[] = [
    channels!,
    {
      name: 'PAIRS',
      value: g.pairs,
      comment: 'pairs of channels of a head; those past the rotary ones have angle zero',
    },
    ...heads,
    ...beforeHadamard,
    { name: 'HADAMARD_BLOCK', value: g.hadamardBlock, comment: 'channels of one Hadamard block' },
    { name: 'HADAMARD_SCALE', value: 1 / Math.sqrt(g.hadamardBlock), comment: '1 / sqrt(HADAMARD_BLOCK)' },
    ...afterHadamard,
    { name: 'STREAM_BITS', value: g.streamBits, comment: 'bits of a stream code' },
    { name: 'STREAM_WORDS', value: g.streamWords, comment: 'words of one coded stream vector' },
    { name: 'NORM_WORDS', value: g.normWords, comment: "words of one stream token's norms, two each" },
    { name: 'SINKS', value: g.scheme.sinks, comment: 'exact tokens at the start' },
    { name: 'WINDOW', value: g.scheme.window, comment: 'slots of the exact ring at the end' },
    ...tableConstants(g),
    { name: 'RECORD_WORDS', value: recordWords, comment: 'words of a sequence record' },
  ];
  const entries = recordEntries(g).map(({ name, word, holds }) => ({
    name: `AT_${constantName(name)}`,
    value: word,
    comment: `in the record, ${holds}`,
  }));
  return [...constants, ...entries].map(({ name, value, comment }) => typed(name, value, comment));
}

type AroundHadamard = readonly [readonly Untyped[], readonly Untyped[]];

function lowRankConstants(g: LowRankGeometry): AroundHadamard {
  return [
    [
      { name: 'RANK', value: g.rank, comment: 'components of a key' },
      { name: 'RANK_WORDS', value: g.rankWords, comment: 'words of a basis row, four int8 columns each' },
      {
        name: 'ALLOCATED_GROUPS',
        value: g.allocatedGroups,
        comment: 'groups of 16 components with widths of their own',
      },
      { name: 'KEY_ROW_WORDS', value: g.keyRowWords, comment: "words of one token's key fields" },
    ],
    [
      { name: 'CHANNELS', value: g.channels, comment: 'channels of a value vector' },
      { name: 'ENTRIES', value: g.entries, comment: 'codebook entries' },
      { name: 'VALUE_ROW_WORDS', value: g.valueRowWords, comment: "words of one token's value indices, four each" },
    ],
  ];
}

function scalarConstants(g: ScalarGeometry): AroundHadamard {
  const of = (name: 'KEY' | 'VALUE', groups: ScalarGroups): readonly Untyped[] => [
    { name: `${name}_BITS`, value: groups.bits, comment: `bits of a channel of a ${name.toLowerCase()}` },
    {
      name: `${name}_HEAD_WORDS`,
      value: groups.headWords,
      comment: `words of one head's ${name.toLowerCase()} fields`,
    },
    {
      name: `${name}_SCALE_TOKENS`,
      value: groups.scaleTokens,
      comment: 'middle tokens that share a scale; 0 for all of them',
    },
    { name: `${name}_SCALE_CHANNELS`, value: groups.scaleChannels, comment: 'channels of a head that share a scale' },
    { name: `${name}_SCALE_ROW_WORDS`, value: groups.scaleRowWords, comment: 'words of a row of scales, two each' },
    { name: `${name}_OUTLIER_CAP`, value: groups.outlierCap, comment: 'outliers of a token and KV head, at most' },
  ];
  return [
    [
      { name: 'KEY_ROW_WORDS', value: g.keyRowWords, comment: "words of one token's key fields" },
      ...of('KEY', g.keys),
      {
        name: 'RESIDUAL_SCALE',
        value: Math.sqrt(Math.PI / 2) / g.headDim,
        comment: 'sqrt(pi / 2) / HEAD_DIM: what signs count, times the length of what they are of',
      },
    ],
    [
      { name: 'VALUE_ROW_WORDS', value: g.valueRowWords, comment: "words of one token's value fields" },
      ...of('VALUE', g.values),
    ],
  ];
}

/** Where the tables begin. */
function tableConstants(g: Geometry): readonly Untyped[] {
  const at = 'offset in the tables';
  const named: Partial<Record<TableName, Omit<Untyped, 'value'>>> = {
    keyLevels: { name: 'KEY_LEVELS', comment: `${at}: values of the codes of keys, over their scales` },
    valueLevels: { name: 'VALUE_LEVELS', comment: `${at}: values of the codes of values, over their scales` },
    projectionSigns: {
      name: 'PROJECTION_SIGNS',
      comment: `${at}: signs of channels before the projection of residuals`,
    },
    fineAngles: {
      name: 'FINE_ANGLES',
      comment: `${at}: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE`,
    },
    tileAngles: {
      name: 'TILE_ANGLES',
      comment: `${at}: [TILE][PAIRS](cosine, sine) of the place in a tile, position % TILE - (TILE - 1) / 2`,
    },
    coarseAngles: {
      name: 'COARSE_ANGLES',
      comment: `${at}: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE`,
    },
    splitFunctions: {
      name: 'SPLIT_FUNCTIONS',
      comment: `${at}: [SPLIT_TILE][4] functions of position % SPLIT_TILE`,
    },
    splitCoefficients: {
      name: 'SPLIT_COEFFICIENTS',
      comment: `${at}: [PAIRS][4](cosine, sine) coefficients of these functions`,
    },
  };
  const tables = tablesOf(g);
  const placed = (Object.keys(named) as TableName[]).flatMap((name) => {
    const table = tables.find((candidate) => candidate.name === name);
    return table ? [{ ...named[name]!, value: table.offset }] : [];
  });
  return [
    { name: 'LEVELS', value: 2 ** g.streamBits, comment: 'stream levels, at the start of the tables' },
    { name: 'ANGLE_TILE', value: g.angleTile, comment: 'rows of the fine angle table' },
    ...placed,
  ];
}

/** What the numbers of a schedule count; a stage that names a new one explains it here. */
const scheduleComments: Readonly<Record<string, string>> = {
  AT_ROOM: 'in the record, tokens that the sequence has room for',
  AT_SLIDING_WINDOW: 'in the record, tokens that a query sees, its own included; 0 for all',
  AT_TOKENS: 'in the record, tokens that the sequence holds',
  BASIS_BYTES: 'bytes of a basis entry in shared memory: half or int8',
  BLOCK_REGISTERS: 'registers of a thread before the middle and after it',
  CANDIDATES: 'lists of widths of a KV head that are tried',
  CHUNK_UNIT: 'a split gets a multiple of so many tokens',
  COEFFICIENT_HALVES: 'f16 numbers whose sum is a coefficient',
  CONSUMER_REGISTERS: 'registers of a thread that takes tokens',
  FAST_PAIRS: 'pairs of channels that are rotated token by token; the others turn with the query',
  GROUP_COMPONENTS: 'most components whose codes are unpacked together',
  KEY_AFFINE: '1 where equal steps lie between the values of codes of keys',
  KEY_CENTERED: '1 where code 0 of keys does not stand for zero',
  KEY_FOLDED: '1 where the query takes the scales of keys in, a block of tokens at a time',
  KEY_FLOAT_SHIFT: 'bits by which a byte of keys, as an 8-bit float, is widened to be an f16 number; 0 if it is none',
  KEY_TABLE_HALVES: 'f16 numbers whose sum is a level of the keys, where there is a table of them',
  KEY_TABLE_FACTOR: 'what a table of levels of keys is times, so that f16 numbers hold them best',
  ABREAST: "words of a lane's value codes that lie side by side",
  MATRIX_TILE: 'rows and columns of a matrix tile',
  LATENT_BASE: 'value of the code of a latent whose half is 0, over its scale',
  LATENT_BITS: 'bits of a channel of a latent',
  LATENT_FLOAT_SHIFT:
    'bits by which the code of a latent, an 8-bit float, is widened to be a half; 0 if it is a whole number',
  LATENT_STEP: 'what a half is times to be the value of a code of a latent',
  MAX_SWEEPS: 'rounds of Jacobi rotations, at most',
  MOVE_WORDS: 'words that describe one move',
  OBSERVED_QUERIES: 'queries that are observed, at most: the last ones given',
  PARTIAL_WORDS: 'numbers of one partial result',
  PASS_TILES: 'pairs of 8-channel tiles that a warp rebuilds at a time',
  PER_THREAD: 'rows and columns of a tile that a thread holds, or rows of one column',
  POINTS_PER_BLOCK: 'points that a block assigns',
  RANGE_GREATEST: 'greatest number over its scale that is no outlier',
  RANGE_LEAST: 'least number over its scale that is no outlier',
  RANK: 'rows and columns of a matrix whose eigenvectors are found',
  RECORD_WORDS: 'words of a sequence record',
  REGION_UNITS: 'units of 16 bytes of the memory that takes turns',
  PRODUCER_REGISTERS: 'registers of a thread that turns queries',
  ROTARY_BASE: 'value of the code of a rotary part whose half is 0, over its scale',
  ROTARY_BITS: 'bits of a channel of a rotary part',
  ROTARY_FLOAT_SHIFT:
    'bits by which the code of a rotary part, an 8-bit float, is widened to be a half; 0 if it is a whole number',
  ROTARY_STEP: 'what a half is times to be the value of a code of a rotary part',
  SAMPLE: 'points of the k-means++ sample, at most',
  SCORE_CAP: 'largest score as a base-2 exponent: the cap * log2(e)',
  SCORE_SCALE: 'what q.k is multiplied with first',
  SCORE_SLICES: 'threads that share one dot product',
  SEED: 'of the random start',
  SHARED_BYTES: 'shared memory that a launch asks for',
  SLICES: 'threads, or blocks, that share one sum',
  STAGES: 'tiles of a warp in shared memory, most of them on their way',
  THREADS: 'threads of a block',
  SPLIT_TILE: 'positions that share a turned query',
  TILE: 'rows and columns of a matrix tile',
  TILE_ROWS: 'rows of the shared tile: channels, or components',
  TILE_TOKENS: 'tokens of a tile',
  TILE_WORDS: 'words that a block copies',
  TOKEN_STRIDE: 'words from one token of a tile to the next; odd, to spread them over the banks',
  TRIM: 'numbers of ten thousand that a range leaves out at each end',
  UNITS: 'units of 16 bits in the budget of a token',
  VALUE_AFFINE: '1 where equal steps lie between the values of codes of values',
  VALUE_CENTERED: '1 where code 0 of values does not stand for zero',
  VALUE_FLOAT_SHIFT:
    'bits by which a byte of values, as an 8-bit float, is widened to be an f16 number; 0 if it is none',
  VALUE_TABLE_FACTOR: 'what a table of levels of values is times, so that f16 numbers hold them best',
  WARPGROUPS: 'groups of four warps that take tiles in turn',
  WARPS: 'warps of a block',
  WIDTH_CHOICES: 'widths that a group of components may have',
  WORK_ITEM_WORDS: 'words of a work item',
};

/** A constant of a schedule with its comment. */
export function scheduleConstant(name: string, value: number): Constant {
  const comment = scheduleComments[name];
  if (comment === undefined) throw new Error(`codegen/constants.ts does not say what ${name} counts`);
  return typed(name, value, comment);
}
