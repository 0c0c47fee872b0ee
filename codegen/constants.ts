import type { Geometry } from '../dsl/geometry.js';
import { recordEntries, recordWords, tablesOf } from './plan/layout.js';

/** A named number of the generated text, with what it counts. */
export interface Constant {
  readonly name: string;
  readonly value: number;
  readonly comment: string;
}

/** `middleTokens` to `MIDDLE_TOKENS`. */
export function constantName(name: string): string {
  return name.replace(/([a-z0-9])([A-Z])/g, '$1_$2').toUpperCase();
}

/** Every number of the geometry that a template may name; the renderer prints those that it does name. */
export function geometryConstants(g: Geometry): readonly Constant[] {
  const [levels, fine, coarse] = tablesOf(g);
  const constants: Constant[] = [
    { name: 'HEAD_DIM', value: g.headDim, comment: 'channels of a head' },
    { name: 'PAIRS', value: g.pairs, comment: 'rotary pairs of a head: channels j and j + PAIRS' },
    { name: 'HEADS', value: g.heads, comment: 'query heads' },
    { name: 'KV_HEADS', value: g.kvHeads, comment: 'KV heads' },
    { name: 'GROUP_SIZE', value: g.groupSize, comment: 'query heads that share a KV head' },
    { name: 'WIDTH', value: g.width, comment: 'KV_HEADS * HEAD_DIM' },
    { name: 'RANK', value: g.rank, comment: 'components of a key' },
    { name: 'RANK_WORDS', value: g.rankWords, comment: 'words of a basis row, four int8 columns each' },
    { name: 'KEY_ROW_WORDS', value: g.keyRowWords, comment: "words of one token's key fields" },
    { name: 'HADAMARD_BLOCK', value: g.hadamardBlock, comment: 'channels of one Hadamard block' },
    { name: 'HADAMARD_SCALE', value: 1 / Math.sqrt(g.hadamardBlock), comment: '1 / sqrt(HADAMARD_BLOCK)' },
    { name: 'CHANNELS', value: g.channels, comment: 'channels of a value vector' },
    { name: 'ENTRIES', value: g.entries, comment: 'codebook entries' },
    { name: 'VALUE_ROW_WORDS', value: g.valueRowWords, comment: "words of one token's value indices, four each" },
    { name: 'STREAM_BITS', value: g.streamBits, comment: 'bits of a stream code' },
    { name: 'STREAM_WORDS', value: g.streamWords, comment: 'words of one coded stream vector' },
    { name: 'NORM_WORDS', value: g.normWords, comment: "words of one stream token's norms, two each" },
    { name: 'SINKS', value: g.scheme.sinks, comment: 'exact tokens at the start' },
    { name: 'WINDOW', value: g.scheme.window, comment: 'slots of the exact ring at the end' },
    { name: 'LEVELS', value: fine.offset - levels.offset, comment: 'stream levels, at the start of the tables' },
    { name: 'ANGLE_TILE', value: g.angleTile, comment: 'rows of the fine angle table' },
    {
      name: 'FINE_ANGLES',
      value: fine.offset,
      comment: 'offset in the tables: [ANGLE_TILE][PAIRS](cosine, sine) of position % ANGLE_TILE',
    },
    {
      name: 'COARSE_ANGLES',
      value: coarse.offset,
      comment: 'offset in the tables: [..][PAIRS](cosine, sine) of position - position % ANGLE_TILE',
    },
    { name: 'RECORD_WORDS', value: recordWords, comment: 'words of a sequence record' },
  ];
  for (const { name, word, holds } of recordEntries(g)) {
    constants.push({ name: `AT_${constantName(name)}`, value: word, comment: `record: ${holds}` });
  }
  return constants;
}
