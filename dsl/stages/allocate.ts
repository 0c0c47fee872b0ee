import { defineStage } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, writes } from './bindings.js';

/** Widths that a group may get. */
const widthChoices = 8;

/** Bits of a token's row, shared out among groups of components: the widths of least expected error under a budget. */
export const allocateStage = defineStage({
  name: 'allocate',
  summary: 'Find the widths of least expected error under the budget.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g) => {
    if (g.allocatedGroups === 0) return [];
    // A group of 16 components spends 16 bits for every bit of its width.
    const units = g.keyRowWords * 2;
    const threads = Math.min(256, Math.ceil((units + 1) / 32) * 32);
    return [
      {
        entry: 'allocate_bits',
        summary: 'Exact dynamic programming over the budget in units of 16 bits, a thread a unit; one block.',
        bindings: [
          sequenceRecord,
          reads('values', 'f32', `[${g.rank}] eigenvalues: the variances of the components`),
          writes('choices', 'u32', `[${g.allocatedGroups} groups][${units + 1}], scratch: the width that a group gets`),
          cacheWrite,
        ],
        threads,
        grid: [1, 1, 1],
        constants: { UNITS: units, WIDTH_CHOICES: widthChoices },
        functions: { widthOf: { name: 'midRiseWidth' }, distortion: { name: 'midRiseDistortion' } },
        sharedBytes: { fixed: (2 * (units + 1) + g.allocatedGroups) * 4, dynamic: 0 },
      },
    ];
  },
});
