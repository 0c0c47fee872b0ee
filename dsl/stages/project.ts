import type { LowRankGeometry } from '../geometry.js';
import { defineStage, type FunctionUse, oneOf } from '../stage.js';
import { cacheWrite, keyWeights, reads, sequenceRecord, writes } from './bindings.js';

interface Quantizers {
  readonly scales: Readonly<Record<string, FunctionUse>>;
  readonly fields: Readonly<Record<string, FunctionUse>>;
}

/** Of every width of the scheme's own. */
function fixedQuantizers(g: LowRankGeometry): Quantizers {
  const widths = [...new Set(g.keyGroups.map((group) => group.bits).filter((bits) => bits > 0))];
  const uses = (role: string, use: (bits: number) => FunctionUse) =>
    Object.fromEntries(widths.map((bits) => [`${role}${bits}`, use(bits)]));
  return {
    scales: uses('scale', (bits) => ({ name: 'coefficientScale', statics: { bits } })),
    fields: {
      ...uses('field', (bits) => ({ name: 'coefficientField', statics: { bits } })),
      ...uses('pack', (bits) => ({
        name: 'packWord',
        statics: { bits },
        lookups: { fields: `group_field_${bits}` },
      })),
    },
  };
}

/** Of widths that each prompt decides. */
const allocatedQuantizers: Quantizers = {
  scales: { midRiseStep: { name: 'midRiseStep' } },
  fields: {
    midRiseField: { name: 'midRiseField' },
    packBits: { name: 'packBits', statics: { count: 16 }, lookups: { fields: 'group_field' } },
  },
};

/** Coefficients of every middle key, their scales, and the packed fields. */
export const projectStage = defineStage({
  name: 'project',
  summary: 'Project the centred keys on the basis, quantise and pack.',
  tunables: ({ language }) => ({ tileTokens: language === 'cuda' ? oneOf(64) : oneOf(16) }),
  constraints: [],
  kernels: (g, { tileTokens }, { language }) => {
    /** Components of a tile: CUDA keeps square tiles, with `perThread` squared entries a thread. */
    const tile = language === 'cuda' ? tileTokens : 16;
    const perThread = tile / 16;
    const shared = language === 'cuda' ? (4 * 32 * (tile + 4) + 16 * tile) * 4 : 3 * 16 * tileTokens * 4;
    const none = { fixed: 0, dynamic: 0 };
    const allocated = g.allocatedGroups > 0;
    const { scales, fields } = allocated ? allocatedQuantizers : fixedQuantizers(g);
    return [
      {
        entry: 'project_keys',
        summary:
          'coefficients = (plain - mean) * columns, and the magnitudes of every component over a tile of tokens.',
        bindings: [
          sequenceRecord,
          reads('plain', 'f32', `[middle tokens][${g.width}], before RoPE`),
          reads('mean', 'f32', `[${g.width}]`),
          ...(g.weighted ? [keyWeights(g)] : []),
          reads('columns', 'f32', `[${g.width}][${g.rank}]`),
          writes('coefficients', 'f32', `[middle tokens][${g.rank}]`),
          writes('partial_maxima', 'f32', `[tiles][${g.rank}]`),
          // One-bit codes stand for the mean magnitude.
          ...(allocated ? [writes('partial_magnitudes', 'f32', `[tiles][${g.rank}], sums`)] : []),
        ],
        threads: 256,
        grid: [Math.ceil(g.rank / tile), { ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, 1],
        constants: { TILE: tile, TILE_TOKENS: tileTokens, PER_THREAD: perThread },
        functions: {},
        sharedBytes: { fixed: shared, dynamic: 0 },
      },
      {
        entry: 'scale_keys',
        summary: 'One f16 scale a component from its magnitudes and its width.',
        bindings: [
          sequenceRecord,
          reads('partial_maxima', 'f32', `[tiles][${g.rank}]`),
          ...(allocated ? [reads('partial_magnitudes', 'f32', `[tiles][${g.rank}], sums`)] : []),
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
        summary: 'Quantises the coefficients and packs their fields; one word of one token a thread.',
        bindings: [
          sequenceRecord,
          reads('coefficients', 'f32', `[middle tokens][${g.rank}]`),
          reads('scales', 'f32', `[${g.rank}]`),
          cacheWrite,
        ],
        threads: 128,
        grid: [g.keyRowWords, { ceilDiv: [{ dimension: 'middleTokens' }, 128] }, 1],
        constants: {},
        functions: fields,
        sharedBytes: { fixed: g.allocatedGroups * 4, dynamic: 0 },
      },
    ];
  },
});
