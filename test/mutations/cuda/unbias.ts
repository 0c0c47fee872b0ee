import { driveGains, driveProducts } from '../drivers/unbias.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

const shared = { stage: 'unbias', shape: 'full' } as const;

export const unbiasSuspects: readonly Suspect[] = [
  {
    ...shared,
    entry: 'value_products',
    drive: driveProducts,
    mutants: [
      without('the codebook is in shared memory'),
      changed('no end of the last tile', 'min(first + TILE_TOKENS, middle)', 'first + TILE_TOKENS', 'outside'),
      changed('threads past the last channel', ' || threadIdx.x >= HEAD_DIM) return;', ') return;', 'outside'),
      changed(
        'the last entry not loaded',
        'i < ENTRIES * CHANNELS; i += THREADS',
        'i < ENTRIES * CHANNELS - 1; i += THREADS',
        'unwritten',
      ),
      changed('the first code of a word', '>> (vector % 4 * 8) & 0xffu', '& 0xffu'),
      changed('codes of the first head', 'vector = channel / CHANNELS;', 'vector = threadIdx.x / CHANNELS;'),
      changed(
        'the scale forgotten',
        '[code * CHANNELS + channel % CHANNELS] * scale',
        '[code * CHANNELS + channel % CHANNELS]',
      ),
      changed('squares and products in one row', '(blockIdx.x * 2 + 1) * WIDTH', 'blockIdx.x * 2 * WIDTH'),
    ],
  },
  {
    ...shared,
    entry: 'unbias_values',
    drive: driveGains,
    mutants: [
      changed('guard off by one', 'if (word >= WIDTH / 2) return;', 'if (word > WIDTH / 2) return;', 'outside'),
      changed(
        'the last tile, which is not full, left out',
        '(sequence[AT_MIDDLE_TOKENS] + TILE_TOKENS - 1) / TILE_TOKENS',
        'sequence[AT_MIDDLE_TOKENS] / TILE_TOKENS',
      ),
      changed('the inverse gain', 'gain = squares / products;', 'gain = products / squares;'),
      changed('products that say nothing', 'if (products > 0.0f)', 'if (products != 0.0f)'),
      changed('no largest gain', 'fminf(fmaxf(gain, 0.25f), 4.0f)', 'fmaxf(gain, 0.25f)'),
      changed('no clamp to f16', 'round_to_half(clamp_to_half(max_abs))', 'round_to_half(max_abs)'),
      changed('the scale of the channel before', 'channel_scales[channel] * ', 'channel_scales[channel / 2 * 2] * '),
    ],
  },
];
