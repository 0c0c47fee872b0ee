import { driveDecompress } from '../drivers/decompress.js';
import { driveUnrope } from '../drivers/unrope.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

const shape = 'full';

export const decompressSuspects: readonly Suspect[] = [
  {
    stage: 'decompress',
    entry: 'decompress',
    shape,
    drive: driveDecompress,
    mutants: [
      without("the group's coefficients are there"),
      without("they have been used before the next group's take their place"),
      without('both channels of every pair are there'),
      without('the pairs are turned'),
      without('all channels have been read before the next head takes their place'),
      changed(
        'position without the sinks',
        'angle_at(tables, position, pair)',
        'angle_at(tables, position - end.sinks, pair)',
      ),
      changed(
        'pairs of the other pairing',
        'first_of_pair_4_8_1(pair);\n      const u32 second_channel = second_of_pair_4_8_1(pair);',
        'pair;\n      const u32 second_channel = pair + PAIRS;',
      ),
      changed(
        'the second channel of the wrong pair',
        'second_of_pair_4_8_1(pair);',
        'first_of_pair_4_8_1(pair) + 1;',
        'race',
      ),
      changed(
        'all pairs taken for rotary ones',
        'return pair < 4u ? pair * 2u : pair + 4u;',
        'return pair * 2u;',
        'race',
      ),
      changed(
        'the weight not divided out',
        '1.0f / half_at(cache + sequence[AT_KEY_WEIGHTS]',
        'half_at(cache + sequence[AT_KEY_WEIGHTS]',
      ),
      changed(
        'weights of the first head',
        'half_at(cache + sequence[AT_KEY_WEIGHTS], head * HEAD_DIM + channel)',
        'half_at(cache + sequence[AT_KEY_WEIGHTS], channel)',
      ),
      changed('the mean divided too', 'key[slot] + mean;', 'key[slot] + mean * inverse_weight;'),
      changed('half a step forgotten', '(1 << (bits - 1u))) + 0.5f', '(1 << (bits - 1u)))'),
      changed("a straddling field's second word ignored", 'if (shift + bits > 32u)', 'if (false)'),
      changed('wrong first bit', 'width / 16 + i * bits', 'width / 16 / 32 * 32 + i * bits'),
      changed(
        'widths of the wrong group',
        'const u32 width = cache[record[AT_KEY_WIDTHS] + group];',
        'const u32 width = cache[record[AT_KEY_WIDTHS]];',
      ),
      changed(
        'window not as a ring',
        '(sequence[AT_WINDOW_START] + token - end.stream) % WINDOW',
        'token - end.stream',
      ),
      changed('rebuilt keys in place of others', 'if (token < end.sinks || token >= end.middle) continue;', '', 'race'),
      changed('no end of the last tile', 'min(first + TILE_TOKENS, end.window)', 'first + TILE_TOKENS', 'outside'),
      changed(
        'stream codes of the first head',
        '(token * KV_HEADS + head) * STREAM_WORDS',
        'token * KV_HEADS * STREAM_WORDS',
      ),
      changed(
        'channel maxima of the first head',
        'half_at(cache + sequence[AT_CHANNEL_MAX], channel)',
        'half_at(cache + sequence[AT_CHANNEL_MAX], channel % HEAD_DIM)',
      ),
    ],
  },
  {
    stage: 'unrope',
    entry: 'unrope_keys',
    shape,
    drive: driveUnrope,
    mutants: [
      changed('position without the sinks', 'angle_at(tables, position, pair)', 'angle_at(tables, token, pair)'),
      changed(
        'pairs of the other pairing',
        'first_of_pair_4_8_1(pair);\n  const u32 second_channel = second_of_pair_4_8_1(pair);',
        'pair;\n  const u32 second_channel = pair + PAIRS;',
      ),
      changed(
        'turned further',
        'make_float2(a * angle.x + b * angle.y, b * angle.x - a * angle.y)',
        'make_float2(a * angle.x - b * angle.y, b * angle.x + a * angle.y)',
      ),
      changed('threads past the last pair', ' || pair >= PAIRS) return;', ') return;', 'outside'),
      changed('no end of the last tile', 'min(first + TILE_TOKENS, middle)', 'first + TILE_TOKENS', 'outside'),
      changed('wrong stride of heads', 'head * prompt + position', 'head * middle + position'),
      changed('one sum for all tiles', 'partial_sums + blockIdx.x * WIDTH + head', 'partial_sums + head', 'block race'),
    ],
  },
];
