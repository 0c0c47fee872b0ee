import type { DeviceBuffer, Launch } from '../device.js';
import type { SequenceLengths } from '../record.js';
import { usedRanges } from './contents.js';
import type { CacheMemory } from './memory.js';
import { type Move, moveLaunches } from './moves.js';
import { scopedOrEmpty } from './scoped.js';

/** A share that is to hold what another one holds. */
export interface ShareCopy {
  readonly from: number;
  readonly to: number;
  /** The sequence that `from` was of. */
  readonly source: number;
}

/** For each sequence the share it will have, and what has to be copied for that. */
export interface ShareMoves {
  readonly shares: readonly number[];
  readonly copies: readonly ShareCopy[];
}

/**
 * Plans that sequence i becomes what sequence sources[i] was. A source that is named once gives its share away; only
 * further copies of it take the shares that nobody names, so that a permutation copies nothing.
 */
export function planReorder(shares: readonly number[], sources: readonly number[]): ShareMoves {
  const keepers = new Map<number, number>();
  for (const [sequence, source] of sources.entries()) {
    if (source === sequence || !keepers.has(source)) keepers.set(source, sequence);
  }
  const free = shares.filter((_, sequence) => !keepers.has(sequence));
  const copies: ShareCopy[] = [];
  const planned = sources.map((source, sequence) => {
    const from = shares[source]!;
    if (keepers.get(source) === sequence) return from;
    const to = free.pop()!;
    copies.push({ from, to, source });
    return to;
  });
  return { shares: planned, copies };
}

/** Makes every sequence i a copy of what sequence sources[i] was; if that fails, those that no source names are empty. */
export async function reorder(memory: CacheMemory, sources: readonly number[]): Promise<void> {
  const lengths = await memory.readRecords();
  const { shares, copies } = planReorder(memory.shares, sources);
  const unnamed = [...sources.keys()].filter((sequence) => !sources.includes(sequence));
  await scopedOrEmpty(memory, unnamed, (owned) => memory.device.run(copyLaunches(memory, copies, lengths, owned)));
  for (const [sequence, source] of sources.entries()) {
    if (source !== sequence) memory.writeRecord(sequence, lengths[source]!, { share: shares[sequence]! });
  }
}

/** The launches that carry out the copies: of every part no more than the rows in use. */
function copyLaunches(
  memory: CacheMemory,
  copies: readonly ShareCopy[],
  lengths: readonly SequenceLengths[],
  owned: DeviceBuffer[],
): readonly Launch[] {
  const { kernels, layout, bindings } = memory;
  const moves = copies.flatMap(({ from, to, source }) =>
    usedRanges(layout, lengths[source]!).map(
      ({ offset, bytes }): Move => [
        (memory.shareOffset(from) + offset) / 4,
        (memory.shareOffset(to) + offset) / 4,
        bytes / 4,
      ],
    ),
  );
  return moveLaunches(kernels, 'copy_words', moves, { cache: bindings.cache }, owned);
}
