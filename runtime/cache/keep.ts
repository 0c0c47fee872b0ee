import type { PlacedPart, SequenceLayout } from '../../codegen/plan/layout.js';
import type { SequenceLengths } from '../record.js';
import { checkEvictable, checkKept } from './evictable.js';
import type { CacheMemory } from './memory.js';
import { type Move, moveLaunches } from './moves.js';
import { scopedOrEmpty } from './scoped.js';

/** Words of a move, at most: a longer run is several, as a grid is as wide as its longest move. */
const mostWords = 4096;

/** Tokens to keep, or what chooses them by the lengths of the sequence as they are when its turn comes. */
export type KeptTokens = ArrayLike<number> | ((lengths: SequenceLengths) => ArrayLike<number>);

/** Evicts every token of the middle and of the stream that is not named; the sequence is empty if that fails half-way. */
export async function keep(memory: CacheMemory, sequence: number, tokens: KeptTokens): Promise<void> {
  const { device, kernels } = memory;
  const lengths = await memory.readRecord(sequence);
  const kept = checkKept(typeof tokens === 'function' ? tokens(lengths) : tokens, sequence, lengths);
  checkEvictable(memory, sequence, lengths, kept);
  const after = keptLengths(lengths, kept);
  const base = memory.shareOffset(memory.shares[sequence]!) / 4;
  const { gather, restore, words } = planKeep(memory.layout, lengths, { kept, base });
  if (words === 0) {
    memory.writeRecord(sequence, after);
    return;
  }
  await scopedOrEmpty(memory, [sequence], async (owned) => {
    const scratch = device.allocate('kept', words * 4);
    owned.push(scratch);
    const { cache } = memory.bindings;
    // By way of scratch: rows move to places that others have yet to leave.
    await device.run([
      ...moveLaunches(kernels, 'move_words', gather, { origin: cache, destination: { buffer: scratch } }, owned),
      ...moveLaunches(kernels, 'move_words', restore, { origin: { buffer: scratch }, destination: cache }, owned),
    ]);
    memory.writeRecord(sequence, after);
  });
}

/** Lengths once the tokens of the middle and of the stream are those that are kept. */
export function keptLengths(lengths: SequenceLengths, kept: readonly number[]): SequenceLengths {
  const { sinkTokens, middleTokens, streamTokens, promptTokens, evictedTokens = 0 } = lengths;
  const streamStart = sinkTokens + middleTokens;
  const middle = kept.filter((token) => token < streamStart).length;
  // The prompt's tokens are the first ones; those in the window stay.
  const [first, end] = [Math.min(promptTokens, sinkTokens), Math.min(promptTokens, streamStart + streamTokens)];
  const ofPrompt = kept.filter((token) => token < end).length;
  return {
    ...lengths,
    middleTokens: middle,
    streamTokens: kept.length - middle,
    promptTokens: promptTokens - (end - first) + ofPrompt,
    evictedTokens: evictedTokens + middleTokens + streamTokens - kept.length,
  };
}

export interface KeepPlan {
  /** From the cache to scratch. */
  readonly gather: readonly Move[];
  /** From scratch to the cache. */
  readonly restore: readonly Move[];
  /** Of the scratch. */
  readonly words: number;
}

/** Plans to close the gaps between rows that are kept; what lies before the first gap stays where it is. */
export function planKeep(
  layout: SequenceLayout,
  lengths: SequenceLengths,
  { kept, base }: { readonly kept: readonly number[]; readonly base: number },
): KeepPlan {
  const { sinkTokens, middleTokens } = lengths;
  const streamStart = sinkTokens + middleTokens;
  const middle = kept.filter((token) => token < streamStart).map((token) => token - sinkTokens);
  const stream = kept.filter((token) => token >= streamStart).map((token) => token - streamStart);
  const gather: Move[] = [];
  const restore: Move[] = [];
  let words = 0;
  const closeGaps = ({ offset, wordsPerRow }: PlacedPart, rows: readonly number[]): void => {
    const start = base + offset / 4;
    const runs = runsOf(rows);
    const [first, scratch] = [runs[0]?.to ?? 0, words];
    for (const { from, count } of runs) {
      gather.push(...split(start + from * wordsPerRow, words, count * wordsPerRow));
      words += count * wordsPerRow;
    }
    // From the first gap on they follow one another.
    restore.push(...split(scratch, start + first * wordsPerRow, words - scratch));
  };
  for (const part of layout.parts) {
    if (part.rows === 'stream') closeGaps(part, stream);
    if (part.rows !== 'middle') continue;
    const { tokensPerRow = 1 } = part;
    // Blocks are whole, so a row is kept when its first token is, which lies at a multiple of its tokens.
    const firsts = middle.filter((token) => token % tokensPerRow === 0);
    closeGaps(
      part,
      firsts.map((token) => token / tokensPerRow),
    );
  }
  return { gather, restore, words };
}

/** A move as moves of no more words than one may have. */
function split(from: number, to: number, words: number): Move[] {
  return Array.from({ length: Math.ceil(words / mostWords) }, (_, index) => {
    const done = index * mostWords;
    return [from + done, to + done, Math.min(mostWords, words - done)];
  });
}

/** Runs of neighbouring rows that have to move, from where and to where. */
function runsOf(rows: readonly number[]): { from: number; to: number; count: number }[] {
  const runs: { from: number; to: number; count: number }[] = [];
  for (const [to, from] of rows.entries()) {
    const last = runs.at(-1);
    if (from === to) continue;
    if (last && last.from + last.count === from) last.count++;
    else runs.push({ from, to, count: 1 });
  }
  return runs;
}
