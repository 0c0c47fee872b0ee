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
      without('The group before is complete.'),
      changed('seven bits', 'select(8u, choice, choice < 7u)', 'choice'),
      changed('more bits among equals', 'if (error < least)', 'if (error <= least)'),
      changed('wrong first bit', 'first += widths[group] * 16u;', 'first += widths[group] * 8u;'),
    ],
  },
];
