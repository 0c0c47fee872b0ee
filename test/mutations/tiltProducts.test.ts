import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { modelFrom } from '../../dsl/model.js';
import { tiltFast } from '../../dsl/schemes/tilt.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { changed } from './cuda/text.js';
import { driveAttend } from './drivers/attend.js';
import { type Mutant, plant, reporters, reportOf } from './mutant.js';

const model = modelFrom(
  {
    model_type: 'llama',
    hidden_size: 1024,
    num_hidden_layers: 1,
    num_attention_heads: 8,
    num_key_value_heads: 2,
    head_dim: 128,
    rope_theta: 10000,
    max_position_embeddings: 4096,
  },
  'drawn',
);

/** More groups of tiles than the warps have, so that some take two. */
const drive = driveAttend(2e-3, 2300);

const mutants: readonly Mutant[] = [
  changed('codes that count from zero', '- (middle[1] >> 1) - ((middle[0] & 1) << 7)', ''),
  changed(
    'the nibble plane as a byte plane',
    'half == 0 || is_nibble ? 0 : NIBBLE_BYTES',
    'half == 0 ? 0 : NIBBLE_BYTES',
  ),
  changed('the second half of a nibble plane as its first', 'half == 1 && is_nibble ? 4 : 0', '0'),
  changed('fields where they lie', '(bit % 8u - place) & 31u', '0u'),
  changed('places that the basis knows nothing of', '(15u - slot_at(slot).place)', '15u'),
  changed('the zero of the sums left in the scores', 'turned.scale[0] * -FIXED_ZERO * scale', '0.0f'),
  changed('queries turned the other way', 'two.y * angles.x - two.x * angles.y', 'two.y * angles.x + two.x * angles.y'),
  changed('columns of the other tile', '__byte_perm(others, low, choice)', '__byte_perm(low, others, choice)'),
  changed('values of a byte with the fields below them', 'upper[2] -= lower[0] + lower[2] + upper[0];', ''),
  changed('the middle of the values left out', ' + all * least', ''),
  changed('tokens of another share', 'own < rows.begin || own >= rows.end', 'own >= rows.end'),
  changed('sums that stay as the maximum rises', 'shift_right(state.whole[0], state.whole[1], bits);', ''),
  changed(
    'tiles taken before they are there',
    'cp_async_wait<2>();\n        __syncwarp();',
    '__syncwarp();',
    'unwritten',
  ),
];

describe('faults planted in attention to tile-rotated keys by integer products', () => {
  let device: EmulatorDevice;
  let generated: GeneratedKernels;
  beforeAll(async () => {
    device = await EmulatorDevice.open({ order: 'shuffled', seed: 1 });
    generated = await generate(tiltFast, model, { language: 'cuda', arch: 'sm_90a', tensorCores: true });
  });
  afterAll(() => device?.close());

  const report = (kernels: GeneratedKernels) => reportOf(() => LoadedKernels.load(device, kernels, ['attend']), drive);

  test('the unbroken kernel passes', async () => {
    expect(await report(generated)).toBe('nothing');
  });

  test.each(mutants)('$name', async (mutant) => {
    expect(await report(plant(generated, 'attend', mutant))).toMatch(reporters[mutant.by]);
  });
});
