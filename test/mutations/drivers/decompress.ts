import type { LoadedKernels } from '../../../runtime/kernels.js';
import { decompressCase } from '../../../runtime/verify/codeCases.js';
import type { Judge } from '../../../runtime/verify/judge.js';

/** Segments that begin and end within tiles of tokens, and a ring that has come round. */
const sequences = [
  { sinks: 2, middle: 13, stream: 4, window: 3, windowStart: 1 },
  { sinks: 1, middle: 18, stream: 0, window: 2, windowStart: 2 },
];

export async function driveDecompress(kernels: LoadedKernels, judge: Judge): Promise<void> {
  for (const [index, lengths] of sequences.entries()) {
    const rest = { spare: 1, splits: 1, slidingWindow: 0, reach: 1, aligned: false, magnitude: 1 };
    // Of widths 3, 4 and 2, then of 1, 6 and 3, where a prompt decides them.
    const draw = { sequences: [{ ...lengths, ...rest }], queries: 1, seed: index === 0 ? 14 : 16 };
    await decompressCase(kernels, draw, { judge, bar: 0, halves: false });
  }
}
