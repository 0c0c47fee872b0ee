import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { hadamard } from '../../dsl/codecs/hadamard.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { perToken } from '../../dsl/codecs/quantize.js';
import { gain, tileRotation, transformCode } from '../../dsl/codecs/transformCode.js';
import { asymmetric } from '../../dsl/codecs/uniform.js';
import { uniformNormal } from '../../dsl/codecs/uniformNormal.js';
import { unrope } from '../../dsl/codecs/unrope.js';
import { geometryOf } from '../../dsl/geometry.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import { defineScheme, type TiltScheme } from '../../dsl/scheme.js';
import type { Target } from '../../dsl/stage.js';
import { fitsTiltProducts } from '../../dsl/stages/tiltAttendWgmma.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type AttendDraw, attendDraws, type SequenceDraw } from '../../runtime/verify/attendDraws.js';
import { attendCase } from '../../runtime/verify/codeCases.js';
import { Judge } from '../../runtime/verify/judge.js';

const SEED = 20261201;
const target: Target = { language: 'cuda', arch: 'sm_90a', tensorCores: true };
/** Of an output's largest magnitude, at scores to 40. */
const bar = 2e-3;

interface Shape {
  readonly kvHeads: number;
  readonly groupSize: number;
  readonly headDim: number;
  readonly bits?: number;
  readonly tile?: 32 | 64;
  readonly rangeBlock?: 0 | 128 | 512;
  readonly valueBits?: 2 | 3;
  readonly scoreCap?: number;
  readonly window?: number;
}

function modelOf({ kvHeads, groupSize, headDim, scoreCap }: Shape): ModelShape {
  const heads = kvHeads * groupSize;
  const model = modelFrom(
    {
      model_type: 'llama',
      hidden_size: heads * headDim,
      num_hidden_layers: 1,
      num_attention_heads: heads,
      num_key_value_heads: kvHeads,
      head_dim: headDim,
      rope_theta: 10000,
      max_position_embeddings: 4096,
    },
    'drawn',
  );
  return scoreCap === undefined ? model : { ...model, scoreCap };
}

function schemeOf({ bits = 1.5, tile = 64, rangeBlock = 512, valueBits = 2, window = 16 }: Shape): TiltScheme {
  const coded = perToken(valueBits === 2 ? uniformNormal({ bits: 2 }) : asymmetric({ bits: 3 }));
  return defineScheme({
    name: 'drawn',
    keys: [unrope(), tileRotation({ tile }), transformCode({ bits, rangeBlock })],
    values: valueBits === 2 ? [hadamard(), coded, gain()] : [hadamard(), coded],
    sinks: 4,
    window,
    stream: lloydMax({ bits: 4 }),
  });
}

const geometry = (shape: Shape) => geometryOf(schemeOf(shape), modelOf(shape)) as TiltGeometry;

const one: SequenceDraw = {
  sinks: 4,
  middle: 0,
  stream: 0,
  window: 16,
  windowStart: 3,
  spare: 0,
  splits: 1,
  slidingWindow: 0,
  reach: 40,
  aligned: false,
  magnitude: 1,
};

/** Middles that end about a tile, and some that take all warps several groups of tiles, over several range blocks. */
const tileEdges: readonly AttendDraw[] = [59, 60, 61, 700, 2600].map((middle, i) => ({
  sequences: [{ ...one, middle, splits: 1 + (i % 3) }],
  queries: 1,
  seed: i,
}));

const cases: readonly (readonly [name: string, shape: Shape])[] = [
  ['four query heads', { kvHeads: 2, groupSize: 4, headDim: 128 }],
  ['one query head, steps of all positions', { kvHeads: 1, groupSize: 1, headDim: 128, rangeBlock: 0 }],
  ['seven query heads of 96 channels', { kvHeads: 2, groupSize: 7, headDim: 96, rangeBlock: 128 }],
  ['codes of up to 8 bits, whose stages hold few tiles', { kvHeads: 2, groupSize: 4, headDim: 128, bits: 6 }],
];

describe.each(cases)('tile-rotated keys by integer products, %s', (_name, shape) => {
  let device: EmulatorDevice;
  let kernels: LoadedKernels;
  beforeAll(async () => {
    device = await EmulatorDevice.open({ order: 'shuffled', seed: SEED });
    kernels = await LoadedKernels.load(device, await generate(schemeOf(shape), modelOf(shape), target), ['attend']);
  });
  afterAll(() => device?.close());

  const judged = async (draw: AttendDraw) => {
    const judge = new Judge();
    await attendCase(kernels, draw, { judge, bar, halves: true });
    return judge.failures;
  };

  test('are attended as float64 does on the same codes', async () => {
    await fc.assert(
      fc.asyncProperty(attendDraws(geometry(shape)), async (draw) => {
        expect(await judged(draw)).toEqual([]);
      }),
      { numRuns: 8, seed: SEED },
    );
  });

  test.each(tileEdges)('also where the middle ends about a tile, case %#', async (draw) => {
    expect(await judged(draw)).toEqual([]);
  });
});

describe('what the schedule takes', () => {
  const chosen = { products: 1, tileTokens: 16 };
  const llama: Shape = { kvHeads: 8, groupSize: 4, headDim: 128 };
  const fits = (shape: Shape, tunables = chosen) => fitsTiltProducts(geometry(shape), tunables, target);

  test('is said with its reason', () => {
    expect(fits(llama)).toBeUndefined();
    expect(fits({ ...llama, headDim: 64 })).toBe('takes heads of 96 or 128 channels, not 64');
    expect(fits({ ...llama, groupSize: 17 })).toBe('takes 16 query heads a KV head at most, not 17');
    expect(fits({ ...llama, tile: 32 })).toBe('turns queries to tiles of 64 positions, not 32');
    expect(fits({ ...llama, valueBits: 3 })).toBe(
      'takes values of 2 bits with a norm a token, which lie in the rows of the keys',
    );
    expect(fits({ ...llama, scoreCap: 50 })).toBe('takes scores without a cap');
    expect(fits({ kvHeads: 1, groupSize: 16, headDim: 128, window: 256 })).toBe(
      'needs 240352 bytes of shared memory, a block has 232448',
    );
  });

  test('leaves all else to the plain schedule', () => {
    expect(fits(llama, { ...chosen, products: 0 })).toBeUndefined();
    expect(fits({ ...llama, headDim: 64 }, { ...chosen, products: 0 })).toBeUndefined();
  });
});
