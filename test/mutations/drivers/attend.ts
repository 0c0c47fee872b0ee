import type { LoadedKernels } from '../../../runtime/kernels.js';
import { type AttendDraw, attendSetting, type SequenceDraw } from '../../../runtime/verify/attendDraws.js';
import { attendOn } from '../../../runtime/verify/attendOn.js';
import { worstError } from '../../../runtime/verify/draws.js';
import type { Judge } from '../../../runtime/verify/judge.js';

const plain: SequenceDraw = {
  sinks: 2,
  middle: 0,
  stream: 0,
  window: 3,
  windowStart: 1,
  spare: 1,
  splits: 1,
  slidingWindow: 0,
  reach: 10,
  aligned: false,
  magnitude: 1,
};

/**
 * Several tiles for every warp, the last one not full; blocks that share a row, beside a short sequence; two queries of
 * one sequence that see different tokens; and a middle that ends with the last row of the angle tables.
 */
const draws: readonly AttendDraw[] = [
  { sequences: [{ ...plain, middle: 150, stream: 21 }], queries: 1, seed: 1 },
  {
    sequences: [
      { ...plain, middle: 40, stream: 18, splits: 3 },
      { ...plain, sinks: 1, stream: 5, window: 1, splits: 2 },
    ],
    queries: 1,
    seed: 2,
  },
  { sequences: [{ ...plain, middle: 19, stream: 3, splits: 2, slidingWindow: 20 }], queries: 2, seed: 3 },
  { sequences: [{ ...plain, sinks: 1, middle: 49, window: 0, windowStart: 0, spare: 0 }], queries: 1, seed: 4 },
];

/**
 * @param bar largest error of a sequence's output, over its largest magnitude
 * @param longest middle of the first draw, where schedules take more tokens at a time
 */
export function driveAttend(bar: number, longest = 150) {
  return async (kernels: LoadedKernels, judge: Judge): Promise<void> => {
    const g = kernels.geometry;
    const [first, ...others] = draws;
    const all = [{ ...first!, sequences: first!.sequences.map((one) => ({ ...one, middle: longest })) }, ...others];
    for (const [index, draw] of all.entries()) {
      const setting = attendSetting(g, draw);
      const { output, counters } = await attendOn(kernels, draw, setting);
      const { at, by } = worstError(output, setting.expected, draw.queries * g.heads * g.headDim);
      judge.check(`draw ${index}, output ${at}`, by, bar);
      judge.check(`draw ${index}, counters left at zero`, counters.filter((count) => count !== 0).length, 0);
    }
  };
}
