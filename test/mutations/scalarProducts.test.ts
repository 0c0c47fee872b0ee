import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { float8 } from '../../dsl/codecs/float8.js';
import { hadamard } from '../../dsl/codecs/hadamard.js';
import { table } from '../../dsl/codecs/levelTable.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { perChannel, perHead, perToken } from '../../dsl/codecs/quantize.js';
import { asymmetric } from '../../dsl/codecs/uniform.js';
import { modelFrom } from '../../dsl/model.js';
import type { ScalarScheme } from '../../dsl/scheme.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { changed } from './cuda/text.js';
import { driveAttend } from './drivers/attend.js';
import { type Mutant, plant, reporters, reportOf } from './mutant.js';

const model = modelFrom(
  {
    model_type: 'llama',
    hidden_size: 512,
    num_hidden_layers: 1,
    num_attention_heads: 4,
    num_key_value_heads: 1,
    head_dim: 128,
    rope_theta: 10000,
    max_position_embeddings: 4096,
  },
  'drawn',
);
const schemeOf = (keys: ScalarScheme['keys'], values: ScalarScheme['values']): ScalarScheme => ({
  name: 'drawn',
  keys,
  values,
  sinks: 4,
  window: 8,
  stream: lloydMax({ bits: 4 }),
});

/** More tiles than the warps have, so that some take two; and rings that are used again. */
const drive = driveAttend(2e-3, 900);

/** No factor brings all of these levels near to halves: two take the place of one. */
const roots = table({ name: 'roots', levels: Array.from({ length: 16 }, (_, i) => Math.sqrt(1 + i / 5)) });

const suspects: readonly (readonly [name: string, scheme: ScalarScheme, mutants: readonly Mutant[]])[] = [
  [
    'a table that takes two halves, scales of 64 channels',
    schemeOf([perToken(roots, { channels: 64 })], [perToken(roots, { channels: 64 })]),
    [
      changed(
        'all channels with the scale of the first group',
        'group % 2 == 0 ? two.x : two.y;\n  }\n}',
        'two.x;\n  }\n}',
      ),
      changed(
        'the halves of a level taken for two tokens',
        'sums[0] + sums[1] + (sums[2] + sums[3])',
        'sums[upper * 2] + sums[upper * 2 + 1]',
      ),
      changed(
        'the factor of the levels left in',
        'power_of_two(254 - exponent) / factor',
        'power_of_two(254 - exponent)',
      ),
      changed('the channels of a field in its order', 'i % half * 2 + i / half', 'i'),
    ],
  ],
  [
    '3 bits of a table',
    schemeOf([hadamard(), perToken(lloydMax({ bits: 3 }))], [hadamard(), perToken(lloydMax({ bits: 3 }))]),
    [
      changed(
        'fields that end in the next word cut off',
        ' | unit[(word + 1) % unit_words(bits)] << (40 - first) % 32',
        '',
      ),
      changed('rows of values that begin within a word', '? 0x6543 : 0x7765', '? 0x6543 : 0x6543'),
    ],
  ],
  [
    'floats of 8 bits',
    schemeOf([perHead(float8({ format: 'e4m3' }))], [perHead(float8({ format: 'e4m3' }))]),
    [changed('bytes without their signs', '(high[i] & 0x80008000u) | ', '')],
  ],
  [
    'scales of blocks of tokens and of groups of channels',
    schemeOf(
      [perChannel(asymmetric({ bits: 4 }), { tokens: 32 })],
      [perToken(asymmetric({ bits: 4 }), { channels: 32 })],
    ),
    [
      changed('the remainder of a folded scale left out', 'lane_id() / 4 % 2 != 0 ? 0xffffffffu : 0u', '0u'),
      changed(
        'offsets of values that do not count from the middle',
        'fma_half2(pairs[i], pack_half2(terms.middle_value, terms.middle_value), centers[i])',
        'centers[i]',
      ),
      changed(
        'tokens past the end weighed',
        'if (first < own.begin || first + TILE_TOKENS > own.end) mask_tokens',
        'if (first + TILE_TOKENS < own.begin) mask_tokens',
      ),
      changed(
        'the ring a tile short',
        'first + STAGES * WARPS * TILE_TOKENS);\n    stage =',
        'first + (STAGES - 1) * WARPS * TILE_TOKENS);\n    stage =',
      ),
    ],
  ],
];

describe.each(suspects)('planted faults in products of codes, CUDA: %s', (_name, scheme, mutants) => {
  let device: EmulatorDevice;
  let good: GeneratedKernels;
  beforeAll(async () => {
    device = await EmulatorDevice.open({ checks: 'full', order: 'shuffled', seed: 3 });
    good = await generate(scheme, model, { language: 'cuda', arch: 'sm_90', tensorCores: true });
    expect(good.manifest.kernels.find(({ entry }) => entry === 'attend')?.tunables).toMatchObject({ products: 1 });
  });
  afterAll(() => device?.close());

  const run = (mutant?: Mutant) =>
    reportOf(() => LoadedKernels.load(device, mutant ? plant(good, 'attend', mutant) : good, ['attend']), drive);

  test.concurrent('without a fault', async () => {
    expect(await run()).toBe('nothing');
  });

  test.concurrent.each(mutants.map((mutant) => [mutant.name, mutant] as const))('%s', async (_, mutant) => {
    expect(await run(mutant)).toMatch(reporters[mutant.by]);
  });
});
