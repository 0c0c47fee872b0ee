import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { defaultTargets, type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import type { Judge } from '../../runtime/verify/judge.js';
import { latentCase } from '../../runtime/verify/latentCase.js';
import type { LatentDraw } from '../../runtime/verify/latentDraws.js';
import { latentSchemes, productSchemes, tinyLatents, wideLatents } from '../runtime/latentCases.js';
import { openDevice } from '../stages/harness.js';
import { changed, without } from './cuda/text.js';
import { type Mutant, plant, reporters, reportOf } from './mutant.js';

/** A prompt of several tiles whose window is full, and tokens that push others into the stream. */
const prompt: LatentDraw = {
  start: 'prompts',
  tokens: [41],
  stream: 0,
  window: 0,
  windowStart: 0,
  magnitude: 1,
  appended: 3,
  kind: 'normal',
  seed: 3,
  query: { queries: 2, splits: 3, reach: 1, aligned: false },
};
const drive = (kernels: LoadedKernels, judge: Judge) =>
  latentCase(kernels, kernels.geometry as LatentGeometry, prompt, { judge, bar: 1e-5 });

/** Several tiles of the middle, then a stream of several. */
const tiles: readonly LatentDraw[] = [
  { ...prompt, tokens: [150], query: { ...prompt.query, reach: 10 } },
  { ...prompt, tokens: [14], appended: 100 },
];

const mutants: Readonly<Record<string, readonly Mutant[]>> = {
  copy_exact: [
    changed('the window from the end of the sinks', 'sequence[AT_PROMPT_TOKENS] - window + slot', 'slot + 4'),
    changed('sinks in the window', 'sink ? AT_SINK_KEYS : AT_WINDOW_KEYS', 'AT_WINDOW_KEYS', 'block race'),
  ],
  code_latents: [
    without('the last stride is complete'),
    changed('a transform that is not scaled', 'channels[i] *= scale;', 'channels[i] *= 1.0f;'),
    changed(
      'scales of the rotary part beside those of latents',
      'AT_ROTARY_SCALES] + token',
      'AT_LATENT_SCALES] + token',
      'unwritten',
    ),
    changed('the rotary part of the latent', 'code_rotary(channels + LATENT_DIM', 'code_rotary(channels'),
    changed(
      'the token before',
      '(sequence[AT_SINK_TOKENS] + token) * TOKEN_WORDS',
      '(sequence[AT_SINK_TOKENS] + token - 1) * TOKEN_WORDS',
    ),
  ],
  append_token: [
    without('the last stride is complete'),
    changed(
      "norms in each other's place",
      'pack_half2(latent_norm, rotary_norm)',
      'pack_half2(rotary_norm, latent_norm)',
    ),
    changed('levels of latents for the rotary part', 'tables[STREAM_ROTARY_LEVELS + level]', 'tables[level]'),
    changed('a window that does not move on', '(start + 1) % WINDOW', 'start % WINDOW'),
  ],
  decompress: [
    without("all channels have been read before the next token's take their place"),
    changed(
      'a stream that stays turned',
      'segment == STREAM_SEGMENT || segment == MIDDLE_SEGMENT',
      'segment == MIDDLE_SEGMENT',
    ),
    changed('rows of the middle that count from the sinks', 'token - starts[segment]', 'token', 'outside'),
  ],
  attend: [
    without('weights are complete'),
    without("tile and weights have been read before the next tile's take their place"),
    changed(
      'scores without the rotary part',
      'word < TOKEN_WORDS; word += SCORE_SLICES',
      'word < LATENT_DIM / 2; word += SCORE_SLICES',
    ),
    changed('sums that do not shrink', 'accumulated[k][h] * shrinks[h]', 'accumulated[k][h]'),
    changed('weights that do not shrink', 'weight_sum *= shrink;', ''),
    changed('tokens after the query', 'tokens - min(own.after, tokens)', 'tokens'),
    changed(
      'a merge before the last split is done',
      'if (finished < own.splits) return;',
      'if (finished < own.splits - 1) return;',
      'unwritten',
    ),
  ],
};

/** Of attention on tensor cores. */
const productMutants: readonly Mutant[] = [
  without('tile and coefficients are complete'),
  without('scores are complete'),
  without('weights are complete'),
  without("tile and weights have been read before the next tile's take their place"),
  changed('the coefficient of a neighbour', 'products[m][k + 1] * latent.z', 'products[m][k + 1] * latent.x'),
  changed('scores without the rotary part', 'rotary_products[m][k + 1] * rotary.z', '0.0f'),
  changed(
    'scores without offsets',
    'score += query_sums[run * ROWS + head] * coefficients[run * TILE_TOKENS + token].y',
    '',
  ),
  changed('outputs without offsets', 'if (ADDS) added[m][upper] +=', 'if (false) added[m][upper] +='),
  changed('a stream that counts twice', 'number - half_to_float(rounded)', 'number'),
  changed('sums in the unit of another tile', 'const float ratio = unit / grown;', 'const float ratio = 1.0f;'),
  changed('the channels of the first warp', 'lane / 8 % 2 * 8) * STRIDE + warp * 64', 'lane / 8 % 2 * 8) * STRIDE'),
  changed('codes of another middle', '0xe400u | BIAS', '0xe400u'),
];

/** Where the query and the outputs of the middle are turned. */
const turnedMutants: readonly Mutant[] = [
  without('the query is turned'),
  without('the turned query has been read before scores take its place'),
  without('all outputs are turned'),
  without('they have been read before scores take their place'),
  changed('outputs that stay turned', 'turn<ROWS>(turned_sums, LATENT_DIM, LATENT_SPAN, LATENT_HADAMARD_SCALE);', ''),
  changed('the turned query for exact tokens', 'load_latent_rows();\n  float* turned_sums', 'float* turned_sums'),
  changed(
    'offsets of the query as it came',
    'turned_query[channel * ROWS + head] :',
    'half_at(own_query + head * TOKEN_WORDS, channel) :',
  ),
  changed('offsets that count twice', 'added[i / 2][i % 2] = 0.0f;', ''),
  changed('scores in the unit of the query', 'latent.x *= query_inverse;', ''),
];

describe.each([
  ['codes as they are', productSchemes[0]!, productMutants],
  ['codes after the Hadamard transform', productSchemes[3]!, turnedMutants],
] as const)('planted faults in attention over latents on tensor cores, %s', (_name, scheme, faults) => {
  let device: Device;
  let good: GeneratedKernels;
  beforeAll(async () => {
    device = await openDevice('emulator');
    good = await generate(scheme, wideLatents, defaultTargets.cuda);
  });
  afterAll(() => device?.close());

  const run = (kernels: GeneratedKernels) =>
    reportOf(
      async () => (await LoadedKernels.load(device, kernels)) as LoadedKernels,
      async (loaded, judge) => {
        const { geometry } = loaded as LoadedKernels<LatentGeometry>;
        for (const draw of tiles) await latentCase(loaded, geometry, draw, { judge, bar: 2e-3 });
      },
    );

  test('without a fault', async () => {
    expect(await run(good)).toBe('nothing');
  });

  test.each(faults.map((mutant) => [mutant.name, mutant] as const))('%s', async (_, mutant) => {
    expect(await run(plant(good, 'attend', mutant))).toMatch(reporters[mutant.by]);
  });
});

describe('planted faults in kernels of latents, CUDA', () => {
  let device: Device;
  let good: GeneratedKernels;
  beforeAll(async () => {
    device = await openDevice('emulator');
    good = await generate(latentSchemes[1]!, tinyLatents, defaultTargets.cuda);
  });
  afterAll(() => device?.close());

  const run = (kernels: GeneratedKernels) =>
    reportOf(async () => (await LoadedKernels.load(device, kernels)) as LoadedKernels, drive);

  test('without a fault', async () => {
    expect(await run(good)).toBe('nothing');
  });

  describe.each(Object.entries(mutants))('%s', (entry, faults) => {
    test.each(faults.map((mutant) => [mutant.name, mutant] as const))('%s', async (_, mutant) => {
      expect(await run(plant(good, entry, mutant))).toMatch(reporters[mutant.by]);
    });
  });
});
