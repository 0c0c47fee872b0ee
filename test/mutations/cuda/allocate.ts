import { driveAllocate } from '../drivers/allocate.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

export const allocateSuspects: readonly Suspect[] = [
  {
    stage: 'allocate',
    entry: 'allocate_bits',
    shape: 'full',
    drive: driveAllocate,
    mutants: [
      without('the group before is complete'),
      without('all choices are known'),
      changed('the error of the width below', 'mid_rise_distortion(bits);', 'mid_rise_distortion(bits - 1u);'),
      changed('seven bits', 'choice < 7u ? choice : 8u', 'choice < 8u ? choice : 8u'),
      changed('bits that cost nothing', 'before[spent - bits]', 'before[spent]'),
      changed('more bits among equals', 'if (error < least)', 'if (error <= least)'),
      changed('eight bits never tried', 'choice < WIDTH_CHOICES;', 'choice + 1 < WIDTH_CHOICES;'),
      changed('a unit never spent', 'u32 left = UNITS;', 'u32 left = UNITS - 1;'),
      changed(
        'the last unit never solved',
        'spent <= UNITS; spent += THREADS) {',
        'spent < UNITS; spent += THREADS) {',
        'unwritten',
      ),
      changed('a walk that forgets what is spent', 'left -= widths[group];', ''),
      changed('wrong first bit', 'first += widths[group] * 16;', 'first += widths[group] * 8;'),
      changed('the variance of the first group for all', 'values[group * 16 + i]', 'values[i]'),
    ],
  },
];
