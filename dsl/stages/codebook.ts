import { defineStage, oneOf } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, valueWeights, writes } from './bindings.js';

/** Points of the k-means++ sample. */
export const codebookSample = 4096;

/** Seeded k-means over the normalised value vectors: k-means++ on a sample, then Lloyd rounds with sums in a fixed order. */
export const codebookStage = defineStage({
  name: 'codebook',
  summary: 'Fit the value codebook by seeded, deterministic k-means.',
  tunables: () => ({ pointsPerBlock: oneOf(1024, 512, 2048) }),
  constraints: [],
  kernels: (g, { pointsPerBlock }) => {
    const [, , quantizer] = g.scheme.values;
    const statics = { channels: g.channels, entries: g.entries };
    const nearest = { name: 'nearestCentroids', statics, lookups: { centroids: 'centroid_at' } };
    const rotated = reads('rotated', 'f32', `[middle tokens][${g.width}], after Hadamard`);
    const channelScales = reads('channel_scales', 'f32', `[${g.width}]`);
    const centroids = `[${g.entries}][${g.channels}]`;
    const cells = `[blocks][${g.entries}][${g.channels + 1}]: sums, then the ${g.weighted ? 'weight' : 'count'}`;
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
          writes('distances', 'f32', `[${codebookSample}], scratch: squared distance to the nearest chosen point`),
        ],
        threads: 256,
        grid: [1, 1, 1],
        constants: { SEED: quantizer.seed, SAMPLE: codebookSample },
        functions: { uniformRandom: { name: 'uniformRandom' } },
        sharedBytes: { fixed: 2 * 256 * 4 + 64, dynamic: 0 },
      },
      {
        entry: 'codebook_assign',
        summary:
          'Assigns a chunk of points and sums them by entry, each entry in point order by one thread: no float atomics.',
        bindings: [
          sequenceRecord,
          rotated,
          channelScales,
          ...(g.weighted ? [valueWeights(g)] : []),
          reads('centroids', 'f32', centroids),
          writes('partial_cells', 'f32', cells),
        ],
        threads: 256,
        grid: [{ ceilDiv: [points, pointsPerBlock] }, 1, 1],
        constants: { POINTS_PER_BLOCK: pointsPerBlock },
        functions: { nearestCentroids: nearest },
        sharedBytes: { fixed: g.entries * g.channels * 4 + pointsPerBlock, dynamic: 0 },
      },
      {
        entry: 'codebook_update',
        summary: 'New centroids from the sums, block by block in order; an empty cell keeps its centroid.',
        bindings: [sequenceRecord, reads('partial_cells', 'f32', cells), writes('centroids', 'f32', centroids)],
        threads: 64,
        grid: [Math.ceil(g.entries / 64), 1, 1],
        constants: { POINTS_PER_BLOCK: pointsPerBlock },
        functions: {},
        sharedBytes: { fixed: 0, dynamic: 0 },
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
        summary: 'The index of the nearest stored f16 entry for every vector; four indices, one word, a thread.',
        bindings: [sequenceRecord, rotated, channelScales, cacheWrite],
        threads: 128,
        grid: [{ ceilDiv: [{ product: [{ dimension: 'middleTokens' }, g.valueRowWords] }, 128] }, 1, 1],
        constants: {},
        functions: { nearestCentroids: nearest },
        sharedBytes: { fixed: g.entries * g.channels * 4, dynamic: 0 },
      },
    ];
  },
});
