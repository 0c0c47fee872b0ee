import { evictedWord, recordIndex, recordWords, type SequenceLayout } from '../codegen/plan/layout.js';

/** Lengths of a sequence, as the record holds them. */
export interface SequenceLengths {
  readonly sinkTokens: number;
  readonly middleTokens: number;
  readonly streamTokens: number;
  readonly windowTokens: number;
  readonly windowStart: number;
  readonly promptTokens: number;
  /** Tokens that a kernel refused, as the stream was full: of a record that was read. 0 in a cache, which asks before. */
  readonly refusedTokens?: number;
  /**
   * Tokens that the sequence has let go of by `KvCache.keep`; none if left out. With those that it holds, how many it has
   * seen, and so the position of the next one.
   */
  readonly evictedTokens?: number;
}

const lengthNames = [
  'sinkTokens',
  'middleTokens',
  'streamTokens',
  'windowTokens',
  'windowStart',
  'promptTokens',
] as const satisfies readonly (keyof SequenceLengths)[];

/** What a record says beside lengths and places. */
export interface RecordOptions {
  /** Tokens that a query sees, itself included; all if left out. */
  readonly slidingWindow?: number;
  /** Queries that came with the prompt, of its last tokens; 0 if left out. */
  readonly queryTokens?: number;
}

/**
 * Writes the record that describes one sequence to the kernels.
 *
 * @param baseBytes where the sequence's share begins in the cache buffer
 * @example
 * writeRecord(layout, 0, { sinkTokens: 4, middleTokens: 0, streamTokens: 0, windowTokens: 64, windowStart: 0, promptTokens: 68 }).length; // 64
 */
export function writeRecord(
  layout: SequenceLayout,
  baseBytes: number,
  lengths: SequenceLengths,
  { slidingWindow = 0, queryTokens = 0 }: RecordOptions = {},
): Uint32Array {
  const record = new Uint32Array(recordWords);
  for (const name of lengthNames) record[recordIndex(name)] = lengths[name];
  record[recordIndex('streamCapacity')] = layout.capacity.stream;
  record[recordIndex('slidingWindow')] = slidingWindow;
  record[recordIndex('queryTokens')] = queryTokens;
  record[evictedWord] = lengths.evictedTokens ?? 0;
  for (const { name, offset } of layout.parts) record[recordIndex(name)] = (baseBytes + offset) / 4;
  return record;
}

/** Reads the lengths back, and how many tokens a full stream refused. */
export function readRecord(record: Uint32Array): SequenceLengths {
  const at = (name: Parameters<typeof recordIndex>[0]) => record[recordIndex(name)]!;
  return {
    sinkTokens: at('sinkTokens'),
    middleTokens: at('middleTokens'),
    streamTokens: at('streamTokens'),
    windowTokens: at('windowTokens'),
    windowStart: at('windowStart'),
    promptTokens: at('promptTokens'),
    refusedTokens: at('refusedTokens'),
    evictedTokens: record[evictedWord]!,
  };
}
