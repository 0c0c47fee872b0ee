import { expect, test } from 'vitest';
import { modelFrom } from '../../dsl/model.js';
import { shard } from '../../dsl/schemes/shard.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { verifyScheme } from '../../runtime/verify/index.js';

const tiny = modelFrom(
  {
    model_type: 'llama',
    num_hidden_layers: 1,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 32,
    max_position_embeddings: 4096,
  },
  'tiny',
);

test('when time is up no further case is begun, and the result says how many were made', async () => {
  const device = await EmulatorDevice.open({ checks: 'none' });
  const lines: string[] = [];
  const options = { cases: 50, seed: 1, seconds: 0, onProgress: (line: string) => lines.push(line) };
  expect(await verifyScheme(device, shard, tiny, options)).toMatchObject({ cases: 1, failed: 0 });
  expect(lines.filter((line) => line.startsWith('case '))).toEqual([expect.stringMatching(/^case 1 of 50 /)]);
  await device.close();
});
