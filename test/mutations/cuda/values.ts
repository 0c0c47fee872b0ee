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
      without('the newest centroid is known'),
      without('all distances to the chosen points are known, and the newest centroid has been read'),
      changed(
        'distance to the newest only',
        'distances[i] = fminf(distances[i], distance);',
        'distances[i] = distance;',
      ),
      changed('draws off by one', 'uniform_random(SEED, entry + 1)', 'uniform_random(SEED, entry)'),
      changed('points past the end of the sample', 'first + i < count ? INFINITY : 0.0f', 'INFINITY'),
      changed('sums over half of the warps', 'total += warp_sums[i];', 'total += i % 2 == 0 ? warp_sums[i] : 0.0f;'),
      changed(
        'the first place of a lane',
        'choose(first + place_of<thread_samples>(before, target, distances))',
        'choose(first)',
      ),
      changed('places of other points forgotten', 'open ? before + own[i] : before;', 'open ? own[i] : before;'),
    ],
  },
  {
    stage,
    entry: 'codebook_assign',
    drive: driveAssign,
    mutants: [
      without('the codebook is in shared memory, the cells are empty'),
      without('the entries are measured'),
      without("every warp's cells are complete"),
      changed(
        'no barrier between lanes of a cell',
        '__syncwarp();  // the cells are up to date for the next lane',
        '',
        'race',
      ),
      changed('lanes of a cell at once', 'counts && before == turn', 'counts && turn == 0', 'race'),
      changed(
        'wrong stride of cells',
        '+ blockIdx.x * ENTRIES * cell_words',
        '+ blockIdx.x * ENTRIES * CHANNELS',
        'block race',
      ),
      changed('every block at the first chunk', 'blockIdx.x * POINTS_PER_BLOCK;', '0u * POINTS_PER_BLOCK;'),
      changed('points past the last', 'const bool counts = index < end;', 'const bool counts = true;'),
      changed('the last entry of a group', 'if (distance < least) nearest =', 'nearest ='),
      changed(
        'the farthest group',
        'if (smallest[i] < least[i]) found[i] = group;',
        'if (smallest[i] > least[i]) found[i] = group;',
      ),
      changed('norms not halved', 'half_norms[entry] = 0.5f * sum;', 'half_norms[entry] = sum;'),
      changed('not divided by the scale', 'rotated[at] / channel_scales[at % WIDTH]', 'rotated[at]'),
    ],
  },
  {
    stage,
    entry: 'codebook_update',
    drive: driveUpdate,
    mutants: [
      without("every warp's sums are there"),
      changed('an empty cell divided by zero', '|| members == 0.0f) return;', ') return;'),
      changed('the last block left out', 'chunk < chunks;', 'chunk + 1 < chunks;'),
      changed('one block too many', 'chunk < chunks;', 'chunk <= chunks;', 'outside'),
      changed('half of a warp left out', 'u32 distance = 16;', 'u32 distance = 8;'),
      changed('the count read one word early', 'sums[warp][CHANNELS];', 'sums[warp][CHANNELS - 1];'),
    ],
  },
  {
    stage,
    entry: 'assign_values',
    drive: driveCodes,
    mutants: [
      without('the codebook is in shared memory'),
      without('the entries are measured'),
      changed('two codes swapped', 'found[i] | found[i + 1] << 8', 'found[i + 1] | found[i] << 8'),
      changed('no guard of the last words', 'if (word >= words) continue;', '', 'outside'),
      changed(
        'the last entry not loaded',
        'i < ENTRIES * CHANNELS; i += THREADS) {\n    entries',
        'i < ENTRIES * CHANNELS - 1; i += THREADS) {\n    entries',
        'unwritten',
      ),
      changed(
        'the last group never looked at',
        'group < ENTRIES / group_entries; ++group) {\n    float',
        'group + 1 < ENTRIES / group_entries; ++group) {\n    float',
      ),
    ],
  },
];
