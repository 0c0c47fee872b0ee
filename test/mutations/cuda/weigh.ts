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
      changed('heads of the wrong group', 'blockIdx.y * GROUP_SIZE; head', 'blockIdx.y; head'),
      changed('no end of the last tile', 'min(first + TILE_TOKENS, tokens)', 'first + TILE_TOKENS', 'outside'),
      changed('threads past the last pair', ' || pair >= PAIRS) return;', ') return;', 'outside'),
      changed('one channel of a pair', 'a * a + b * b', 'a * a'),
      changed(
        'wrong stride of tiles',
        '(blockIdx.x * KV_HEADS + blockIdx.y)',
        '(blockIdx.x + blockIdx.y)',
        'block race',
      ),
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
      changed(
        'the last tile, which is not full, left out',
        '(tokens + TILE_TOKENS - 1) / TILE_TOKENS',
        'tokens / TILE_TOKENS',
      ),
      changed('squares, not their root', 'sqrtf(sum / count)', 'sum / count'),
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
