import { driveGram, driveMean } from '../drivers/keys.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

export const keySuspects: readonly Suspect[] = [
  {
    stage: 'gram',
    entry: 'gram_keys',
    drive: driveGram,
    mutants: [
      without('the previous tile of tokens has been used'),
      without('both tiles are filled'),
      changed(
        'no mask of tokens past the last',
        'left[i / TILE][i % TILE] = token < middle && left_channel',
        'left[i / TILE][i % TILE] = left_channel',
        'outside',
      ),
      changed('no mask of channels past the last', '&& right_channel < WIDTH ?', '?', 'outside'),
      changed('row off by one', 'left[token][row + k * row_step]', 'left[token][row + k * row_step + 1]', 'outside'),
      changed('wrong stride between rows', 'row_step = THREADS / TILE;', 'row_step = THREADS / TILE / 2;', 'race'),
      changed('no guard against an empty middle', 'middle > 0 ? middle : 1u', 'middle'),
      changed('one half of the matrix not written', 'gram[j * WIDTH + i] = total[k] / count;', ''),
      changed('sums never initialised', 'float sum[PER_THREAD] = {};', 'float sum[PER_THREAD];'),
      changed('the diagonal written as if below it', 'if (i > j ||', 'if (i >= j ||'),
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
