import type { PartName, PlacedPart, SequenceLayout } from '../../codegen/plan/layout.js';
import type { SequenceLengths } from '../record.js';

/** Rows of a part that hold something, in the order of their tokens. */
export interface UsedRange {
  readonly part: PlacedPart;
  /** Bytes from the start of the sequence's share. */
  readonly offset: number;
  readonly bytes: number;
}

/** What a sequence holds, without where it lies: the rows in use of every part, window rows from the oldest on. */
export interface SequenceContents {
  readonly lengths: SequenceLengths;
  readonly parts: ReadonlyMap<PartName, Uint8Array>;
}

/** Rows of a part that lengths put to use; what a prompt fits as a whole belongs to the middle. */
export function usedRows(
  { rows, tokensPerRow = 1 }: Pick<PlacedPart, 'rows' | 'tokensPerRow'>,
  lengths: SequenceLengths,
): number {
  switch (rows) {
    case 'sequence':
      return lengths.middleTokens > 0 ? 1 : 0;
    case 'sinks':
      return lengths.sinkTokens;
    case 'middle':
      return Math.ceil(lengths.middleTokens / tokensPerRow);
    case 'tiles':
      return lengths.middleTokens > 0 ? Math.ceil((lengths.sinkTokens + lengths.middleTokens) / tokensPerRow) : 0;
    case 'stream':
      return lengths.streamTokens;
    case 'window':
      return lengths.windowTokens;
  }
}

/** Everything in a share that means something; a ring that wraps around gives two ranges a part. */
export function usedRanges(layout: SequenceLayout, lengths: SequenceLengths): readonly UsedRange[] {
  return layout.parts.flatMap((part) => {
    const rowBytes = part.wordsPerRow * 4;
    const range = (first: number, rows: number): UsedRange[] =>
      rows === 0 ? [] : [{ part, offset: part.offset + first * rowBytes, bytes: rows * rowBytes }];
    const rows = usedRows(part, lengths);
    if (part.rows !== 'window') return range(0, rows);
    const beforeWrap = Math.min(rows, layout.capacity.window - lengths.windowStart);
    return [...range(lengths.windowStart, beforeWrap), ...range(0, rows - beforeWrap)];
  });
}

/** Bytes of everything that sequences hold. */
export function contentsBytes(layout: SequenceLayout, sequences: readonly SequenceLengths[]): number {
  return sequences.flatMap((lengths) => usedRanges(layout, lengths)).reduce((sum, { bytes }) => sum + bytes, 0);
}

/** Takes what a sequence holds out of its share. */
export function readContents(layout: SequenceLayout, share: Uint8Array, lengths: SequenceLengths): SequenceContents {
  const parts = new Map<PartName, Uint8Array>();
  for (const part of layout.parts) {
    const ranges = usedRanges({ ...layout, parts: [part] }, lengths);
    const bytes = new Uint8Array(ranges.reduce((sum, range) => sum + range.bytes, 0));
    let at = 0;
    for (const range of ranges) {
      bytes.set(share.subarray(range.offset, range.offset + range.bytes), at);
      at += range.bytes;
    }
    parts.set(part.name, bytes);
  }
  const { sinkTokens, middleTokens, streamTokens, windowTokens, promptTokens, evictedTokens = 0 } = lengths;
  const held = { sinkTokens, middleTokens, streamTokens, windowTokens, windowStart: 0, promptTokens };
  return { lengths: evictedTokens > 0 ? { ...held, evictedTokens } : held, parts };
}
