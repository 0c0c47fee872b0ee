import { driveGram, driveMean } from '../drivers/keys.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

export const keySuspects: readonly Suspect[] = [
  {
    stage: 'gram',
    entry: 'gram_keys',
    beside: ['gram_finish'],
    drive: driveGram,
    mutants: [
      without('the first stage is filled'),
      without('the next stage is filled, and this one has been used'),
      changed('stages that do not take turns', 'stage ^= 1;', '', 'race'),
      changed(
        'no mask of terms past the last',
        'k < end ? left(k, left_row(i)) : 0.0f',
        'left(k, left_row(i))',
        'outside',
      ),
      changed('no mask of channels past the last', 'if (channel >= WIDTH) return 0.0f;', '', 'outside'),
      changed('rows of the neighbouring thread', '[k][y + r];', '[k][y + r + 4];', 'unwritten'),
      changed('the last tokens of a slice left out', '(middle + SLICES - 1) / SLICES', 'middle / SLICES'),
      changed(
        'slices that overlap',
        'min(first + share, middle), left_key',
        'min(first + share + 1, middle), left_key',
      ),
      changed('sums never initialised', 'total[PER_THREAD][PER_THREAD] = {};', 'total[PER_THREAD][PER_THREAD];'),
      changed('every block in the first slice', 'blockIdx.z * WIDTH * WIDTH', '0', 'block race'),
      changed('the diagonal left out', 'row <= column &&', 'row < column &&'),
    ],
  },
  {
    stage: 'gram',
    entry: 'gram_finish',
    beside: ['gram_keys'],
    drive: driveGram,
    mutants: [
      changed('no guard against an empty middle', 'middle > 0 ? middle : 1u', 'middle'),
      changed('one half of the matrix not written', 'gram[column * WIDTH + row] = moment;', ''),
      changed('the first slice left out', 'u32 slice = 0;', 'u32 slice = 1;'),
      changed('blocks below the diagonal too', 'if (row > column) return;', '', 'race'),
    ],
  },
  {
    stage: 'unrope',
    entry: 'mean_keys',
    drive: driveMean,
    mutants: [
      changed(
        'the last tile, which is not full, left out',
        '(middle + TILE_TOKENS - 1) / TILE_TOKENS',
        'middle / TILE_TOKENS',
      ),
      changed(
        'no clamp to f16',
        'static_cast<u32>(float_to_half_saturated(low))',
        'static_cast<u32>(float_to_half(low))',
      ),
      changed('guard off by one', 'if (word >= WIDTH / 2) return;', 'if (word > WIDTH / 2) return;', 'outside'),
      changed('mean not rounded as stored', 'mean[word * 2] = rounded.x;', 'mean[word * 2] = sum_low / count;'),
      changed('halves swapped', 'float_to_half_saturated(high)) << 16', 'float_to_half_saturated(high)) << 8'),
    ],
  },
];
