import type { ScalarGeometry, ScalarGroups } from '../geometry.js';
import { defineStage, type FunctionUse, type KernelPlan, oneOf, type Stage, type Tunable } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, tables, writes } from './bindings.js';
import { pairFunctions } from './unrope.js';

/** The device functions that read a scalar code, under the names that templates call: `keyUnpack`, `keyValue`, and of values. */
export function scalarReadFunctions(g: ScalarGeometry): Record<string, FunctionUse> {
  const of = (name: 'key' | 'value', { codec, bits }: ScalarGroups) => ({
    [`${name}Value`]: { name: codec.device.value.name, lookups: { levels: `${name}_level_at` } },
    [`${name}Unpack`]: { name: 'unpackField', statics: { bits }, lookups: { words: `${name}_word_at` } },
  });
  return { ...of('key', g.keys), ...of('value', g.values) };
}

/** What makes the keys of both channels of a pair of what is stored in their places; nothing where each is coded alone. */
export function pairedKeyFunctions(g: ScalarGeometry): Record<string, FunctionUse> {
  if (g.keys.unrotated) return { rotatePair: { name: 'rotatePair' }, ...pairFunctions(g) };
  return g.keys.polar ? { fromPolar: { name: 'fromPolar' }, ...pairFunctions(g) } : {};
}

type Space = Readonly<Record<'tileTokens', Tunable>>;

/** Threads of the blocks that take numbers, or words, one a thread. */
const threads = 256;
/**
 * Threads that look through the numbers of a word of scales together: more where a scale is for the whole prompt, as there
 * are few words then. Where it is for a channel of it, 8 words a block still read neighbouring channels.
 */
function slicesOf({ scaleTokens, scaleChannels, trim }: ScalarGroups): number {
  if (scaleTokens > 0) return 8;
  if (scaleChannels > 1) return threads;
  // Numbers of a trimmed range are looked through once for each of their bits: the more threads, down to the four words
  // side by side that fill a sector of memory.
  return trim > 0 ? 64 : 32;
}

/** From a prompt's keys, or values, to their codes and scales. */
function codesStage(operand: 'keys' | 'values'): Stage<Space, ScalarGeometry> {
  return defineStage<Space, ScalarGeometry>({
    name: operand === 'keys' ? 'codeKeys' : 'codeValues',
    summary: `Turn the middle ${operand}, find their scales, quantise and pack; keep outliers beside the codes.`,
    tunables: () => ({ tileTokens: oneOf(16, 64) }),
    constraints: [],
    kernels: (g, { tileTokens }) => {
      const { codec, bits, unrotated, turned, polar, projection, scaleTokens, scaleRowWords, trim, outlierCap } =
        g[operand];
      const paired = unrotated || polar;
      const rowWords = operand === 'keys' ? g.keyRowWords : g.valueRowWords;
      const levels = { levels: 'level_at' };
      const slices = slicesOf(g[operand]);
      const none = { fixed: 0, dynamic: 0 };
      const where = unrotated ? ', before RoPE' : turned ? ', after Hadamard' : polar ? ', radius and angle / pi' : '';
      const prepared = `[middle tokens][${g.width}]${where}`;
      const rows = { ceilDiv: [{ dimension: 'middleTokens' }, scaleTokens] } as const;
      const functions = {
        ...(codec.device.offset ? { offset: { name: codec.device.offset.name } } : {}),
        scale: { name: codec.device.scale.name },
      };
      const kernels: readonly KernelPlan[] = [
        {
          entry: `turn_${operand}`,
          summary: `The middle ${operand} as float32${where}: a tile of tokens of one KV head a block.`,
          bindings: [
            sequenceRecord,
            reads(
              'vectors',
              'u32',
              `f16 [${g.kvHeads} KV heads][prompt tokens][${g.headDim}]${operand === 'keys' ? ', after RoPE' : ''}`,
            ),
            ...(unrotated ? [tables] : []),
            writes('plain', 'f32', prepared),
          ],
          threads: Math.ceil((paired ? g.pairs : g.headDim) / 32) * 32,
          grid: [{ ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, g.kvHeads, 1],
          constants: { TILE_TOKENS: tileTokens },
          functions: unrotated
            ? { unrotatePair: { name: 'unrotatePair' }, addAngles: { name: 'addAngles' }, ...pairFunctions(g) }
            : turned
              ? { butterfly: { name: 'butterfly' } }
              : polar
                ? { toPolar: { name: 'toPolar' }, ...pairFunctions(g) }
                : {},
          sharedBytes: { fixed: turned ? g.headDim * 4 : 0, dynamic: 0 },
          template: 'scalar_turn',
          operand,
        },
        {
          entry: `scale_${operand}`,
          summary: `The f16 scale${codec.device.offset ? ' and offset' : ''} of every block of ${operand} that shares one; a word of two scales for ${slices} threads.`,
          bindings: [sequenceRecord, reads('plain', 'f32', prepared), cacheWrite],
          threads,
          grid:
            scaleTokens === 0
              ? [Math.ceil((scaleRowWords * slices) / threads), 1, 1]
              : [scaleRowWords, { ceilDiv: [rows, threads / slices] }, 1],
          constants: { SLICES: slices, ...(trim > 0 ? { TRIM: trim } : {}) },
          functions,
          sharedBytes: { fixed: threads * 16 + (trim > 0 ? (threads / slices) * 48 : 0), dynamic: 0 },
          template: 'scalar_scale',
          operand,
        },
        {
          entry: `pack_${operand}`,
          summary: `Quantises the ${operand} and packs their codes; one word of one vector a thread.`,
          bindings: [sequenceRecord, reads('plain', 'f32', prepared), tables, cacheWrite],
          threads,
          grid: [rowWords, { ceilDiv: [{ dimension: 'middleTokens' }, threads] }, 1],
          constants: {},
          functions: {
            code: { name: codec.device.code.name, statics: { bits }, lookups: levels },
            pack: { name: 'packWord', statics: { bits }, lookups: { fields: 'field_at' } },
          },
          sharedBytes: none,
          template: 'scalar_pack',
          operand,
        },
      ];
      if (outlierCap > 0) return [...kernels, ...sparsePlans(g, operand, prepared)];
      return projection.length > 0 ? [...kernels, signPlan(g, tileTokens, prepared)] : kernels;
    },
  });
}

/** Of what the codes of keys leave, the signs of a random projection and the length. */
function signPlan(g: ScalarGeometry, tileTokens: number, prepared: string): KernelPlan {
  const { keyValue, keyUnpack } = scalarReadFunctions(g);
  return {
    entry: 'sign_keys',
    summary: 'What the codes of keys leave: the signs of its random projection, and its length; one channel a thread.',
    bindings: [sequenceRecord, reads('plain', 'f32', prepared), tables, cacheWrite],
    threads: g.headDim,
    grid: [{ ceilDiv: [{ dimension: 'middleTokens' }, tileTokens] }, g.normWords, 1],
    constants: { TILE_TOKENS: tileTokens },
    functions: { keyValue: keyValue!, keyUnpack: keyUnpack!, butterfly: { name: 'butterfly' } },
    sharedBytes: { fixed: g.headDim * 4 + g.headDim / 8, dynamic: 0 },
    template: 'scalar_signs',
  };
}

/** What the codes of a prompt do not reach: the largest residuals, then how many more there were. */
function sparsePlans(g: ScalarGeometry, operand: 'keys' | 'values', prepared: string): readonly KernelPlan[] {
  const { codec, bits, range } = g[operand];
  const holds = `[middle tokens][${g.kvHeads} KV heads], outliers past the cap`;
  return [
    {
      entry: `sparse_${operand}`,
      summary: `The outliers of the ${operand}, largest residual first; one vector a thread.`,
      bindings: [sequenceRecord, reads('plain', 'f32', prepared), tables, cacheWrite, writes('clamped', 'u32', holds)],
      threads,
      grid: [{ ceilDiv: [{ product: [{ dimension: 'middleTokens' }, g.kvHeads] }, threads] }, 1, 1],
      constants: { RANGE_LEAST: range[0], RANGE_GREATEST: range[1] },
      functions: {
        value: { name: codec.device.value.name, lookups: { levels: 'level_at' } },
        unpack: { name: 'unpackField', statics: { bits }, lookups: { words: 'word_at' } },
      },
      sharedBytes: { fixed: 0, dynamic: 0 },
      template: 'scalar_sparse',
      operand,
    },
    {
      entry: `count_${operand}`,
      summary: `How many outliers of the ${operand} were too many, in one block.`,
      bindings: [sequenceRecord, reads('clamped', 'u32', holds), cacheWrite],
      threads,
      grid: [1, 1, 1],
      constants: {},
      functions: {},
      sharedBytes: { fixed: threads * 4, dynamic: 0 },
      template: 'scalar_count',
      operand,
    },
  ];
}

/** Codes of the middle keys. */
export const scalarKeysStage = codesStage('keys');
/** Codes of the middle values. */
export const scalarValuesStage = codesStage('values');
