import { defineStage, oneOf } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, valueWeights, writes } from './bindings.js';

/** Points of the k-means++ sample. */
export const codebookSample = 4096;

/** Seeded k-means over the normalised value vectors: k-means++ on a sample, then Lloyd rounds with sums in a fixed order. */
export const codebookStage = defineStage({
  name: 'codebook',
  summary: 'Fit the value codebook by seeded, deterministic k-means.',
  // Every warp of CUDA has cells of its own, which is what limits their number. WGSL has one thread an entry.
  tunables: ({ language }) => ({
    pointsPerBlock: oneOf(2048, 1024, 4096),
    warps: language === 'cuda' ? oneOf(8, 4) : oneOf(8),
  }),
  constraints: [],
  kernels: (g, { pointsPerBlock, warps }, { language }) => {
    const cuda = language === 'cuda';
    /** CUDA keeps entries in groups of eight with four words between. */
    const entryBytes = (g.entries * g.channels + (cuda ? g.entries / 2 : 0)) * 4;
    const cellBytes = g.entries * (g.channels + 1) * 4;
    /** Half of the squared length of every entry, and the largest. */
    const normBytes = (g.entries + 1) * 4;
    const [, , quantizer] = g.scheme.values;
    const statics = { channels: g.channels, entries: g.entries };
    const nearest = { name: 'nearestCentroids', statics, lookups: { centroids: 'centroid_at' } };
    const rotated = reads('rotated', 'f32', `[middle tokens][${g.width}], after Hadamard`);
    const channelScales = reads('channel_scales', 'f32', `[${g.width}]`);
    const centroids = `[${g.entries}][${g.channels}]`;
    const cells = `[blocks][${g.entries}][${g.channels + 1}]: sums, then the ${g.weighted ? 'weight' : 'count'}`;
    /** Words of indices that a thread of `assign_values` writes: CUDA keeps 32 channels of points in registers. */
    const threadWords = cuda && g.channels < 8 ? 2 : 1;
    const points = { product: [{ dimension: 'middleTokens' }, g.width / g.channels] };
    return [
      {
        entry: 'codebook_seed',
        summary: 'k-means++ over a strided sample of at most 4096 points, one block.',
        bindings: [
          sequenceRecord,
          rotated,
          channelScales,
          writes('centroids', 'f32', centroids),
          // CUDA has registers for them.
          ...(cuda ? [] : [writes('distances', 'f32', `[${codebookSample}], squared, to the nearest chosen point`)]),
        ],
        threads: 256,
        grid: [1, 1, 1],
        constants: { SEED: quantizer.seed, SAMPLE: codebookSample },
        functions: { uniformRandom: { name: 'uniformRandom' } },
        sharedBytes: { fixed: (256 + 8) * 4 + 64, dynamic: 0 },
      },
      {
        entry: 'codebook_assign',
        summary: 'Assigns a chunk of points and sums them by entry, always in the same order: no float atomics.',
        bindings: [
          sequenceRecord,
          rotated,
          channelScales,
          ...(g.weighted ? [valueWeights(g)] : []),
          reads('centroids', 'f32', centroids),
          writes('partial_cells', 'f32', cells),
        ],
        threads: warps * 32,
        grid: [{ ceilDiv: [points, pointsPerBlock] }, 1, 1],
        constants: { POINTS_PER_BLOCK: pointsPerBlock, WARPS: warps },
        functions: cuda ? {} : { nearestCentroids: nearest },
        sharedBytes: {
          fixed: entryBytes + (cuda ? normBytes + warps * cellBytes : pointsPerBlock),
          dynamic: 0,
        },
      },
      {
        entry: 'codebook_update',
        summary: 'New centroids from the sums, always in the same order; an empty cell keeps its centroid.',
        bindings: [sequenceRecord, reads('partial_cells', 'f32', cells), writes('centroids', 'f32', centroids)],
        threads: cuda ? 128 : 64,
        grid: [cuda ? g.entries : Math.ceil(g.entries / 64), 1, 1],
        constants: { POINTS_PER_BLOCK: pointsPerBlock },
        functions: {},
        sharedBytes: { fixed: cuda ? 4 * (g.channels + 1) * 4 : 0, dynamic: 0 },
      },
      {
        entry: 'codebook_store',
        summary: 'The codebook as f16 in the cache.',
        bindings: [sequenceRecord, reads('centroids', 'f32', centroids), cacheWrite],
        threads: 64,
        grid: [Math.ceil((g.entries * g.channels) / 2 / 64), 1, 1],
        constants: {},
        functions: {},
        sharedBytes: { fixed: 0, dynamic: 0 },
      },
      {
        entry: 'assign_values',
        summary: 'The index of the nearest stored f16 entry for every vector; four indices are a word.',
        bindings: [sequenceRecord, rotated, channelScales, cacheWrite],
        threads: 128,
        grid: [g.valueRowWords, { ceilDiv: [{ dimension: 'middleTokens' }, 128 * threadWords] }, 1],
        constants: {},
        functions: cuda ? {} : { nearestCentroids: nearest },
        sharedBytes: { fixed: entryBytes + (cuda ? normBytes : 0), dynamic: 0 },
      },
    ];
  },
});
