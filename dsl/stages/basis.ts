import type { LowRankGeometry } from '../geometry.js';
import { type Chosen, type Constraint, defineStage, type KernelPlan, oneOf, type Tunable } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, writes } from './bindings.js';

/** `choleskyQr` and `sharedMatrix` are 1 for the fast schedule, 0 for the one that takes any rank. */
type CudaSpace = Readonly<Record<'choleskyQr' | 'sharedMatrix', Tunable>>;
/** WGSL has no float64, and little workgroup memory. */
type WgslSpace = Readonly<Record<'tile', Tunable>>;
type Space = CudaSpace | WgslSpace;

export const maxSweeps = 12;
const none = { fixed: 0, dynamic: 0 };

/** Most columns whose inner products one block can keep in registers: 42 float64 entries a thread. */
const mostFactored = 192;

const fitsRegisters: Constraint<Space> = (g, tunables) =>
  'choleskyQr' in tunables && tunables.choleskyQr === 1 && g.rank > mostFactored
    ? `rank ${g.rank} is above ${mostFactored}, the most that basis_factor keeps in registers`
    : undefined;

const tall = (g: LowRankGeometry) => `[${g.width}][${g.rank}]`;
const square = (g: LowRankGeometry) => `[${g.rank}][${g.rank}]`;

function start(g: LowRankGeometry): KernelPlan {
  return {
    entry: 'basis_start',
    summary: 'A seeded start of the iteration, uniform in [-1, 1).',
    bindings: [writes('basis', 'f32', tall(g))],
    threads: 256,
    grid: [Math.ceil((g.width * g.rank) / 256), 1, 1],
    constants: { SEED: g.scheme.keys[1].seed },
    functions: { uniformRandom: { name: 'uniformRandom' } },
    sharedBytes: none,
  };
}

/** Columns and rows of a tile, and the shared memory of its factors. */
function multiply(g: LowRankGeometry, [columns, rows]: readonly [number, number], sharedBytes: number): KernelPlan {
  return {
    entry: 'basis_multiply',
    summary: 'product = gram * basis.',
    bindings: [
      reads('gram', 'f32', `[${g.width}][${g.width}], symmetric`),
      reads('basis', 'f32', tall(g)),
      writes('product', 'f32', tall(g)),
    ],
    threads: 256,
    grid: [Math.ceil(g.rank / columns), Math.ceil(g.width / rows), 1],
    constants: { TILE: 16 },
    functions: {},
    sharedBytes: { fixed: sharedBytes, dynamic: 0 },
  };
}

/** The kernel that makes columns orthonormal by itself, whatever they were and however many. */
function gramSchmidt(g: LowRankGeometry): readonly KernelPlan[] {
  return [
    {
      entry: 'basis_orthonormalize',
      summary: 'Gram-Schmidt, every column projected twice; a column that vanishes is replaced by a seeded one.',
      bindings: [writes('basis', 'f32', `${tall(g)}, orthonormal columns afterwards`)],
      threads: 256,
      grid: [1, 1, 1],
      constants: { SEED: g.scheme.keys[1].seed },
      functions: { uniformRandom: { name: 'uniformRandom' } },
      sharedBytes: { fixed: 256 * 4 + 32 * 4, dynamic: 0 },
    },
  ];
}

/** Three kernels that make columns orthonormal on all multiprocessors, if the columns were well apart; twice does always. */
function choleskyQr(g: LowRankGeometry): readonly KernelPlan[] {
  const inner = `${square(g)} float64, two words each`;
  return [
    {
      entry: 'basis_inner',
      summary: 'Inner products of all columns in float64: basis^T * basis, on and below the diagonal.',
      bindings: [reads('basis', 'f32', tall(g)), writes('inner', 'u32', inner)],
      threads: 512,
      grid: [g.rank / 16, g.rank / 16, 1],
      constants: {},
      functions: {},
      sharedBytes: { fixed: (2 * 32 * 16 + 8 * 256) * 8, dynamic: 0 },
    },
    {
      entry: 'basis_factor',
      summary: 'Cholesky factorisation of the inner products, in the registers of one block.',
      bindings: [writes('inner', 'u32', `${inner}; the factor above the diagonal, pivots on it (0 of a lost column)`)],
      threads: 512,
      grid: [1, 1, 1],
      constants: {},
      functions: {},
      sharedBytes: { fixed: 3 * g.rank * 8, dynamic: 0 },
    },
    {
      entry: 'basis_solve',
      summary: 'Projects every column on those before it, by the factor; lost columns are replaced by seeded ones.',
      bindings: [
        reads('inner', 'u32', `${inner}; the factor above the diagonal, pivots on it (0 of a lost column)`),
        writes('basis', 'f32', tall(g)),
      ],
      threads: 256,
      grid: [Math.ceil(g.width / 8), 1, 1],
      constants: { SEED: g.scheme.keys[1].seed },
      functions: { uniformRandom: { name: 'uniformRandom' } },
      sharedBytes: { fixed: g.rank * 8, dynamic: 0 },
    },
  ];
}

function ritz(g: LowRankGeometry): KernelPlan {
  return {
    entry: 'basis_ritz',
    summary: 'small = basis^T * product, symmetrised: the matrix seen from inside the subspace.',
    bindings: [reads('basis', 'f32', tall(g)), reads('product', 'f32', tall(g)), writes('small', 'f32', square(g))],
    threads: 256,
    grid: [g.rank / 16, g.rank / 16, 1],
    constants: { TILE: 16 },
    functions: {},
    sharedBytes: { fixed: 4 * 16 * 16 * 4, dynamic: 0 },
  };
}

/** Rotations in device memory, of matrix and vectors alike. */
function jacobi(g: LowRankGeometry): readonly KernelPlan[] {
  return [
    {
      entry: 'basis_jacobi',
      summary: 'Eigenvectors of the small matrix by cyclic Jacobi rotations, eigenvalues descending.',
      bindings: [
        writes('small', 'f32', `${square(g)}, destroyed`),
        writes('vectors', 'f32', `${square(g)}, eigenvectors in columns, in the order of the values`),
        writes('values', 'f32', `[${g.rank}], descending`),
        writes('order', 'u32', `[${g.rank}], scratch of the sort`),
      ],
      threads: 256,
      grid: [1, 1, 1],
      constants: { MAX_SWEEPS: maxSweeps },
      functions: { jacobiRotation: { name: 'jacobiRotation' } },
      sharedBytes: { fixed: Math.ceil(g.rank / 2) * 16 + 1024, dynamic: 0 },
    },
  ];
}

/** The matrix in shared memory; its rotations are written down, and the vectors turned by other blocks. */
function sharedJacobi(g: LowRankGeometry): readonly KernelPlan[] {
  const pairs = g.rank / 2;
  const rotations = `[${maxSweeps} sweeps][${g.rank - 1} steps][${pairs}](sine, sine / (1 + cosine))`;
  const order = `[${g.rank} + 1], the column of every place, then the sweeps`;
  return [
    {
      entry: 'basis_jacobi',
      summary: 'Eigenvalues of the small matrix by cyclic Jacobi rotations, descending, and the rotations.',
      bindings: [
        reads('small', 'f32', square(g)),
        writes('rotations', 'f32', rotations),
        writes('values', 'f32', `[${g.rank}], descending`),
        writes('order', 'u32', order),
      ],
      threads: 1024,
      grid: [1, 1, 1],
      constants: { MAX_SWEEPS: maxSweeps },
      functions: { jacobiRotation: { name: 'jacobiRotation' } },
      sharedBytes: { fixed: pairs * 16 + 1024 * 4, dynamic: g.rank * g.rank * 4 },
      template: 'basis_jacobi_shared',
    },
    {
      entry: 'basis_turn',
      summary: 'Eigenvectors of the small matrix from the rotations; one row a warp.',
      bindings: [
        reads('rotations', 'f32', rotations),
        reads('order', 'u32', order),
        writes('vectors', 'f32', `${square(g)}, eigenvectors in columns, in the order of the values`),
      ],
      threads: 128,
      grid: [Math.ceil(g.rank / 4), 1, 1],
      constants: {},
      functions: {},
      sharedBytes: { fixed: 4 * g.rank * 4, dynamic: 0 },
    },
  ];
}

function store(g: LowRankGeometry, sharedBytes: number): KernelPlan {
  return {
    entry: 'basis_store',
    summary: 'columns = basis * vectors, and their int8 codes with one scale a column; four columns a block.',
    bindings: [
      sequenceRecord,
      reads('basis', 'f32', tall(g)),
      reads('vectors', 'f32', square(g)),
      cacheWrite,
      writes('columns', 'f32', `${tall(g)}, orthonormal, descending eigenvalues`),
    ],
    threads: 256,
    grid: [g.rankWords, 1, 1],
    constants: {},
    functions: { basisScale: { name: 'basisScale' }, basisCode: { name: 'basisCode' } },
    sharedBytes: { fixed: sharedBytes, dynamic: 0 },
  };
}

/**
 * Passes of Cholesky QR after a round of the iteration. Inner products in float64 tell columns apart after two products
 * as well as float32 does after one, so that every second round needs none. At the start all columns lean to the leading
 * eigenvector, and those that differ too little from others are lost: a second pass makes what replaces them orthogonal,
 * without which they would lean there again. The last columns are to be orthonormal to the last bit.
 *
 * Directions of variances below 1e-18 vanish in the square: keys have none, as f16 begins at 6e-8.
 */
export function factoredPasses(round: number, rounds: number): number {
  if (round === rounds || round === 1 || round === 2) return 2;
  return round % 2 === 0 ? 1 : 0;
}

/**
 * Floats of the rotations that `basis_jacobi` writes down where it keeps its matrix in shared memory.
 */
export function rotationFloats(g: LowRankGeometry): number {
  return maxSweeps * (g.rank - 1) * g.rank;
}

/** Leading eigenvectors of the second-moment matrix by subspace iteration, with a Rayleigh-Ritz step by Jacobi rotations. */
export const basisStage = defineStage<Space>({
  name: 'basis',
  summary: 'Leading eigenvectors of the second-moment matrix, and their int8 form.',
  tunables: ({ language }) =>
    language === 'cuda' ? { choleskyQr: oneOf(1, 0), sharedMatrix: oneOf(1, 0) } : { tile: oneOf(16) },
  constraints: [fitsRegisters],
  kernels: (g, tunables) => {
    if (!('choleskyQr' in tunables)) {
      const { tile } = tunables;
      const product = multiply(g, [tile, tile], 2 * tile * tile * 4);
      return [start(g), product, ...gramSchmidt(g), ritz(g), ...jacobi(g), store(g, 4 * 256 * 4)];
    }
    const { choleskyQr: factored, sharedMatrix } = tunables as Chosen<CudaSpace>;
    return [
      start(g),
      multiply(g, [32, 64], 2 * 32 * (68 + 36) * 4),
      ...(factored === 1 ? choleskyQr(g) : gramSchmidt(g)),
      ritz(g),
      ...(sharedMatrix === 1 ? sharedJacobi(g) : jacobi(g)),
      store(g, (256 + 256 * 17 + 4 * 16) * 4),
    ];
  },
});
