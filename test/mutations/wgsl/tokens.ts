import { driveAppend } from '../drivers/append.js';
import { driveMoves } from '../drivers/copyWords.js';
import { driveCopy } from '../drivers/exact.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

export const tokenSuspects: readonly Suspect[] = [
  {
    stage: 'exact',
    entry: 'copy_exact',
    drive: driveCopy,
    mutants: [
      changed(
        'window off by one',
        'prompt_tokens - window_tokens + slot,',
        'prompt_tokens - window_tokens + slot + 1u,',
      ),
      changed('a sink too late', 'let is_sink = row < SINKS;', 'let is_sink = row < SINKS - 1u;'),
    ],
  },
  {
    stage: 'append',
    entry: 'append_token',
    drive: driveAppend,
    mutants: [
      without('A stage reads channels that other threads wrote in the stage before.'),
      without('All codes are there before they are packed.', 2),
      changed('a slot past the ring', '((start + window_tokens) % WINDOW)', '(start + window_tokens)'),
      changed('a full stream takes one more', 'stream_tokens >= before.w', 'stream_tokens > before.w'),
      changed('norm of the relative vector', 'sqrt(sum_of_squares) * max_abs', 'sqrt(sum_of_squares)'),
      changed('bits lost between words', 'value >> (first_bit - position)', 'value >> (first_bit - position + 1u)'),
      changed(
        'threads on two ways around a barrier',
        'let before = workgroupUniformLoad(&lengths);',
        'let before = lengths;',
        'compiler',
      ),
    ],
  },
  {
    stage: 'copy',
    entry: 'copy_words',
    drive: driveMoves,
    mutants: [
      changed('no end of a move', 'min(first + TILE_WORDS, moves[row + 2u])', 'first + TILE_WORDS'),
      changed('wrong stride of words', 'word += THREADS)', 'word += THREADS + 1u)'),
    ],
  },
];
