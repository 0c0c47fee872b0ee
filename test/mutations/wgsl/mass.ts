import { driveMassScores, driveMassTokens } from '../drivers/mass.js';
import { driveMovesApart } from '../drivers/moveWords.js';
import type { Suspect } from '../mutant.js';
import { changed } from './text.js';

/** What evicting tokens takes: their weights, and moving the rows that stay. */
export const massSuspects: readonly Suspect[] = [
  {
    stage: 'mass',
    entry: 'mass_scores',
    drive: driveMassScores,
    mutants: [
      changed('queries of the first head', '(index * HEADS + head) * HEAD_WORDS', 'index * HEADS * HEAD_WORDS'),
      changed('keys of the first head', '(block.y * tokens + first)', 'first'),
      changed('the same query for all', 'i / TILE_QUADS % queries', '0u'),
    ],
  },
  {
    stage: 'mass',
    entry: 'mass_tokens',
    drive: driveMassTokens,
    mutants: [
      changed('a query that sees the next token', 'queries - 1u - i % queries', 'queries - 2u - i % queries'),
      changed('no sliding window', 'select(end - min(sliding, end), 0u, sliding == 0u)', '0u'),
      changed('weights that do not sum to one', ' / sum;', ';'),
      changed('the last row alone', 'masses[own + token] += exp2', 'masses[own + token] = exp2'),
    ],
  },
  {
    stage: 'copy',
    entry: 'move_words',
    drive: driveMovesApart,
    mutants: [
      changed('no end of a move', 'min(first + TILE_WORDS, moves[row + 2u])', 'first + TILE_WORDS'),
      changed('wrong stride of words', 'word += THREADS)', 'word += THREADS + 1u)'),
    ],
  },
];
