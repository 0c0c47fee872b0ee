import type { Timed } from './search.js';
import { type Measured, measuredFrom, withinNoise } from './statistics.js';

export interface Ranked extends Timed {
  readonly measured: Measured;
}

export interface Winner extends Ranked {
  /** The others that are as fast, as far as the noise lets one tell. */
  readonly ties: readonly Ranked[];
}

/**
 * The best of all that were timed. Where the fastest were timed again, in turns, these times decide, and alone: the others
 * were slower by more than that could change. Of those within the noise of the fastest the one nearest to the defaults wins.
 */
export function chooseWinner(timed: readonly Timed[]): Winner | undefined {
  const first = timed.map(({ record }) => measuredFrom(record.samples).microseconds);
  // A last round of an earlier search says nothing about what has turned out faster since.
  const decided = timed[first.indexOf(Math.min(...first))]?.record.finals !== undefined;
  const ranked = timed
    .filter(({ record }) => !decided || record.finals !== undefined)
    .map((one) => {
      const { samples, finals } = one.record;
      return { ...one, measured: measuredFrom(decided && finals ? finals : samples) };
    });
  ranked.sort((a, b) => a.measured.microseconds - b.measured.microseconds);
  const [fastest] = ranked;
  if (fastest === undefined) return undefined;
  const equal = ranked.filter(({ measured }) => withinNoise(measured, fastest.measured));
  const [winner, ...ties] = equal.sort((a, b) => a.candidate.index - b.candidate.index);
  return { ...winner!, ties };
}
