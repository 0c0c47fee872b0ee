import { driveQueries, driveWeights } from '../drivers/weigh.js';
import type { Suspect } from '../mutant.js';
import { changed } from './text.js';

const shared = { stage: 'weigh', shape: 'full' } as const;

export const weighSuspects: readonly Suspect[] = [
  {
    ...shared,
    entry: 'weigh_queries',
    drive: driveQueries,
    mutants: [
      changed('heads of the wrong group', 'block.x * GROUP_SIZE + member', 'block.x + member'),
      changed('all queries, not the last', 'token = given - observed;', 'token = 0u;'),
      changed('one channel of a pair', 'dot(pair, pair)', 'pair.x * pair.x'),
    ],
  },
  {
    ...shared,
    entry: 'weigh_finish',
    drive: driveWeights,
    mutants: [
      changed('squares, not their root', 'sqrt(squares[i] / count)', 'squares[i] / count'),
      changed('no floor', 'max(root_mean_square / largest, 0.001)', 'root_mean_square / largest'),
    ],
  },
];
