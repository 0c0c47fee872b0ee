import { driveAssign, driveCodes, driveRotate, driveSeed, driveUpdate } from '../drivers/values.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

const stage = 'codebook';

export const valueSuspects: readonly Suspect[] = [
  {
    stage: 'values',
    entry: 'rotate_values',
    drive: driveRotate,
    mutants: [
      without('A stage reads channels that other threads wrote in the stage before.'),
      changed('not scaled', 'vector[thread] * HADAMARD_SCALE', 'vector[thread]'),
      changed('swapped operands', 'vec2f(a + b, a - b)', 'vec2f(a + b, b - a)'),
      changed('maximum of signed numbers', 'max(largest, abs(value))', 'max(largest, value)'),
      changed('sinks taken for the middle', ' + sequence[AT_SINK_TOKENS];', ';'),
      changed('no end of the last tile', 'min(first + TILE_TOKENS, middle_tokens)', 'first + TILE_TOKENS'),
      changed('maxima not written', 'partial_maxima[block.x * WIDTH + channel] = largest;', ''),
    ],
  },
  {
    stage,
    entry: 'codebook_seed',
    drive: driveSeed,
    mutants: [
      changed(
        'no barrier: All distances to the chosen points are known to the thread that draws.',
        '    storageBarrier();\n    workgroupBarrier();\n',
        '',
      ),
      changed('distance to the newest only', 'distance = min(distance, distances[sample]);', ''),
      changed('draws off by one', 'uniform_random(SEED, entry) * total', 'uniform_random(SEED, entry + 1u) * total'),
    ],
  },
  {
    stage,
    entry: 'codebook_assign',
    drive: driveAssign,
    mutants: [
      without('The codebook is in workgroup memory.', 2),
      without('Every point of the chunk has its entry.', 2),
      changed('wrong stride of cells', '+ thread) * (CHANNELS + 1u);', '+ thread) * CHANNELS;'),
      changed('every block at the first chunk', 'load_points(first + word * 4u,', 'load_points(word * 4u,'),
      changed('the farthest entry', 'distances.x < least.x)', 'distances.x > least.x)'),
    ],
  },
  {
    stage,
    entry: 'codebook_update',
    drive: driveUpdate,
    mutants: [
      changed('an empty cell divided by zero', 'if (members == 0.0) {', 'if (members < 0.0) {'),
      changed('the last block left out', 'chunk < chunks;', 'chunk + 1u < chunks;'),
    ],
  },
  {
    stage,
    entry: 'assign_values',
    drive: driveCodes,
    mutants: [
      without('The codebook is in workgroup memory.', 2),
      changed('the last entry never looked at', 'entry < 16u;', 'entry < 15u;'),
    ],
  },
];
