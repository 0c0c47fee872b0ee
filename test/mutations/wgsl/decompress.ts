import { driveDecompress } from '../drivers/decompress.js';
import { driveUnrope } from '../drivers/unrope.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

const shape = 'full';

export const decompressSuspects: readonly Suspect[] = [
  {
    stage: 'decompress',
    entry: 'decompress',
    shape,
    drive: driveDecompress,
    mutants: [
      without("The group's coefficients are there."),
      changed('pairs of the other pairing', 'select(pair + 4u, pair * 2u, pair < 4u)', 'pair'),
      changed('the weight not divided out', 'sums[slot] / weight', 'sums[slot]'),
      changed('half a step forgotten', '(1 << (bits - 1u))) + 0.5', '(1 << (bits - 1u)))'),
      changed('wrong first bit', 'group.first_bit + i * group.bits', 'i * group.bits'),
    ],
  },
  {
    stage: 'unrope',
    entry: 'unrope_keys',
    shape,
    drive: driveUnrope,
    mutants: [
      changed('position without the sinks', 'angle_of(position, thread)', 'angle_of(token, thread)'),
      changed('pairs of the other pairing', 'select(pair + 4u, pair * 2u, pair < 4u)', 'pair'),
      changed('no end of the last tile', 'min(first + TILE_TOKENS, middle_tokens)', 'first + TILE_TOKENS'),
    ],
  },
];
