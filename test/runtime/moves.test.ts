import { expect, test } from 'vitest';
import { type Move, moveLaunches } from '../../runtime/cache/moves.js';
import type { LoadedKernels } from '../../runtime/kernels.js';

/** Kernels of a device that takes so many blocks in a dimension, and what was launched. */
function kernelsOf(blocksPerDimension: number) {
  const launched: Record<string, number>[] = [];
  const device = { limits: { blocksPerDimension }, allocate: () => ({}), write: () => {} };
  const launch = (_entry: string, sizes: Record<string, number>) => launched.push(sizes);
  return { kernels: { device, launch } as unknown as LoadedKernels, launched };
}

test.each([
  [2 ** 31 - 1, [65535, 2]],
  [40000, [40000, 25537]],
])('a device of %j blocks in a dimension moves 65537 runs in launches of %j', (blocks, expected) => {
  const { kernels, launched } = kernelsOf(blocks);
  const moves = Array.from({ length: 65537 }, (_, i): Move => [i, i, i === 65536 ? 7 : 1]);
  moveLaunches(kernels, 'copy_words', moves, {}, []);
  expect(launched).toEqual(expected.map((count, i) => ({ moves: count, words: i === 1 ? 7 : 1 })));
});
