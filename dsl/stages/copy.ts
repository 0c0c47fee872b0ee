import { defineStage, type KernelPlan } from '../stage.js';
import { reads, writes } from './bindings.js';

/** Words of one move: where from, where to, how many. */
export const moveWords = 3;

const moves = reads('moves', 'u32', '[moves][from word, to word, words]');

const tiles: Omit<KernelPlan, 'entry' | 'summary' | 'bindings'> = {
  threads: 256,
  grid: [{ ceilDiv: [{ dimension: 'words' }, 1024] }, { dimension: 'moves' }, 1],
  constants: { TILE_WORDS: 1024, MOVE_WORDS: moveWords },
  functions: {},
  sharedBytes: { fixed: 0, dynamic: 0 },
};

/** Copies ranges of the cache to other places: forks and beams within it, what a sequence keeps through scratch. */
export const copyStage = defineStage({
  name: 'copy',
  summary: 'Copy ranges of words of the cache.',
  tunables: () => ({}),
  constraints: [],
  kernels: () => [
    {
      entry: 'copy_words',
      summary: 'One tile of one move a block; no range that is written overlaps another range.',
      bindings: [
        moves,
        writes('cache', 'u32', 'all compressed parts of all sequences; the moves say what of it is copied'),
      ],
      ...tiles,
    },
    {
      entry: 'move_words',
      summary: 'One tile of one move a block, from one buffer to another.',
      bindings: [
        moves,
        reads('origin', 'u32', 'the cache, or scratch'),
        writes('destination', 'u32', 'scratch, or the cache'),
      ],
      ...tiles,
    },
  ],
});
