import type { LowRankGeometry } from '../geometry.js';
import { type Chosen, defineStage, type KernelPlan, oneOf, type Tunable } from '../stage.js';
import { keyWeights, reads, sequenceRecord, tokenWeights, writes } from './bindings.js';

/** CUDA: a tile of 16 * perThread rows and columns a block. */
type SlicedSpace = Readonly<Record<'perThread', Tunable>>;
/** WGSL. */
type TiledSpace = Readonly<Record<'tile' | 'tileTokens', Tunable>>;
type Space = SlicedSpace | TiledSpace;

/** Blocks that fill the largest devices: narrow matrices have fewer tiles, whose tokens are shared by several blocks. */
const wantedBlocks = 1056;
const mostSlices = 8;

function inputs(g: LowRankGeometry): KernelPlan['bindings'] {
  return [
    sequenceRecord,
    reads('plain', 'f32', `[middle tokens][${g.width}], before RoPE`),
    reads('mean', 'f32', `[${g.width}]`),
    ...(g.weighted ? [keyWeights(g), tokenWeights] : []),
  ];
}

function outputs(g: LowRankGeometry): KernelPlan['bindings'] {
  return [writes('gram', 'f32', `[${g.width}][${g.width}], divided by the middle tokens; zero for an empty middle`)];
}

function slicedKernels(g: LowRankGeometry, { perThread }: Chosen<SlicedSpace>): readonly KernelPlan[] {
  const tile = 16 * perThread;
  const tiles = Math.ceil(g.width / tile);
  const slices = Math.min(mostSlices, Math.ceil(wantedBlocks / ((tiles * (tiles + 1)) / 2)));
  const partial = `[${slices} slices of the tokens][${g.width}][${g.width}], sums; on and above the diagonal`;
  return [
    {
      entry: 'gram_keys',
      summary: 'One tile of the matrix over one slice of the tokens a block; only tiles on or above the diagonal.',
      bindings: [...inputs(g), writes('partial_gram', 'f32', partial)],
      threads: 256,
      grid: [tiles, tiles, slices],
      constants: { TILE: tile, PER_THREAD: perThread, SLICES: slices },
      functions: {},
      sharedBytes: { fixed: 2 * 2 * 32 * (tile + 4) * 4, dynamic: 0 },
    },
    {
      entry: 'gram_finish',
      summary: 'Adds the slices in order; both halves of the matrix are written.',
      bindings: [sequenceRecord, reads('partial_gram', 'f32', partial), ...outputs(g)],
      threads: 256,
      grid: [g.width / 16, g.width / 16, 1],
      constants: { SLICES: slices },
      functions: {},
      sharedBytes: { fixed: 0, dynamic: 0 },
    },
  ];
}

function tiledKernels(g: LowRankGeometry, { tile, tileTokens }: Chosen<TiledSpace>): readonly KernelPlan[] {
  return [
    {
      entry: 'gram_keys',
      summary:
        'One tile of the matrix a block; only tiles on or above the diagonal are computed, both halves are written.',
      bindings: [...inputs(g), ...outputs(g)],
      threads: 256,
      grid: [Math.ceil(g.width / tile), Math.ceil(g.width / tile), 1],
      constants: { TILE: tile, TILE_TOKENS: tileTokens, PER_THREAD: (tile * tile) / 256 },
      functions: {},
      sharedBytes: { fixed: 2 * tile * tileTokens * 4, dynamic: 0 },
    },
  ];
}

/** The second-moment matrix of the un-rotated keys, centred (and weighted), over all KV heads together. */
export const gramStage = defineStage<Space>({
  name: 'gram',
  summary: 'Second-moment matrix of the centred middle keys.',
  tunables: ({ language }) =>
    language === 'cuda' ? { perThread: oneOf(4, 2) } : { tile: oneOf(32, 16), tileTokens: oneOf(16, 32) },
  constraints: [],
  kernels: (g, tunables) => ('perThread' in tunables ? slicedKernels(g, tunables) : tiledKernels(g, tunables)),
});
