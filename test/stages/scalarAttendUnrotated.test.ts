import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { hadamard } from '../../dsl/codecs/hadamard.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { nuq } from '../../dsl/codecs/nuq.js';
import { outliers } from '../../dsl/codecs/outliers.js';
import { perChannel, perToken } from '../../dsl/codecs/quantize.js';
import { asymmetric, symmetric } from '../../dsl/codecs/uniform.js';
import { unrope } from '../../dsl/codecs/unrope.js';
import { geometryOf, type ScalarGeometry } from '../../dsl/geometry.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import type { ScalarScheme } from '../../dsl/scheme.js';
import { chooseTunables, type Target } from '../../dsl/stage.js';
import { scalarAttendStage } from '../../dsl/stages/scalarAttend.js';
import { fitsUnrotated } from '../../dsl/stages/scalarAttendUnrotated.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type AttendDraw, attendDraws, attendSetting, type SequenceDraw } from '../../runtime/verify/attendDraws.js';
import { attendOn } from '../../runtime/verify/attendOn.js';
import { worstError } from '../../runtime/verify/draws.js';

const RUNS = 6;
const SEED = 20261201;
const target: Target = { language: 'cuda', arch: 'sm_90', tensorCores: true };

interface Shape {
  readonly kvHeads: number;
  readonly groupSize: number;
  readonly headDim: number;
  readonly scoreCap?: number;
  readonly rotaryDim?: number;
}

function modelOf({ kvHeads, groupSize, headDim, scoreCap, rotaryDim = headDim }: Shape): ModelShape {
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
  const invFreq = Array.from({ length: rotaryDim / 2 }, (_, j) => 10000 ** ((-2 * j) / rotaryDim));
  const rope = { ...model.rope, rotaryDim, invFreq };
  return { ...model, rope, kinds: [{ rope }], ...(scoreCap === undefined ? {} : { scoreCap }) };
}

const schemeOf = (keys: ScalarScheme['keys'], values: ScalarScheme['values']): ScalarScheme => ({
  name: 'drawn',
  keys,
  values,
  sinks: 4,
  window: 8,
  stream: lloydMax({ bits: 4 }),
});

const kvquant = (bits: 2 | 3 | 4): ScalarScheme =>
  schemeOf(
    [unrope(), perChannel(nuq({ bits }), { trim: 0.005 }), outliers({ cap: 2 })],
    [perToken(nuq({ bits }), { trim: 0.01 }), outliers({ cap: 2 })],
  );

const wide: Shape = { kvHeads: 2, groupSize: 4, headDim: 128 };
/** Every width, both sizes of heads, one set of query heads and two, offsets, outliers and turned values, and none of these. */
const unrotatedCases: readonly (readonly [name: string, scheme: ScalarScheme, shape: Shape])[] = [
  ['KVQuant of 2 bits, d 64', kvquant(2), { kvHeads: 3, groupSize: 3, headDim: 64 }],
  ['KVQuant of 3 bits', kvquant(3), wide],
  ['KVQuant of 3 bits, d 64', kvquant(3), { kvHeads: 1, groupSize: 5, headDim: 64, scoreCap: 30 }],
  ['KVQuant of 4 bits, a query head', kvquant(4), { kvHeads: 3, groupSize: 1, headDim: 128 }],
  [
    'equal steps, keys alone with outliers',
    schemeOf(
      [unrope(), perChannel(symmetric({ bits: 4 }), { trim: 0.02 }), outliers({ cap: 1 })],
      [hadamard(), perToken(lloydMax({ bits: 2 }))],
    ),
    { kvHeads: 1, groupSize: 8, headDim: 64 },
  ],
  [
    'values alone with outliers',
    schemeOf(
      [unrope(), perChannel(asymmetric({ bits: 2 }))],
      [perToken(asymmetric({ bits: 4 }), { trim: 0.02 }), outliers({ cap: 4 })],
    ),
    wide,
  ],
];

const nothing: SequenceDraw = {
  sinks: 0,
  middle: 0,
  stream: 0,
  window: 0,
  windowStart: 0,
  spare: 0,
  splits: 1,
  slidingWindow: 0,
  reach: 1,
  aligned: false,
  magnitude: 1,
};

/** Middles that end about a warp's tokens and about a tile, and one that takes several tiles of every split. */
const tileEdges: readonly [AttendDraw][] = [15, 16, 17, 127, 129, 900].map((middle, i) => [
  {
    sequences: [{ ...nothing, sinks: i % 3, middle, splits: 1 + (i % 3), reach: i % 2 === 0 ? 40 : 1 }],
    queries: 1,
    seed: i,
  },
]);

describe.each(unrotatedCases)('attention with levels as operands, keys before RoPE, %s', (_name, scheme, shape) => {
  const model = modelOf(shape);
  const g = geometryOf(scheme, model) as ScalarGeometry;
  let device: EmulatorDevice;
  let kernels: LoadedKernels;
  beforeAll(async () => {
    device = await EmulatorDevice.open({ checks: 'full', order: 'shuffled', seed: 5 });
    const generated = await generate(scheme, model, target);
    const attend = generated.manifest.kernels.find(({ entry }) => entry === 'attend');
    expect(attend?.tunables).toMatchObject({ products: 1 });
    kernels = await LoadedKernels.load(device, generated, ['attend']);
  });
  afterAll(() => device?.close());

  test('agrees with float64 attention over the decoded tokens', async () => {
    await fc.assert(
      fc.asyncProperty(attendDraws(g), async (draw) => {
        const setting = attendSetting(g, draw);
        const { output, counters } = await attendOn(kernels, draw, setting);
        const length = draw.queries * g.heads * g.headDim;
        for (let at = 0; at < output.length; at += length) {
          const row = [output.slice(at, at + length), setting.expected.slice(at, at + length)] as const;
          expect(worstError(row[0], row[1], length).by).toBeLessThanOrEqual(2e-3);
        }
        expect([...counters].every((count) => count === 0)).toBe(true);
      }),
      { numRuns: RUNS + tileEdges.length, seed: SEED, examples: [...tileEdges] },
    );
  });
});

describe('what the schedule does not serve goes to the plain one', () => {
  const tunables = { products: 1, warps: 8, stages: 3, tileTokens: 16 };
  const nuq3 = nuq({ bits: 3 });
  const values: ScalarScheme['values'] = [perToken(nuq3)];
  const keys: ScalarScheme['keys'] = [unrope(), perChannel(nuq3)];
  test.each<readonly [reason: string, scheme: ScalarScheme, shape: Shape]>([
    ['takes 8 query heads a KV head at most, not 9', schemeOf(keys, values), { ...wide, groupSize: 9 }],
    ['takes heads of 64 or 128 channels, not 96', schemeOf(keys, values), { ...wide, headDim: 96 }],
    ['takes RoPE over all channels, in pairs half a head apart', schemeOf(keys, values), { ...wide, rotaryDim: 64 }],
    ['takes keys of 4 bits at most, not 8', schemeOf([unrope(), perChannel(symmetric({ bits: 8 }))], values), wide],
    [
      "takes a scale a channel for all of a prompt's keys",
      schemeOf([unrope(), perChannel(nuq3, { tokens: 32 })], values),
      wide,
    ],
    ['takes one scale a token and head for values', schemeOf(keys, [perToken(nuq3, { channels: 32 })]), wide],
  ])('%s', (reason, scheme, shape) => {
    const g = geometryOf(scheme, modelOf(shape)) as ScalarGeometry;
    expect(fitsUnrotated(g, tunables, target)).toBe(reason);
    expect(chooseTunables(scalarAttendStage, g, target, {})).toMatchObject({ products: 0 });
  });
});
