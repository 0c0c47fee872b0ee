import { driveMassScores, driveMassTokens } from '../drivers/mass.js';
import { driveMovesApart } from '../drivers/moveWords.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

/** What evicting tokens takes: their weights, and moving the rows that stay. */
export const massSuspects: readonly Suspect[] = [
  {
    stage: 'mass',
    entry: 'mass_scores',
    drive: driveMassScores,
    mutants: [
      without('the keys are staged'),
      changed('queries of the first head', '(index * HEADS + head) * HEAD_WORDS', 'index * HEADS * HEAD_WORDS'),
      changed('keys of the first head', '(kv_head * tokens + first)', 'first'),
      changed('no end of the last tile', 'if (token >= count) continue;', '', 'unwritten'),
      changed('scores without their scale', 'sum * SCORE_SCALE', 'sum'),
    ],
  },
  {
    stage: 'mass',
    entry: 'mass_tokens',
    drive: driveMassTokens,
    mutants: [
      changed('a query that sees the next token', 'queries - 1 - i % queries', 'queries - 2 - i % queries'),
      changed('no sliding window', 'sliding == 0 ? 0 : end - min(sliding, end)', '0'),
      changed('weights that do not sum to one', ' / sum', ''),
      changed('scores of the first heads', 'scores + blockIdx.x * GROUP_SIZE * queries * tokens', 'scores'),
      changed('the last row alone', 'own[token] += exp2f', 'own[token] = exp2f'),
      changed('sums that begin anywhere', 'own[token] = 0.0f;', ';', 'unwritten'),
    ],
  },
  {
    stage: 'copy',
    entry: 'move_words',
    drive: driveMovesApart,
    mutants: [
      changed('no end of a move', 'min(first + TILE_WORDS, move[2])', 'first + TILE_WORDS', 'outside'),
      changed('wrong stride of words', 'word += THREADS)', 'word += THREADS + 1)'),
      changed('moved to where it came from', 'destination[to + word]', 'destination[from + word]', 'block race'),
    ],
  },
];
