import { modelFrom } from 'kvforge';
import { EmulatorDevice, verifyScheme } from 'kvforge/runtime';
import { expect, test } from 'vitest';
import scheme from './new-scheme.js';

const model = modelFrom({
  model_type: 'llama',
  hidden_size: 128,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  num_hidden_layers: 1,
  max_position_embeddings: 2048,
  rope_theta: 10000,
});

test('kernels are what the scheme says, in float64', async () => {
  const device = await EmulatorDevice.open();
  try {
    const { failed, failures } = await verifyScheme(device, scheme, model, { cases: 20, seed: 1 });
    expect(failures).toEqual([]);
    expect(failed).toBe(0);
  } finally {
    await device.close();
  }
});
