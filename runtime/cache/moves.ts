import { moveWords } from '../../dsl/stages/copy.js';
import type { BufferRange, DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';

/** A run of words: where it is, where it goes, and how many there are. */
export type Move = readonly [from: number, to: number, words: number];

/** Moves of a launch, at most: they lie along the second dimension of its grid, which has no more in CUDA. */
const mostMoves = 65535;

/**
 * The launches that carry out moves, as many to a launch as a device takes.
 *
 * @param entry `copy_words` within a buffer, `move_words` from one to another
 * @param owned takes the lists of moves, so that the caller can release them whatever happens
 */
export function moveLaunches(
  kernels: LoadedKernels,
  entry: 'copy_words' | 'move_words',
  moves: readonly Move[],
  buffers: Readonly<Record<string, BufferRange>>,
  owned: DeviceBuffer[],
): readonly Launch[] {
  const { device } = kernels;
  const launches: Launch[] = [];
  const most = Math.min(mostMoves, device.limits.blocksPerDimension);
  for (let first = 0; first < moves.length; first += most) {
    const some = moves.slice(first, first + most);
    const buffer = device.allocate('moves', some.length * moveWords * 4);
    owned.push(buffer);
    device.write(buffer, Uint32Array.from(some.flat()));
    const words = Math.max(...some.map(([, , count]) => count));
    launches.push(kernels.launch(entry, { moves: some.length, words }, { moves: { buffer }, ...buffers }));
  }
  return launches;
}
