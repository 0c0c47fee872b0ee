import { driveQueries, driveWeights } from '../drivers/weigh.js';
import type { Suspect } from '../mutant.js';
import { changed, without, withoutAfter } from './text.js';

const shared = { stage: 'weigh', shape: 'full' } as const;

export const weighSuspects: readonly Suspect[] = [
  {
    ...shared,
    entry: 'weigh_queries',
    drive: driveQueries,
    mutants: [
      changed(
        'pairs of the other pairing',
        'half_at(query, first_of_pair_4_8_1(pair));\n      const float b = half_at(query, second_of_pair_4_8_1(pair));',
        'half_at(query, pair);\n      const float b = half_at(query, pair + PAIRS);',
      ),
      changed('heads of the wrong group', 'blockIdx.x * GROUP_SIZE; head', 'blockIdx.x; head'),
      changed('all queries, not the last', 'token = given - observed;', 'token = 0;'),
      changed('the first queries', 'head * given + token', 'head * given + token + observed - given'),
      changed('threads past the last pair', 'if (pair >= PAIRS) return;', '', 'outside'),
      changed('one channel of a pair', 'a * a + b * b', 'a * a'),
      changed('one KV head for all', 'squares[blockIdx.x * PAIRS + pair]', 'squares[pair]', 'block race'),
    ],
  },
  {
    ...shared,
    entry: 'weigh_finish',
    drive: driveWeights,
    mutants: [
      without('all weights are there: the two channels of a word may be of two pairs'),
      without('16 maxima are left'),
      withoutAfter(
        '__device__ __forceinline__ float block_max(float value, float (&scratch)[THREADS]) {\n  scratch[threadIdx.x] = value;',
        'all values are in scratch',
      ),
      changed('squares, not their root', 'sqrtf(squares[i] / count)', 'squares[i] / count'),
      changed('the largest of a thread', 'largest = block_max(largest, scratch);', ''),
      changed('no floor', 'fmaxf(root_mean_square / largest, 0.001f)', 'root_mean_square / largest'),
      changed('nothing to weigh by', 'if (largest > 0.0f)', 'if (true)'),
      changed(
        'pairs of the other pairing',
        'head[second_of_pair_4_8_1(i % PAIRS)] = weight;',
        'head[i % PAIRS + PAIRS] = weight;',
        'race',
      ),
    ],
  },
];
