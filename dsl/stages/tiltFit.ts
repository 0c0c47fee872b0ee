import { defineStage, type KernelPlan, oneOf, type Target, type Tunable } from '../stage.js';
import type { TiltGeometry } from '../tiltGeometry.js';
import { maxSweeps } from './basis.js';
import { cacheWrite, keyWeights, reads, sequenceRecord, tables, writes } from './bindings.js';
import { pairFunctions } from './unrope.js';
import { weighQueries } from './weigh.js';

/** Blocks that fill the largest devices: the tokens of a head's matrix are shared by several blocks. */
const gramSlices = 8;
/** Widths that a group may get. */
const widthChoices = 8;
/** Of all queries that come with the prompt; shard-plus observes the last ones alone. */
const allQueries = 0xffffffff;

const none = { fixed: 0, dynamic: 0 };

/** Threads that try widths together; each has its own list of the best, of which WGSL has room for fewer. */
const widthThreads = ({ language }: Target) => (language === 'cuda' ? 256 : 64);
/** A number for every KV head and every number of nibbles. */
const ofNibbles = (g: TiltGeometry) => `[${g.kvHeads} KV heads][${2 * g.headGroups + 1} numbers of nibbles]`;

/** Lists of so many widths that do not ascend. */
function candidatesOf(groups: number): number {
  let count = 1;
  for (let i = 1; i <= groups; i++) count = (count * (widthChoices - 1 + i)) / i;
  return count;
}

/** Of one f32 matrix for every KV head. */
const square = (g: TiltGeometry) => `[${g.kvHeads} KV heads][${g.headDim}][${g.headDim}]`;

/** How much the prompt's queries ask of every pair of channels: the weights of keys. */
export const tiltWeighStage = defineStage<Readonly<Record<string, never>>, TiltGeometry>({
  name: 'weigh',
  summary: 'Weigh every pair of key channels by the queries of the prompt.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g) => [
    weighQueries(g, allQueries),
    {
      entry: 'tilt_weigh',
      summary: 'Root mean squares over the largest of the layer, floored; both channels of a pair get the same f16.',
      bindings: [
        sequenceRecord,
        reads('squares', 'f32', `[${g.kvHeads} KV heads][${g.pairs} pairs]`),
        cacheWrite,
        writes('weights', 'f32', `[${g.width}], rounded to f16`),
      ],
      threads: 256,
      grid: [1, 1, 1],
      constants: {},
      functions: { pairWeight: { name: 'pairWeight' } },
      sharedBytes: { fixed: 256 * 4, dynamic: 0 },
    },
  ],
});

/** Keys about their mean, in their places in the tile and weighted: what is transformed. */
export const tiltTurnStage = defineStage<Readonly<Record<'tileTokens', Tunable>>, TiltGeometry>({
  name: 'turnKeys',
  summary: 'Rotate the centred keys to their places in a tile, and weight them.',
  tunables: () => ({ tileTokens: oneOf(32, 16, 64) }),
  constraints: [],
  kernels: (g, { tileTokens }) => [
    {
      entry: 'tilt_turn_keys',
      summary: 'plain = weights * R(place in the tile) * (plain - mean), a tile of tokens of one KV head a block.',
      bindings: [
        sequenceRecord,
        tables,
        reads('mean', 'f32', `[${g.width}]`),
        keyWeights(g),
        writes('plain', 'f32', `[middle tokens][${g.width}], before RoPE; tile-rotated and weighted afterwards`),
      ],
      threads: Math.ceil(g.pairs / 32) * 32,
      grid: [{ ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, g.kvHeads, 1],
      constants: { TILE_TOKENS: tileTokens },
      functions: { rotatePair: { name: 'rotatePair' }, ...pairFunctions(g) },
      sharedBytes: none,
    },
  ],
});

const turned = (g: TiltGeometry) => reads('turned', 'f32', `[middle tokens][${g.width}], tile-rotated and weighted`);

function gramKernels(g: TiltGeometry, { language }: Target): readonly KernelPlan[] {
  const small = writes('small', 'f32', `${square(g)}, second moments`);
  if (language === 'wgsl') {
    return [
      {
        entry: 'tilt_gram',
        summary: 'Second moments of every KV head, a tile of the matrix a block.',
        bindings: [sequenceRecord, turned(g), small],
        threads: 256,
        grid: [Math.ceil(g.headDim / 32), Math.ceil(g.headDim / 32), g.kvHeads],
        constants: { MATRIX_TILE: 32, TILE_TOKENS: 16, PER_THREAD: 4 },
        functions: {},
        sharedBytes: { fixed: 2 * 32 * 16 * 4, dynamic: 0 },
      },
    ];
  }
  const partial = `[${gramSlices} slices of the tokens]${square(g)}, sums`;
  const tiles = Math.ceil(g.headDim / 64);
  return [
    {
      entry: 'tilt_gram',
      summary: 'Second moments of every KV head: a tile of the matrix over one slice of the tokens a block.',
      bindings: [sequenceRecord, turned(g), writes('partial_gram', 'f32', partial)],
      threads: 256,
      grid: [tiles, tiles, g.kvHeads * gramSlices],
      constants: { MATRIX_TILE: 64, PER_THREAD: 4, SLICES: gramSlices },
      functions: {},
      sharedBytes: { fixed: 2 * 2 * 32 * (64 + 4) * 4, dynamic: 0 },
    },
    {
      entry: 'tilt_gram_finish',
      summary: 'Adds the slices in order.',
      bindings: [sequenceRecord, reads('partial_gram', 'f32', partial), small],
      threads: 256,
      grid: [Math.ceil((g.width * g.headDim) / 256), 1, 1],
      constants: { SLICES: gramSlices },
      functions: {},
      sharedBytes: none,
    },
  ];
}

/** Matrices in device memory, with their eigenvectors. */
function jacobi(g: TiltGeometry): readonly KernelPlan[] {
  return [
    {
      entry: 'basis_jacobi',
      summary: 'Eigenvectors of every matrix by cyclic Jacobi rotations, eigenvalues descending; a KV head a block.',
      bindings: [
        writes('small', 'f32', `${square(g)}, destroyed`),
        writes('vectors', 'f32', `${square(g)}, eigenvectors in columns, in the order of the values`),
        writes('values', 'f32', `[${g.kvHeads} KV heads][${g.headDim}], descending`),
        writes('order', 'u32', `[${g.kvHeads} KV heads][${g.headDim}], scratch of the sort`),
      ],
      threads: 256,
      grid: [g.kvHeads, 1, 1],
      constants: { MAX_SWEEPS: maxSweeps, RANK: g.headDim },
      functions: { jacobiRotation: { name: 'jacobiRotation' } },
      sharedBytes: { fixed: Math.ceil(g.headDim / 2) * 16 + 1024, dynamic: 0 },
    },
  ];
}

/** Matrices in shared memory; their rotations are written down, and the vectors turned by other blocks. */
function sharedJacobi(g: TiltGeometry): readonly KernelPlan[] {
  const pairs = g.headDim / 2;
  const rotations = `[${g.kvHeads} KV heads][${maxSweeps} sweeps][${g.headDim - 1} steps][${pairs}](sine, sine / (1 + cosine))`;
  const order = `[${g.kvHeads} KV heads][${g.headDim} + 1], the column of every place, then the sweeps`;
  return [
    {
      entry: 'basis_jacobi',
      summary:
        'Eigenvalues of every matrix by cyclic Jacobi rotations, descending, and the rotations; a KV head a block.',
      bindings: [
        reads('small', 'f32', `${square(g)}, second moments`),
        writes('rotations', 'f32', rotations),
        writes('values', 'f32', `[${g.kvHeads} KV heads][${g.headDim}], descending`),
        writes('order', 'u32', order),
      ],
      threads: 1024,
      grid: [g.kvHeads, 1, 1],
      constants: { MAX_SWEEPS: maxSweeps, RANK: g.headDim },
      functions: { jacobiRotation: { name: 'jacobiRotation' } },
      sharedBytes: { fixed: pairs * 16 + 1024 * 4, dynamic: g.headDim * g.headDim * 4 },
      template: 'basis_jacobi_shared',
    },
    {
      entry: 'basis_turn',
      summary: 'Eigenvectors of every matrix from the rotations; one row a warp.',
      bindings: [
        reads('rotations', 'f32', rotations),
        reads('order', 'u32', order),
        writes('vectors', 'f32', `${square(g)}, eigenvectors in columns, in the order of the values`),
      ],
      threads: 128,
      grid: [Math.ceil(g.headDim / 4), g.kvHeads, 1],
      constants: { MAX_SWEEPS: maxSweeps, RANK: g.headDim },
      functions: {},
      sharedBytes: { fixed: 4 * g.headDim * 4, dynamic: 0 },
    },
  ];
}

/** CUDA: `sharedMatrix` is 1 for the fast schedule, 0 for the one that takes heads of any size. WGSL has one. */
type FitSpace = Readonly<Record<'sharedMatrix', Tunable>> | Readonly<Record<string, never>>;

/** The transform of every KV head, and the widths of its components. */
export const tiltFitStage = defineStage<FitSpace, TiltGeometry>({
  name: 'fit',
  summary: 'Eigenvectors of the second moments of every KV head, and the widths of their components.',
  tunables: ({ language }) => (language === 'cuda' ? { sharedMatrix: oneOf(1, 0) } : {}),
  constraints: [],
  kernels: (g, tunables, target) => [
    ...gramKernels(g, target),
    ...('sharedMatrix' in tunables && tunables.sharedMatrix === 1 ? sharedJacobi(g) : jacobi(g)),
    {
      entry: 'tilt_widths',
      summary:
        'Least expected error of every KV head for every number of nibbles, by trying all widths; a head a block.',
      bindings: [
        reads('values', 'f32', `[${g.kvHeads} KV heads][${g.headDim}] eigenvalues: the variances of the components`),
        writes('head_errors', 'f32', `${ofNibbles(g)}, over the largest variance of a group`),
        writes('head_candidates', 'u32', `${ofNibbles(g)}: the number of the widths that leave it`),
      ],
      threads: widthThreads(target),
      grid: [g.kvHeads, 1, 1],
      constants: { WIDTH_CHOICES: widthChoices, CANDIDATES: candidatesOf(g.headGroups) },
      functions: { widthOf: { name: 'midRiseWidth' }, distortion: { name: 'midRiseDistortion' } },
      sharedBytes: { fixed: widthThreads(target) * (2 * g.headGroups + 1) * 8, dynamic: 0 },
    },
    {
      entry: 'tilt_allocate',
      summary:
        'Shares the nibbles of a row out among the KV heads for the least error together, and places fields; one block.',
      bindings: [
        sequenceRecord,
        reads('head_errors', 'f32', ofNibbles(g)),
        reads('head_candidates', 'u32', ofNibbles(g)),
        writes(
          'choices',
          'u32',
          `[${g.kvHeads} KV heads][${g.keyNibbles + 1}], scratch: the nibbles that a head gets of so many`,
        ),
        cacheWrite,
      ],
      threads: 64,
      grid: [1, 1, 1],
      constants: { WIDTH_CHOICES: widthChoices },
      functions: { widthOf: { name: 'midRiseWidth' } },
      sharedBytes: { fixed: (2 * (g.keyNibbles + 1) + g.kvHeads) * 4, dynamic: 0 },
    },
    {
      entry: 'tilt_store',
      summary: 'The int8 codes of every basis, component by component, with one scale each; one component a thread.',
      bindings: [
        sequenceRecord,
        reads('vectors', 'f32', `${square(g)}, eigenvectors in columns`),
        cacheWrite,
        writes('column_scales', 'f32', `[${g.width} components]`),
      ],
      threads: 64,
      grid: [Math.ceil(g.width / 64), 1, 1],
      constants: {},
      functions: { basisCode: { name: 'basisCode' } },
      sharedBytes: none,
    },
  ],
});
