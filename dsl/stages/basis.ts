import { defineStage, oneOf } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, writes } from './bindings.js';

/** Leading eigenvectors of the second-moment matrix by subspace iteration, with a Rayleigh-Ritz step by Jacobi rotations. */
export const basisStage = defineStage({
  name: 'basis',
  summary: 'Leading eigenvectors of the second-moment matrix, and their int8 form.',
  tunables: () => ({ tile: oneOf(16) }),
  constraints: [],
  kernels: (g, { tile }) => {
    const [, pca] = g.scheme.keys;
    const tall = `[${g.width}][${g.rank}]`;
    const square = `[${g.rank}][${g.rank}]`;
    const none = { fixed: 0, dynamic: 0 };
    return [
      {
        entry: 'basis_start',
        summary: 'A seeded start of the iteration, uniform in [-1, 1).',
        bindings: [writes('basis', 'f32', tall)],
        threads: 256,
        grid: [Math.ceil((g.width * g.rank) / 256), 1, 1],
        constants: { SEED: pca.seed },
        functions: { uniformRandom: { name: 'uniformRandom' } },
        sharedBytes: none,
      },
      {
        entry: 'basis_multiply',
        summary: 'product = gram * basis.',
        bindings: [
          reads('gram', 'f32', `[${g.width}][${g.width}], symmetric`),
          reads('basis', 'f32', tall),
          writes('product', 'f32', tall),
        ],
        threads: 256,
        grid: [Math.ceil(g.rank / tile), Math.ceil(g.width / tile), 1],
        constants: { TILE: tile },
        functions: {},
        sharedBytes: { fixed: 2 * tile * tile * 4, dynamic: 0 },
      },
      {
        entry: 'basis_orthonormalize',
        summary: 'Gram-Schmidt, every column projected twice; a column that vanishes is replaced by a seeded one.',
        bindings: [writes('basis', 'f32', `${tall}, orthonormal columns afterwards`)],
        threads: 256,
        grid: [1, 1, 1],
        constants: { SEED: pca.seed },
        functions: { uniformRandom: { name: 'uniformRandom' } },
        sharedBytes: { fixed: 256 * 4 + 32 * 4, dynamic: 0 },
      },
      {
        entry: 'basis_ritz',
        summary: 'small = basis^T * product, symmetrised: the matrix seen from inside the subspace.',
        bindings: [reads('basis', 'f32', tall), reads('product', 'f32', tall), writes('small', 'f32', square)],
        threads: 256,
        grid: [Math.ceil(g.rank / tile), Math.ceil(g.rank / tile), 1],
        constants: { TILE: tile },
        functions: {},
        sharedBytes: { fixed: 4 * tile * tile * 4, dynamic: 0 },
      },
      {
        entry: 'basis_jacobi',
        summary: 'Eigenvectors of the small matrix by cyclic Jacobi rotations, eigenvalues descending.',
        bindings: [
          writes('small', 'f32', `${square}, destroyed`),
          writes('vectors', 'f32', `${square}, eigenvectors in columns, in the order of the values`),
          writes('values', 'f32', `[${g.rank}], descending`),
          writes('order', 'u32', `[${g.rank}], scratch of the sort`),
        ],
        threads: 256,
        grid: [1, 1, 1],
        constants: { MAX_SWEEPS: 12 },
        functions: { jacobiRotation: { name: 'jacobiRotation' } },
        sharedBytes: { fixed: Math.ceil(g.rank / 2) * 16 + 1024, dynamic: 0 },
      },
      {
        entry: 'basis_store',
        summary: 'columns = basis * vectors, and their int8 codes with one scale a column; four columns a block.',
        bindings: [
          sequenceRecord,
          reads('basis', 'f32', tall),
          reads('vectors', 'f32', square),
          cacheWrite,
          writes('columns', 'f32', `${tall}, orthonormal, descending eigenvalues`),
        ],
        threads: 256,
        grid: [g.rankWords, 1, 1],
        constants: {},
        functions: { basisScale: { name: 'basisScale' }, basisCode: { name: 'basisCode' } },
        sharedBytes: { fixed: 4 * 256 * 4, dynamic: 0 },
      },
    ];
  },
});
