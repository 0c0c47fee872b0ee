import { defineStage } from '../stage.js';
import { reads, writes } from './bindings.js';

/** Words of one move: where from, where to, how many. */
export const moveWords = 3;

/** Copies ranges of the cache to other places in it: what forks and beams of a sequence have in common. */
export const copyStage = defineStage({
  name: 'copy',
  summary: 'Copy ranges of words within the cache.',
  tunables: () => ({}),
  constraints: [],
  kernels: () => [
    {
      entry: 'copy_words',
      summary: 'One tile of one move a block; no range that is written overlaps another range.',
      bindings: [
        reads('moves', 'u32', '[moves][from word, to word, words]'),
        writes('cache', 'u32', 'all compressed parts of all sequences; the moves say what of it is copied'),
      ],
      threads: 256,
      grid: [{ ceilDiv: [{ dimension: 'words' }, 1024] }, { dimension: 'moves' }, 1],
      constants: { TILE_WORDS: 1024, MOVE_WORDS: moveWords },
      functions: {},
      sharedBytes: { fixed: 0, dynamic: 0 },
    },
  ],
});
