import { driveAppend } from '../drivers/append.js';
import { driveMoves } from '../drivers/copyWords.js';
import { driveCopy } from '../drivers/exact.js';
import type { Suspect } from '../mutant.js';
import { changed, without, withoutAfter } from './text.js';

export const tokenSuspects: readonly Suspect[] = [
  {
    stage: 'exact',
    entry: 'copy_exact',
    drive: driveCopy,
    mutants: [
      changed('window off by one', 'prompt - window + slot;', 'prompt - window + slot + 1;', 'outside'),
      changed(
        'wrong stride of heads',
        '(word / head_words * prompt + token)',
        '(word / head_words * (prompt + 1) + token)',
        'outside',
      ),
      changed('a sink too late', 'const bool sink = row >= WINDOW;', 'const bool sink = row > WINDOW;'),
      changed(
        'parts swapped',
        'sink ? AT_SINK_VALUES : AT_WINDOW_VALUES',
        'sink ? AT_WINDOW_VALUES : AT_SINK_VALUES',
        'race',
      ),
      changed('rows past the last sink', '(sink ? sequence[AT_SINK_TOKENS] : window)', '(sink ? ~0u : window)', 'race'),
    ],
  },
  {
    stage: 'append',
    entry: 'append_token',
    drive: driveAppend,
    mutants: [
      without("the caller's stores, then the stores of the previous stride, are complete"),
      without('the last stride is complete'),
      without('all codes are there before they are packed'),
      without('the norms of all heads are there'),
      withoutAfter(
        '__device__ __forceinline__ float block_sum(float value, float (&scratch)[THREADS]) {\n  scratch[threadIdx.x] = value;',
        'all values are in scratch',
      ),
      changed('a slot past the ring', '(start + window) % WINDOW', '(start + window)'),
      changed('the ring never comes round', '(start + 1) % WINDOW', 'start + 1'),
      changed(
        'a full stream takes one more',
        'stream >= sequence[AT_STREAM_CAPACITY]',
        'stream > sequence[AT_STREAM_CAPACITY]',
      ),
      changed(
        'norms never initialised',
        'head % 2 == 0 ? half : norm_words[head / 2] | half << 16',
        'norm_words[head / 2] | half << (head % 2 * 16)',
        'unwritten',
      ),
      changed('norm of the relative vector', 'sqrtf(sum_of_squares) * max_abs', 'sqrtf(sum_of_squares)'),
      changed('rounded to the level below', 'x * 2.0f > levels(probe - 1u) + levels(probe)', 'x > levels(probe)'),
      changed('bits lost between words', 'value >> (first_bit - position)', 'value >> (first_bit - position + 1u)'),
      changed('codes of the first head repeated', 'fields + head * STREAM_WORDS', 'fields'),
      changed('the new token of the first sequence', 'new_keys + blockIdx.x * row_words', 'new_keys'),
    ],
  },
  {
    stage: 'copy',
    entry: 'copy_words',
    drive: driveMoves,
    mutants: [
      changed('no end of a move', 'min(first + TILE_WORDS, move[2])', 'first + TILE_WORDS', 'block race'),
      changed('tiles that overlap', 'blockIdx.x * TILE_WORDS', 'blockIdx.x * (TILE_WORDS - 1)', 'block race'),
      changed('wrong stride of words', 'word += THREADS)', 'word += THREADS + 1)'),
      changed('wrong stride of moves', 'blockIdx.y * MOVE_WORDS', 'blockIdx.y * (MOVE_WORDS - 1)', 'block race'),
      changed(
        'copied back',
        'cache[to + word] = cache[from + word]',
        'cache[from + word] = cache[to + word]',
        'block race',
      ),
    ],
  },
];
