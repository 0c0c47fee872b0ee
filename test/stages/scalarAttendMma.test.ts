import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { float8 } from '../../dsl/codecs/float8.js';
import { hadamard } from '../../dsl/codecs/hadamard.js';
import { table } from '../../dsl/codecs/levelTable.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { nf4 } from '../../dsl/codecs/nf4.js';
import { perChannel, perHead, perToken } from '../../dsl/codecs/quantize.js';
import { asymmetric, symmetric } from '../../dsl/codecs/uniform.js';
import { geometryOf, type ScalarGeometry } from '../../dsl/geometry.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import type { ScalarScheme } from '../../dsl/scheme.js';
import { chooseTunables, type Target } from '../../dsl/stage.js';
import { scalarAttendStage } from '../../dsl/stages/scalarAttend.js';
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

const schemeOf = (keys: ScalarScheme['keys'], values: ScalarScheme['values']): ScalarScheme => ({
  name: 'drawn',
  keys,
  values,
  sinks: 4,
  window: 8,
  stream: lloydMax({ bits: 4 }),
});

const turned = (codec: ReturnType<typeof symmetric>): ScalarScheme =>
  schemeOf([hadamard(), perToken(codec)], [hadamard(), perToken(codec)]);
const kivi = (bits: 2 | 4 | 8): ScalarScheme =>
  schemeOf([perChannel(asymmetric({ bits }), { tokens: 32 })], [perToken(asymmetric({ bits }), { channels: 32 })]);

/** So many levels between a number and its double that no factor brings them all near to halves. */
const roots = table({ name: 'roots', levels: Array.from({ length: 16 }, (_, i) => Math.sqrt(1 + i / 5)) });

const wide: Shape = { kvHeads: 2, groupSize: 4, headDim: 128 };
/** Every width with equal steps and with a table, every block of scales that the schedule takes, one and several sets of heads. */
const productCases: readonly (readonly [name: string, scheme: ScalarScheme, shape: Shape])[] = [
  ['2 bits a token', turned(symmetric({ bits: 2 })), { kvHeads: 1, groupSize: 1, headDim: 64 }],
  ['3 bits a token', turned(symmetric({ bits: 3 })), wide],
  ['4 bits a token', turned(symmetric({ bits: 4 })), { kvHeads: 3, groupSize: 5, headDim: 64 }],
  ['8 bits a token, d 256', turned(symmetric({ bits: 8 })), { kvHeads: 1, groupSize: 3, headDim: 256, scoreCap: 50 }],
  ['2 bits of a table', turned(lloydMax({ bits: 2 })), wide],
  ['3 bits of a table', turned(lloydMax({ bits: 3 })), wide],
  ['4 bits of a table', turned(lloydMax({ bits: 4 })), { kvHeads: 1, groupSize: 16, headDim: 64 }],
  ['8 bits of a table', turned(lloydMax({ bits: 8 })), wide],
  ['2 bits a channel of 32 tokens', kivi(2), wide],
  ['4 bits a channel of 32 tokens', kivi(4), { kvHeads: 1, groupSize: 6, headDim: 64 }],
  ['8 bits a channel of 32 tokens', kivi(8), wide],
  [
    '3 and 4 bits, blocks of 16 tokens and 64 channels',
    schemeOf(
      [perChannel(symmetric({ bits: 4 }), { tokens: 16 })],
      [hadamard(), perToken(asymmetric({ bits: 3 }), { channels: 64 })],
    ),
    wide,
  ],
  [
    '4 bits of NormalFloat, blocks of 64 channels',
    schemeOf([perToken(nf4(), { channels: 64 })], [perToken(nf4(), { channels: 64 })]),
    wide,
  ],
  [
    '4 bits of a table that takes two halves a level, blocks of 64 channels',
    schemeOf([perToken(roots, { channels: 64 })], [perToken(roots, { channels: 64 })]),
    wide,
  ],
  [
    '8 bits of a table, blocks of 64 channels, d 256',
    schemeOf([perToken(lloydMax({ bits: 8 }), { channels: 64 })], [perToken(lloydMax({ bits: 3 }), { channels: 64 })]),
    { kvHeads: 1, groupSize: 2, headDim: 256 },
  ],
  [
    '2 bits of a table, blocks of 64 channels',
    schemeOf([perToken(lloydMax({ bits: 2 }), { channels: 64 })], [perToken(lloydMax({ bits: 2 }), { channels: 32 })]),
    wide,
  ],
  [
    'floats of 8 bits',
    schemeOf([perHead(float8({ format: 'e4m3' }))], [perHead(float8({ format: 'e4m3' }))]),
    { kvHeads: 2, groupSize: 3, headDim: 128 },
  ],
  [
    'a scale a channel of the prompt',
    schemeOf([perChannel(asymmetric({ bits: 4 }))], [perChannel(asymmetric({ bits: 4 }))]),
    wide,
  ],
  [
    'a scale a head',
    schemeOf([perHead(symmetric({ bits: 8 }))], [hadamard(), perHead(symmetric({ bits: 4 }))]),
    { kvHeads: 2, groupSize: 2, headDim: 64 },
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

/** Middles that end about a tile, and one that takes several rounds of all warps. */
const tileEdges: readonly [AttendDraw][] = [31, 32, 33, 700].map((middle, i) => [
  { sequences: [{ ...nothing, middle, splits: 1 + (i % 3), reach: i % 2 === 0 ? 40 : 1 }], queries: 1, seed: i },
]);

describe.each(productCases)('attention with codes as operands, %s', (_name, scheme, shape) => {
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

test('what the schedule does not serve goes to the plain one', () => {
  const plain: readonly (readonly [ScalarScheme, Shape])[] = [
    [turned(symmetric({ bits: 3 })), { ...wide, headDim: 64 }],
    [schemeOf([perToken(symmetric({ bits: 4 }), { channels: 32 })], [perToken(symmetric({ bits: 4 }))]), wide],
    [schemeOf([perHead(symmetric({ bits: 4 }))], [perChannel(symmetric({ bits: 4 }), { tokens: 32 })]), wide],
    [turned(symmetric({ bits: 4 })), { kvHeads: 1, groupSize: 17, headDim: 64 }],
  ];
  for (const [scheme, shape] of plain) {
    const g = geometryOf(scheme, modelOf(shape)) as ScalarGeometry;
    expect(chooseTunables(scalarAttendStage, g, target, {})).toMatchObject({ products: 0 });
  }
});

test.each([
  ['a float is widened', float8({ format: 'e4m3' }), 7, 1],
  ['a half holds a level times a factor', lloydMax({ bits: 4 }), 0, 1],
  ['a level takes two halves', roots, 0, 2],
] as const)('of keys that are looked up, or not: %s', async (_name, codec, shift, halves) => {
  const { files } = await generate(schemeOf([perToken(codec)], [perToken(codec)]), modelOf(wide), target);
  const text = files.get('attend.cu');
  expect(text).toContain(`constexpr u32 KEY_FLOAT_SHIFT = ${shift};`);
  expect(text).toContain(`constexpr u32 KEY_TABLE_HALVES = ${halves};`);
});
