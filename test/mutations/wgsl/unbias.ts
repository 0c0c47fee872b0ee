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
      without('The codebook is in workgroup memory.', 2),
      changed('the first code of a word', '(codes >> ((vector % 4u) * 8u)) & 0xffu', 'codes & 0xffu'),
      changed(
        'the scale forgotten',
        '[code * CHANNELS + channel % CHANNELS] * scale',
        '[code * CHANNELS + channel % CHANNELS]',
      ),
    ],
  },
  {
    ...shared,
    entry: 'unbias_values',
    drive: driveGains,
    mutants: [
      changed('the inverse gain', 'gain = squares / products;', 'gain = products / squares;'),
      changed('products that say nothing', 'if (products > 0.0)', 'if (products != 0.0)'),
    ],
  },
];
