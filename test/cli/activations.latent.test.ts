import { expect, test } from 'vitest';
import { activationsFor } from '../../cli/activations.js';
import { presetModel } from '../../dsl/index.js';

test.each([undefined, 'recorded.safetensors'])('activations are none of a model of latents, given %o', async (path) => {
  await expect(activationsFor(presetModel('deepseek-v2-lite'), path)).rejects.toThrow(
    '--model: expected a model with keys and values, as activations are these, got deepseek-v2-lite, whose tokens are latents. kvforge verify holds kernels of latents to float64.',
  );
});
