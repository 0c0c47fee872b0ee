import { driveMultiply, driveOrthonormalize, driveRitz } from '../drivers/basis.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

const stage = 'basis';

export const basisSuspects: readonly Suspect[] = [
  {
    stage,
    entry: 'basis_multiply',
    drive: driveMultiply,
    mutants: [
      without('The tiles are complete before any thread reads them.'),
      without('Every thread has read the tiles before the next ones replace them.'),
      changed('only the last tile counts', 'total += sum;', 'total = sum;'),
      changed('swapped indices', 'basis_tile[k * TILE + local_column]', 'basis_tile[local_column * TILE + k]'),
    ],
  },
  {
    stage,
    entry: 'basis_ritz',
    drive: driveRitz,
    mutants: [
      without('The tiles are complete before any thread reads them.'),
      without('Every thread has read the tiles before the next ones replace them.'),
      changed('not symmetrised', '(upper + lower) * 0.5', 'upper'),
    ],
  },
  {
    stage,
    entry: 'basis_orthonormalize',
    drive: driveOrthonormalize,
    mutants: [
      without('Every share of the dot products is known.'),
      without('The dot products are complete.'),
      changed(
        'no barrier between the rounds of a sum',
        'workgroupBarrier();\n    let pairs = count / 2u;\n    if (thread < pairs) {\n      partial[thread] +=',
        'let pairs = count / 2u;\n    if (thread < pairs) {\n      partial[thread] +=',
      ),
      changed('wrong stride of a dot product', 'channel += SHARES', 'channel += SHARES + 1u'),
      changed('columns not scaled to length one', 'divide_column(column, after, thread);', ''),
    ],
  },
];
