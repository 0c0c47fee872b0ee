import type { ScalarGeometry } from '../geometry.js';
import { type Chosen, defineStage, type FunctionUse, type KernelPlan, oneOf, type Tunable } from '../stage.js';
import { rowPositions, type TiltGeometry } from '../tiltGeometry.js';
import { cacheWrite, reads, sequenceRecord, tables, writes } from './bindings.js';
import { scalarValuesStage } from './scalarCodes.js';

type Space = Readonly<Record<'tileTokens', Tunable>>;

const none = { fixed: 0, dynamic: 0 };
/** Threads of the blocks that take words, or vectors, one a thread. */
const threads = 128;
/** Rows of codes that a prompt has, its sinks and window counted in. */
const rows = { ceilDiv: [{ dimension: 'promptTokens' }, rowPositions] } as const;

/** Components of every middle key, their steps, and the packed fields. */
export const tiltKeysStage = defineStage<Readonly<Record<string, never>>, TiltGeometry>({
  name: 'codeKeys',
  summary: 'Transform the keys, find the steps of their components, quantise and pack.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g, _, { language }) => {
    const wgsl = language === 'wgsl';
    const tile = wgsl ? 16 : 64;
    const blocks = g.rangeBlock === 0 ? 1 : ({ ceilDiv: [{ dimension: 'promptTokens' }, g.rangeBlock] } as const);
    const coefficients = `[middle tokens][${g.width} components]`;
    const steps = `[range blocks][${g.width} components], as the stored ones stand for`;
    return [
      {
        entry: 'tilt_project',
        summary: 'coefficients = turned * vectors, KV head by KV head.',
        bindings: [
          sequenceRecord,
          reads('turned', 'f32', `[middle tokens][${g.width}], tile-rotated and weighted`),
          reads('vectors', 'f32', `[${g.kvHeads} KV heads][${g.headDim}][${g.headDim}], eigenvectors in columns`),
          writes('coefficients', 'f32', coefficients),
        ],
        threads: 256,
        grid: [{ ceilDiv: [{ dimension: 'middleTokens' }, tile] }, Math.ceil(g.headDim / tile), g.kvHeads],
        constants: { MATRIX_TILE: tile, ...(wgsl ? {} : { PER_THREAD: 4 }) },
        functions: {},
        sharedBytes: { fixed: wgsl ? 2 * 16 * 16 * 4 : 2 * 2 * 32 * (64 + 4) * 4, dynamic: 0 },
      },
      {
        entry: 'tilt_steps',
        summary:
          'The step of every component, from its magnitudes in a range block and its width; one of them a thread.',
        bindings: [
          sequenceRecord,
          reads('coefficients', 'f32', coefficients),
          reads('column_scales', 'f32', `[${g.width} components]`),
          cacheWrite,
          writes('steps', 'f32', steps),
        ],
        threads: Math.ceil(g.headDim / 32) * 32,
        grid: [blocks, g.kvHeads, 1],
        constants: {},
        functions: { foldedStep: { name: 'foldedStep' } },
        sharedBytes: { fixed: g.headDim * 4, dynamic: 0 },
      },
      {
        entry: 'tilt_pack_keys',
        summary: 'Quantises the components and packs their fields; one word of the key planes of a row a thread.',
        bindings: [
          sequenceRecord,
          reads('coefficients', 'f32', coefficients),
          reads('steps', 'f32', steps),
          cacheWrite,
        ],
        threads,
        grid: [rows, Math.ceil((g.keyNibbles * 8 * g.groupComponents) / threads), 1],
        constants: {},
        functions: {
          midRiseField: { name: 'midRiseField' },
        },
        sharedBytes: none,
      },
    ];
  },
});

/** Codes of the middle values: in the rows of the keys, or in parts of their own. */
export const tiltValuesStage = defineStage<Space, TiltGeometry>({
  name: 'codeValues',
  summary: 'Transform the middle values, find their norms or scales, quantise and pack; make them unbiased.',
  tunables: () => ({ tileTokens: oneOf(16, 64) }),
  constraints: [],
  kernels: (g, tunables, target) => {
    // Of a geometry it reads how values are coded, and sizes that every family has.
    const scalar = scalarValuesStage.kernels(g as unknown as ScalarGeometry, tunables, target);
    return g.packedValues ? [scalar[0]!, ...packedKernels(g, tunables)] : scalar;
  },
});

function packedKernels(g: TiltGeometry, { tileTokens }: Chosen<Space>): readonly KernelPlan[] {
  const { codec, bits } = g.values;
  const plain = reads('plain', 'f32', `[middle tokens][${g.width}], after Hadamard`);
  const norms = `[middle tokens][${g.kvHeads} KV heads], rounded to f16`;
  const partial = `[tiles][2: squares, products with the coded value][${g.width}]`;
  const code: FunctionUse = { name: codec.device.code.name, statics: { bits }, lookups: { levels: 'level_at' } };
  const gains: readonly KernelPlan[] = [
    {
      entry: 'tilt_products',
      summary: 'Sums of y * y and of y * coded y of every channel over a tile of tokens.',
      bindings: [
        sequenceRecord,
        plain,
        reads('norms', 'f32', norms),
        tables,
        writes('partial_products', 'f32', partial),
      ],
      threads: Math.ceil(g.headDim / 32) * 32,
      grid: [{ ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, g.kvHeads, 1],
      constants: { TILE_TOKENS: tileTokens },
      functions: { code, value: { name: codec.device.value.name, lookups: { levels: 'level_at' } } },
      sharedBytes: none,
    },
    {
      entry: 'tilt_gains',
      summary: 'The gain of every channel.',
      bindings: [sequenceRecord, reads('partial_products', 'f32', partial), cacheWrite],
      threads: 64,
      grid: [Math.ceil(g.width / 2 / 64), 1, 1],
      constants: { TILE_TOKENS: tileTokens },
      functions: { unbiasedGain: { name: 'unbiasedGain' } },
      sharedBytes: none,
    },
  ];
  return [
    {
      entry: 'tilt_norms',
      summary: 'The f16 norm of every value; one KV head of a token a thread.',
      bindings: [sequenceRecord, plain, writes('norms', 'f32', norms)],
      threads,
      grid: [{ ceilDiv: [{ product: [{ dimension: 'middleTokens' }, g.kvHeads] }, threads] }, 1, 1],
      constants: {},
      functions: { scale: { name: codec.device.scale.name } },
      sharedBytes: none,
    },
    {
      entry: 'tilt_pack_values',
      summary: 'Quantises the values and packs their codes and norms; one word of a row a thread.',
      bindings: [sequenceRecord, plain, reads('norms', 'f32', norms), tables, cacheWrite],
      threads,
      grid: [rows, Math.ceil((g.kvHeads * g.rowValueWords) / threads), 1],
      constants: { ABREAST: abreastOf(g.headDim) },
      functions: { code, normPosition: { name: 'normPosition' } },
      sharedBytes: none,
    },
    ...(g.gained ? gains : []),
  ];
}

/** Words of a lane's value codes that lie side by side: as many as a load takes, of heads that have so many. */
export function abreastOf(headDim: number): number {
  return headDim % 128 === 0 ? 4 : headDim % 64 === 0 ? 2 : 1;
}
