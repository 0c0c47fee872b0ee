import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { nuq } from '../../dsl/codecs/nuq.js';
import { outliers } from '../../dsl/codecs/outliers.js';
import { perChannel, perToken } from '../../dsl/codecs/quantize.js';
import { unrope } from '../../dsl/codecs/unrope.js';
import { modelFrom } from '../../dsl/model.js';
import type { ScalarScheme } from '../../dsl/scheme.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { openDevice } from '../stages/harness.js';
import { changed, without } from './cuda/text.js';
import { driveAttend } from './drivers/attend.js';
import { type Mutant, plant, reporters, reportOf } from './mutant.js';

const scheme: ScalarScheme = {
  name: 'faults',
  keys: [unrope(), perChannel(nuq({ bits: 3 }), { trim: 0.005 }), outliers({ cap: 2 })],
  values: [perToken(nuq({ bits: 4 }), { trim: 0.01 }), outliers({ cap: 2 })],
  sinks: 4,
  window: 8,
  stream: lloydMax({ bits: 4 }),
};
const model = modelFrom(
  {
    model_type: 'llama',
    hidden_size: 6 * 64,
    num_hidden_layers: 1,
    num_attention_heads: 6,
    num_key_value_heads: 2,
    head_dim: 64,
    rope_theta: 10000,
    max_position_embeddings: 4096,
  },
  'faults',
);

/** A barrier of a warp taken out, found by the comment that stands behind it. */
function withoutWarp(comment: string): Mutant {
  const text = `__syncwarp();  // ${comment}\n`;
  return { name: `no barrier of the warp: ${comment}`, text, instead: '\n', by: 'race or unwritten' };
}

const mutants: readonly Mutant[] = [
  without("all have read this tile's operands, and the next one's are complete"),
  without("tables and the first tile's operands are complete"),
  without('the query, the scales and what is largest are in place'),
  without('no warp needs tables, sums or its ring any more: the merge takes the place'),
  withoutWarp('what outliers add to the scores is there'),
  withoutWarp('all outliers are in place'),
  withoutWarp('all lanes have them: others may take their place'),
  changed('position without the sinks', 'position = record[AT_SINK_TOKENS];', 'position = 0u;'),
  changed(
    'every tile at the position of the first',
    'build_operands(1 - buffer, position + first + SPAN, next,',
    'build_operands(1 - buffer, position + begin, load_angle(tables, position + begin, pair),',
  ),
  changed(
    'sines without their rests',
    'turn(levels, rotations.sine_rests, ',
    'if (false) turn(levels, rotations.sine_rests, ',
  ),
  changed('offsets without sines', 'whole(rotations.sines, ', 'if (false) whole(rotations.sines, '),
  changed('a channel of the first half for its pair', 'second ? -sine : cosine', 'cosine'),
  changed('outliers at the first place of the tile', 'threadIdx.x / 32 * 16 + min(token, tokens - 1)', '0'),
  changed('angles past the tables', 'begin + warp * 16 < end ? warp * 16 : 0', '64 * warp', 'outside'),
  changed(
    'two outliers of a channel, one of which counts',
    'if (shared) outliers.residuals[i] +=',
    'if (false) outliers.residuals[i] +=',
  ),
  changed('outliers that stay', 'if (outliers.entries[i] >> 16 != 0u) sparse_place(outliers.entries[i]) = 0;', ''),
  changed(
    'residuals in another unit',
    'put_outliers(outliers, state.factor * level_factor);',
    'put_outliers(outliers, state.factor);',
  ),
  changed('tokens past the end', 'whole ? token : min(token, last)', 'token'),
];

describe('planted faults in attention with keys before RoPE', () => {
  let device: Device;
  let good: GeneratedKernels;
  beforeAll(async () => {
    device = await openDevice('emulator');
    good = await generate(scheme, model, { language: 'cuda', arch: 'sm_90', tensorCores: true });
    const attend = good.manifest.kernels.find(({ entry }) => entry === 'attend');
    expect(attend?.tunables).toMatchObject({ products: 1 });
  });
  afterAll(() => device?.close());

  const run = (mutant?: Mutant) => {
    const kernels = mutant ? plant(good, 'attend', mutant) : good;
    // Several tiles, the last one not full.
    return reportOf(() => LoadedKernels.load(device, kernels, ['attend']), driveAttend(2e-3, 300));
  };

  test.concurrent('without a fault', async () => {
    expect(await run()).toBe('nothing');
  });

  test.concurrent.each(mutants.map((mutant) => [mutant.name, mutant] as const))('%s', async (_, mutant) => {
    expect(await run(mutant)).toMatch(reporters[mutant.by]);
  });
});
