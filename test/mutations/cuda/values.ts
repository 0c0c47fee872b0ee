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
      without("the caller's stores, then the stores of the previous stride, are complete"),
      without('the last stride is complete'),
      changed('not scaled', 'channels[channel] * HADAMARD_SCALE', 'channels[channel]'),
      changed('swapped operands', 'make_float2(a + b, a - b)', 'make_float2(a + b, b - a)'),
      changed('maximum of signed numbers', 'fmaxf(largest, fabsf(turned))', 'fmaxf(largest, turned)'),
      changed('sinks taken for the middle', '(head * prompt + sinks + token)', '(head * prompt + token)'),
      changed('no end of the last tile', 'min(first + TILE_TOKENS, middle)', 'first + TILE_TOKENS', 'outside'),
      changed(
        'half of the channels of a stride',
        'i < count / 2; i += THREADS) {',
        'i < count / 2 - 1; i += THREADS) {',
      ),
    ],
  },
  {
    stage,
    entry: 'codebook_seed',
    drive: driveSeed,
    mutants: [
      without('the first choice is known'),
      without('the newest centroid is known'),
      without('all distances to the chosen points are known'),
      changed('distance to the newest only', 'if (entry > 0) distance = fminf(distance, distances[sample]);', ''),
      changed('draws off by one', 'uniform_random(SEED, entry + 1)', 'uniform_random(SEED, entry)'),
      changed('distances read before they are written', 'if (entry > 0) distance', 'distance', 'unwritten'),
      changed(
        'sums over half of the threads',
        'total += sums[thread];',
        'total += thread % 2 == 0 ? sums[thread] : 0.0f;',
      ),
      changed(
        'no end of the last run',
        'const u32 end = min(first + run, count);',
        'const u32 end = first + run;',
        'outside',
      ),
    ],
  },
  {
    stage,
    entry: 'codebook_assign',
    drive: driveAssign,
    mutants: [
      without('the codebook is in shared memory'),
      without('every point of the chunk has its entry'),
      changed('codes of a word overlap', '((differs >> (i * 8)) & 0xffu)', '((differs >> (i * 4)) & 0xffu)'),
      changed('wrong stride of cells', '+ threadIdx.x) * (CHANNELS + 1);', '+ threadIdx.x) * CHANNELS;', 'race'),
      changed('every block at the first chunk', 'load_points(four, first + word * 4,', 'load_points(four, word * 4,'),
      changed('the farthest entry', 'distances.x < least.x ? entry', 'distances.x > least.x ? entry'),
      changed(
        'not divided by the scale',
        'sum[k] += rotated[at] / channel_scales[at % WIDTH];',
        'sum[k] += rotated[at];',
      ),
    ],
  },
  {
    stage,
    entry: 'codebook_update',
    drive: driveUpdate,
    mutants: [
      changed('an empty cell divided by zero', 'if (members == 0.0f) return;', ''),
      changed('the last block left out', 'block < blocks;', 'block + 1 < blocks;'),
      changed('one block too many', 'block < blocks;', 'block <= blocks;', 'outside'),
      changed('the count read one word early', 'members += cell[CHANNELS];', 'members += cell[CHANNELS - 1];'),
    ],
  },
  {
    stage,
    entry: 'assign_values',
    drive: driveCodes,
    mutants: [
      without('the codebook is in shared memory'),
      changed('two codes swapped', 'found.x | found.y << 8', 'found.y | found.x << 8'),
      changed('no guard of the last block', 'if (word >= words) return;', '', 'block race'),
      changed(
        'the last entry not loaded',
        'i < ENTRIES * CHANNELS; i += THREADS',
        'i < ENTRIES * CHANNELS - 1; i += THREADS',
        'unwritten',
      ),
      changed('the last entry never looked at', 'entry < 16u;', 'entry < 15u;'),
    ],
  },
];
