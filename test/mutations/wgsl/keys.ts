import { driveGram, driveMean } from '../drivers/keys.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

export const keySuspects: readonly Suspect[] = [
  {
    stage: 'gram',
    entry: 'gram_keys',
    drive: driveGram,
    mutants: [
      without('The tiles are complete before any thread reads them.'),
      without('Every thread has read the tiles before the next ones replace them.'),
      changed('no mask of tokens past the last', 'token >= sequence[AT_MIDDLE_TOKENS] || ', ''),
      changed('row off by one', 'token * TILE + row + k *', 'token * TILE + row + 1u + k *'),
      changed('no guard against an empty middle', 'f32(max(middle_tokens, 1u))', 'f32(middle_tokens)'),
      changed('one half of the matrix not written', 'gram[gram_column * WIDTH + gram_row] = moment;', ''),
      changed(
        'a barrier that some threads never reach',
        'if (first_column < first_row) {',
        'if (thread > 200u) {',
        'compiler',
      ),
      changed('an integer divided by', '/ f32(max(middle_tokens, 1u))', '/ max(middle_tokens, 1u)', 'compiler'),
      changed('output that may not be written', 'var<storage, read_write> gram', 'var<storage, read> gram', 'compiler'),
    ],
  },
  {
    stage: 'unrope',
    entry: 'mean_keys',
    drive: driveMean,
    mutants: [
      changed(
        'the last tile, which is not full, left out',
        '(middle_tokens + TILE_TOKENS - 1u) / TILE_TOKENS',
        'middle_tokens / TILE_TOKENS',
      ),
      changed('no clamp to f16', 'clamp(average, vec2f(-65504.0), vec2f(65504.0))', 'average'),
      changed('guard off by one', 'if (word >= WIDTH / 2u) {', 'if (word > WIDTH / 2u) {'),
      changed('mean not rounded as stored', 'mean[channel] = stored.x;', 'mean[channel] = average.x;'),
    ],
  },
];
