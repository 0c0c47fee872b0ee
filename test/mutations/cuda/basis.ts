import {
  driveJacobi,
  driveMultiply,
  driveOrthonormalize,
  driveRitz,
  driveStart,
  driveStore,
} from '../drivers/basis.js';
import type { Suspect } from '../mutant.js';
import { changed, without, withoutAfter } from './text.js';

const stage = 'basis';

export const basisSuspects: readonly Suspect[] = [
  {
    stage,
    entry: 'basis_start',
    drive: driveStart,
    mutants: [changed('numbers from 0 to 2', '* 2.0f - 1.0f', '* 2.0f')],
  },
  {
    stage,
    entry: 'basis_multiply',
    drive: driveMultiply,
    mutants: [
      without('both tiles are filled'),
      without('both tiles have been used'),
      changed(
        'tile read along the wrong axis',
        'basis[(first + y) * RANK + column]',
        'basis[(first + x) * RANK + column]',
      ),
      changed('only the last tile counts', 'total += sum;', 'total = sum;'),
    ],
  },
  {
    stage,
    entry: 'basis_orthonormalize',
    drive: driveOrthonormalize,
    mutants: [
      without("the column is up to date, and the last chunk's `along` has been used"),
      without("every warp's share of the dot products is in scratch"),
      without('the dot products are complete'),
      without('16 sums are left'),
      withoutAfter('  for (u32 i = 0; i < 16; ++i) total += scratch[i];', 'all have read them'),
      changed(
        'wrong stride of a dot product',
        'row < WIDTH; row += warps) sum +=',
        'row < WIDTH; row += warps + 1) sum +=',
      ),
      changed(
        'a column projected on itself',
        'const u32 count = min(chunk, index - first);',
        'const u32 count = chunk;',
      ),
      changed(
        'projected out once',
        'project_out(basis, index, scratch, along);\n        const float left',
        'const float left',
      ),
      changed('columns not scaled to length one', 'scale_column(column, 1.0f / left);', ''),
    ],
  },
  {
    stage,
    entry: 'basis_ritz',
    drive: driveRitz,
    mutants: [
      without('the tiles are filled'),
      without('the tiles have been used'),
      changed('not symmetrised', '0.5f * (total + transposed)', '0.5f * (total + total)'),
      changed('swapped indices', 'basis_rows[k][y]', 'basis_rows[y][k]'),
    ],
  },
  {
    stage,
    entry: 'basis_jacobi',
    drive: driveJacobi,
    mutants: [
      without('the rotations are known, and nobody reads the matrix for them any more'),
      without('matrix and vectors are turned before the next step reads them'),
      without('the diagonal has been read, and `order` is complete'),
      without('the copy is complete'),
      withoutAfter('  for (u32 i = 1; i < 16; ++i) largest = fmaxf(largest, scratch[i]);', 'all have read them'),
      changed('two places for equal values', ' || (other == value && j < i)', '', 'race'),
      changed('a stale rotation', 'turn(qp, qq, rotation[j]);', 'turn(qp, qq, rotation[i]);'),
      changed('values ascend', 'if (other > value ||', 'if (other < value ||'),
      changed('too few sweeps', 'MAX_SWEEPS = 12;', 'MAX_SWEEPS = 2;'),
      changed(
        'vectors turned once too seldom',
        'for (u32 step = 0; step < RANK - 1; ++step)',
        'for (u32 step = 0; step < RANK - 2; ++step)',
      ),
    ],
  },
  {
    stage,
    entry: 'basis_store',
    drive: driveStore,
    mutants: [
      withoutAfter('  for (u32 i = 1; i < 16; ++i) largest = fmaxf(largest, scratch[i]);', 'all have read them'),
      changed('maximum of signed numbers', 'fabsf(sum[c])', 'sum[c]'),
      changed('codes overlap in a word', '<< (c * 8)', '<< (c * 4)'),
      changed('rounded down', 'rintf(entry / scale)', 'floorf(entry / scale)'),
      changed('scale not clamped to f16', 'fminf(max_abs / 127.0f, 65504.0f)', 'max_abs / 127.0f'),
      changed('codes not clamped', 'fminf(fmaxf(rintf(entry / scale), -127.0f), 127.0f)', 'rintf(entry / scale)'),
      changed('scales of two columns swapped', 'pack_half2(scale[0], scale[1])', 'pack_half2(scale[1], scale[0])'),
      changed('sums never initialised', 'float sum[4] = {};', 'float sum[4];'),
    ],
  },
];
