import type { SequenceLayout } from '../../codegen/plan/layout.js';
import type { SequenceLengths } from '../record.js';
import type { Judge } from './judge.js';

/** A sequence as it was before tokens were appended, or as it is after. */
interface Appended {
  readonly lengths: SequenceLengths;
  readonly share: Uint8Array;
}

/** Parts that appending a token may change. */
const changing = /^(window|stream)/;

/**
 * Checks the record after an append, the same for every family of caches.
 *
 * @returns tokens that were pushed out of the window
 */
export function checkAppendedRecord(
  window: number,
  { before, after, count }: { readonly before: Appended; readonly after: Appended; readonly count: number },
  where: string,
  judge: Judge,
): number {
  const total = before.lengths.windowTokens + count;
  const left = Math.max(0, total - window);
  const wanted = {
    ...before.lengths,
    streamTokens: before.lengths.streamTokens + left,
    windowTokens: Math.min(window, total),
    windowStart: (before.lengths.windowStart + left) % window,
    refusedTokens: 0,
  };
  for (const [name, value] of Object.entries(wanted)) {
    const actual = after.lengths[name as keyof typeof wanted] ?? Number.NaN;
    judge.check(`append, record: ${where}, ${name} ${actual} in place of ${value}`, Math.abs(actual - value), 0);
  }
  return left;
}

/** Checks that no byte of a part that an append leaves alone has changed, nor of the stream before its end. */
export function checkUntouchedParts(
  layout: SequenceLayout,
  { before, after }: { readonly before: Appended; readonly after: Appended },
  where: string,
  judge: Judge,
): void {
  for (const { name, offset, bytes, rows, wordsPerRow } of layout.parts) {
    const kept = rows === 'stream' ? before.lengths.streamTokens * wordsPerRow * 4 : changing.test(name) ? 0 : bytes;
    const changed = before.share
      .subarray(offset, offset + kept)
      .findIndex((byte, i) => byte !== after.share[offset + i]);
    judge.check(`append changed ${name}: ${where}, byte ${changed}`, changed < 0 ? 0 : 1, 0);
  }
}
