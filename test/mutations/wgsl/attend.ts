import { driveAttend } from '../drivers/attend.js';
import type { Suspect } from '../mutant.js';
import { changed, withoutBefore } from './text.js';

const drive = driveAttend(1e-5);

export const attendSuspects: readonly Suspect[] = [
  {
    stage: 'attend',
    entry: 'attend',
    beside: ['attend_merge'],
    drive,
    mutants: [
      withoutBefore('codes and scales of the group are staged'),
      withoutBefore('the keys of the tile are complete'),
      withoutBefore('scores are complete'),
      changed('old sums not rescaled', 'var sum = accumulated[h] * shrink;', 'var sum = accumulated[h];'),
      changed('window not as a ring', '(field(AT_WINDOW_START) + token) % WINDOW', 'token'),
      changed('position without the sinks', 'field(AT_SINK_TOKENS) + min(', 'min('),
      changed('tokens past the end weighed', 'select(vec4f(MASKED), all,', 'select(all, all,'),
      changed('a sliding window one token too long', 'min(sliding, visible_end)', 'min(sliding + 1u, visible_end)'),
      changed('tokens after the query seen', 'tokens - min(own.after, tokens)', 'tokens'),
    ],
  },
  {
    stage: 'attend, allocated widths',
    entry: 'attend',
    shape: 'full',
    beside: ['attend_merge'],
    drive,
    mutants: [
      changed(
        'the cap forgotten',
        'SCORE_CAP * hyperbolic_tangent(SCORE_SCALE * products)',
        'SCORE_CAP * (SCORE_SCALE * products)',
      ),
      changed('the weight not divided out', 'key_a[n][k] / weight_a', 'key_a[n][k]'),
      changed('widths of the wrong group', '[field(AT_KEY_WIDTHS) + group]', '[field(AT_KEY_WIDTHS)]'),
      changed('half a step forgotten', '(1 << (bits - 1u))) + 0.5', '(1 << (bits - 1u)))'),
      changed('wrong first bit', 'group.first_bit + i * group.bits', 'i * group.bits'),
      changed('the query of another row', 'work[first + 2u]', 'work[first]'),
      changed('pairs of the other pairing', 'select(pair + 4u, pair * 2u, pair < 4u)', 'pair'),
    ],
  },
  {
    stage: 'attend',
    entry: 'attend_merge',
    beside: ['attend'],
    drive,
    mutants: [
      withoutBefore('the rows are loaded, or the previous stage is complete'),
      withoutBefore('the ends are loaded'),
      changed('the last split left out', 'head, thread < count)', 'head, thread + 1u < count)'),
      changed(
        'weights of exact tokens only',
        'dot(hadamard_scales, vec4f(ends[i].y',
        'dot(vec4f(0.0), vec4f(ends[i].y',
      ),
      changed('heads past the first of a block left out', 'head += own.splits', 'head += GROUP_SIZE'),
      changed('outputs not written', 'let scale = select(0.0, 1.0', 'let scale = select(0.0, 0.0'),
    ],
  },
];
