import type { LoadedKernels } from '../../../runtime/kernels.js';
import type { Judge } from '../../../runtime/verify/judge.js';
import { asWords, runKernel } from '../../../runtime/verify/run.js';

/** Of whole tiles of 1024 words, of several with a tail, and of next to nothing; from where to where. */
const moves = [
  [1, 1600, 1024],
  [900, 0, 1500],
  [7, 2700, 1],
] as const;

export async function driveMovesApart(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const origin = Uint32Array.from({ length: 2400 }, (_, word) => word * 2654435761);
  const destination = Uint32Array.from({ length: 2800 }, (_, word) => ~word);
  const expected = destination.slice();
  for (const [from, to, words] of moves) expected.set(origin.subarray(from, from + words), to);
  const outputs = await runKernel(
    kernels,
    'move_words',
    { moves: moves.length, words: Math.max(...moves.map((move) => move[2])) },
    { moves: Uint32Array.from(moves.flat()), origin, destination },
  );
  const moved = asWords(outputs.destination!);
  const wrong = expected.findIndex((word, at) => word !== moved[at]);
  judge.check(`word ${wrong} of the destination`, wrong < 0 ? 0 : 1, 0);
}
