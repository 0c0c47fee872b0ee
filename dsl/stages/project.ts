import { defineStage, oneOf } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, writes } from './bindings.js';

/** Coefficients of every middle key, their scales, and the packed fields. */
export const projectStage = defineStage({
  name: 'project',
  summary: 'Project the centred keys on the basis, quantise and pack.',
  tunables: () => ({ tileTokens: oneOf(16) }),
  constraints: [],
  kernels: (g, { tileTokens }) => {
    const none = { fixed: 0, dynamic: 0 };
    const quantizers: Record<string, { name: string; statics: Record<string, number> }> = {};
    for (const bits of new Set(g.keyGroups.map((group) => group.bits).filter((bits) => bits > 0))) {
      quantizers[`scale${bits}`] = { name: 'coefficientScale', statics: { bits } };
      quantizers[`field${bits}`] = { name: 'coefficientField', statics: { bits } };
    }
    const scales = Object.fromEntries(Object.entries(quantizers).filter(([role]) => role.startsWith('scale')));
    const fields = Object.fromEntries(Object.entries(quantizers).filter(([role]) => role.startsWith('field')));
    const packers = Object.fromEntries(
      Object.keys(fields).map((role) => {
        const bits = Number(role.slice('field'.length));
        return [`pack${bits}`, { name: 'packWord', statics: { bits }, lookups: { fields: `group_field_${bits}` } }];
      }),
    );
    return [
      {
        entry: 'project_keys',
        summary:
          'coefficients = (plain - mean) * columns, and the largest magnitude of every component over a tile of tokens.',
        bindings: [
          sequenceRecord,
          reads('plain', 'f32', `[middle tokens][${g.width}], before RoPE`),
          reads('mean', 'f32', `[${g.width}]`),
          reads('columns', 'f32', `[${g.width}][${g.rank}]`),
          writes('coefficients', 'f32', `[middle tokens][${g.rank}]`),
          writes('partial_maxima', 'f32', `[tiles][${g.rank}]`),
        ],
        threads: 256,
        grid: [Math.ceil(g.rank / 16), { ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, 1],
        constants: { TILE: 16, TILE_TOKENS: tileTokens },
        functions: {},
        sharedBytes: { fixed: 3 * 16 * tileTokens * 4, dynamic: 0 },
      },
      {
        entry: 'scale_keys',
        summary: 'One f16 scale a component from its largest magnitude.',
        bindings: [
          sequenceRecord,
          reads('partial_maxima', 'f32', `[tiles][${g.rank}]`),
          cacheWrite,
          writes('scales', 'f32', `[${g.rank}], rounded to f16`),
        ],
        threads: 64,
        grid: [Math.ceil(Math.ceil(g.rank / 2) / 64), 1, 1],
        constants: { TILE_TOKENS: tileTokens },
        functions: scales,
        sharedBytes: none,
      },
      {
        entry: 'pack_keys',
        summary: 'Quantises the coefficients and packs their fields; one word of one group of one token a thread.',
        bindings: [
          sequenceRecord,
          reads('coefficients', 'f32', `[middle tokens][${g.rank}]`),
          reads('scales', 'f32', `[${g.rank}]`),
          cacheWrite,
        ],
        threads: 128,
        grid: [{ ceilDiv: [{ product: [{ dimension: 'middleTokens' }, g.keyRowWords] }, 128] }, 1, 1],
        constants: {},
        functions: { ...fields, ...packers },
        sharedBytes: none,
      },
    ];
  },
});
