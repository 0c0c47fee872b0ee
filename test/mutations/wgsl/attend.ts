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
      changed('tokens past the end weighed', 'select(vec4f(EMPTY), all,', 'select(all, all,'),
    ],
  },
  {
    stage: 'attend',
    entry: 'attend_merge',
    beside: ['attend'],
    drive,
    mutants: [
      withoutBefore('the rows are loaded, or the previous stage is complete'),
      changed(
        'the last split left out',
        'part < splits * 2u; part++) {\n      let row',
        'part + 2u < splits * 2u; part++) {\n      let row',
      ),
      changed('weight of the last part only', 'weights[h] += partials[', 'weights[h] = partials['),
      changed('outputs not written', 'if (owner) {\n    for', 'if (!owner) {\n    for'),
    ],
  },
];
