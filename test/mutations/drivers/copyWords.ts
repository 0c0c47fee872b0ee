import type { LoadedKernels } from '../../../runtime/kernels.js';
import type { Judge } from '../../../runtime/verify/judge.js';
import { asWords, runKernel } from '../../../runtime/verify/run.js';

/** Of whole tiles of 1024 words, of several with a tail, and of next to nothing; from where to where. */
const moves = [
  [1, 3100, 1024],
  [0, 4200, 1500],
  [7, 3000, 1],
] as const;

export async function driveMoves(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const before = Uint32Array.from({ length: 5700 }, (_, word) => word * 2654435761);
  const expected = before.slice();
  for (const [from, to, words] of moves) expected.set(before.subarray(from, from + words), to);
  const outputs = await runKernel(
    kernels,
    'copy_words',
    { moves: moves.length, words: Math.max(...moves.map((move) => move[2])) },
    { moves: Uint32Array.from(moves.flat()), cache: before },
  );
  const cache = asWords(outputs.cache!);
  const wrong = expected.findIndex((word, at) => word !== cache[at]);
  judge.check(`word ${wrong} of the cache`, wrong < 0 ? 0 : 1, 0);
}
