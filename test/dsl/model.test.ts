import { describe, expect, test } from 'vitest';
import { KvforgeError } from '../../dsl/errors.js';
import { modelFrom, presetModel, presetNames } from '../../dsl/model.js';

const smollm = {
  model_type: 'llama',
  hidden_size: 576,
  num_hidden_layers: 30,
  num_attention_heads: 9,
  num_key_value_heads: 3,
  max_position_embeddings: 8192,
};
const llama3 = {
  rope_type: 'llama3',
  factor: 8,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_max_position_embeddings: 8192,
};

function refusal(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof KvforgeError && error.code === 'invalid-model') return error.message;
    throw error;
  }
  throw new Error('nothing was refused');
}

describe('presets', () => {
  test.each([
    ['llama-3.1-8b', { layers: 32, heads: 32, kvHeads: 8, headDim: 128, groupSize: 4, width: 1024 }],
    ['smollm2-135m', { layers: 30, heads: 9, kvHeads: 3, headDim: 64, groupSize: 3, width: 192 }],
    ['llama-2-7b', { layers: 32, heads: 32, kvHeads: 32, headDim: 128, groupSize: 1, width: 4096 }],
    ['mistral-7b', { layers: 32, heads: 32, kvHeads: 8, headDim: 128, groupSize: 4, width: 1024 }],
    ['qwen2.5-7b', { layers: 28, heads: 28, kvHeads: 4, headDim: 128, groupSize: 7, width: 512 }],
  ])('%s has the shape of its published configuration', (name, shape) => {
    expect(presetModel(name)).toMatchObject({ name, ...shape });
  });

  test('positions and theta are those of the published configurations', () => {
    const rows = presetNames.map(presetModel).map(({ name, maxPositions, rope }) => [name, maxPositions, rope.theta]);
    expect(rows).toEqual([
      ['llama-3.1-8b', 131072, 500000],
      ['smollm2-135m', 8192, 100000],
      ['llama-2-7b', 4096, 10000],
      ['mistral-7b', 32768, 1000000],
      ['qwen2.5-7b', 32768, 1000000],
    ]);
  });

  test.each(['gpt-5', 'toString', '__proto__'])('the unknown name %s is refused with the list', (name) => {
    expect(refusal(() => presetModel(name))).toBe(
      'model: expected one of llama-3.1-8b, smollm2-135m, llama-2-7b, mistral-7b, qwen2.5-7b, ' +
        `got ${JSON.stringify(name)}. For any other model, give its Hugging Face config.json.`,
    );
  });
});

describe('RoPE frequencies', () => {
  test('pair j of the default kind turns by theta^(-2j/d) a token', () => {
    const { rope } = modelFrom({ ...smollm, rope_theta: 100000 });
    expect(rope).toMatchObject({ type: 'default', theta: 100000, rotaryDim: 64 });
    expect(rope.invFreq).toHaveLength(32);
    expect(rope.invFreq[0]).toBe(1);
    expect(rope.invFreq[16]).toBeCloseTo(1 / Math.sqrt(100000), 15);
  });

  // Worked out apart, with 40 decimal digits, from the published formula.
  test.each([
    ['fast', 20, 0.016560440080994446],
    ['fast', 28, 0.003211445994752591],
    ['blended', 29, 0.0021665707635033587],
    ['blended', 33, 0.0003126937503840651],
    ['slow', 40, 3.428102195952591e-5],
    ['slow', 63, 3.068925988914511e-7],
  ])('llama3 scaling of a %s pair (%i)', (_kind, pair, expected) => {
    const frequency = presetModel('llama-3.1-8b').rope.invFreq[pair]!;
    expect(Math.abs(frequency / expected - 1)).toBeLessThan(1e-14);
  });

  test('rope_scaling, its older `type` and the newer rope_parameters mean the same', () => {
    const { rope_type: type, ...rest } = llama3;
    const older = modelFrom({ ...smollm, rope_theta: 500000, rope_scaling: { type, ...rest } });
    expect(modelFrom({ ...smollm, rope_theta: 500000, rope_scaling: llama3 })).toEqual(older);
    expect(modelFrom({ ...smollm, rope_parameters: { ...llama3, rope_theta: 500000 } })).toEqual(older);
    expect(older.rope.scaling).toEqual({
      factor: 8,
      lowFreqFactor: 1,
      highFreqFactor: 4,
      originalMaxPositions: 8192,
    });
  });
});

test('what a configuration leaves out is derived', () => {
  const { num_key_value_heads: _, ...rest } = smollm;
  expect(modelFrom({ ...rest, rope_scaling: null, head_dim: null })).toMatchObject({
    name: 'llama',
    kvHeads: 9,
    headDim: 64,
    rope: { theta: 10000 },
  });
  expect(modelFrom({ ...smollm, hidden_size: 1000, head_dim: 80 }, 'mine')).toMatchObject({ name: 'mine', width: 240 });
});

test('a sliding window that is switched off or never reached is no obstacle', () => {
  expect(modelFrom({ ...smollm, sliding_window: 8192 }).kvHeads).toBe(3);
  expect(modelFrom({ ...smollm, sliding_window: 64, use_sliding_window: false }).kvHeads).toBe(3);
  expect(modelFrom({ ...smollm, model_type: 'qwen2', sliding_window: 64 }).kvHeads).toBe(3);
});

const whole = 'a whole number from 1 to 4096';
const check = 'Check the configuration.';
test.each([
  [null, 'config: expected a Hugging Face config.json as an object, got null. Check the configuration.'],
  [
    { ...smollm, num_attention_heads: 10 },
    `num_key_value_heads: expected a divisor of the 10 query heads, got 3. ${check}`,
  ],
  [{ ...smollm, num_attention_heads: Number.NaN }, `num_attention_heads: expected ${whole}, got NaN. ${check}`],
  [{ ...smollm, num_attention_heads: 1e30 }, `num_attention_heads: expected ${whole}, got 1e+30. ${check}`],
  [{ ...smollm, num_key_value_heads: 0 }, `num_key_value_heads: expected ${whole}, got 0. ${check}`],
  [{ ...smollm, num_hidden_layers: -1 }, `num_hidden_layers: expected ${whole}, got -1. ${check}`],
  [{ ...smollm, num_hidden_layers: 1.5 }, `num_hidden_layers: expected ${whole}, got 1.5. ${check}`],
  [{ ...smollm, num_hidden_layers: '30' }, `num_hidden_layers: expected ${whole}, got "30". ${check}`],
  [
    { ...smollm, hidden_size: 577 },
    'hidden_size: expected a multiple of the 9 query heads, got 577. Or give head_dim.',
  ],
  [{ ...smollm, head_dim: 63 }, 'head_dim: expected an even number, got 63. RoPE rotates channels in pairs.'],
  [
    { ...smollm, hidden_size: 27 },
    'hidden_size: expected an even number of channels for each of 9 heads, got 27. RoPE rotates channels in pairs.',
  ],
  [
    { ...smollm, head_dim: 258 },
    'head_dim: expected a whole number from 1 to 256, got 258. Larger heads are not supported.',
  ],
  [
    { ...smollm, hidden_size: 5184 },
    'hidden_size: expected at most 256 channels for each of 9 heads, got 5184. Larger heads are not supported.',
  ],
  [
    { ...smollm, rope_scaling: { type: 'yarn', factor: 4 } },
    'rope_scaling.type: expected one of default, llama3, got "yarn". Other kinds of RoPE are not supported yet.',
  ],
  [
    { ...smollm, rope_scaling: { ...llama3, factor: undefined } },
    'rope_scaling.factor: expected a number, got nothing. llama3 scaling needs it.',
  ],
  [
    { ...smollm, rope_scaling: { ...llama3, high_freq_factor: 1 } },
    `rope_scaling.high_freq_factor: expected more than low_freq_factor (1), got 1. ${check}`,
  ],
  [
    { ...smollm, rope_scaling: llama3, rope_parameters: { rope_type: 'default' } },
    'rope_scaling: expected the same as rope_parameters, got an object. Remove one of the two.',
  ],
  [
    { ...smollm, rope_theta: 10000, rope_parameters: { rope_type: 'default', rope_theta: 500000 } },
    'rope_theta: expected 500000, as in the rope parameters, got 10000. Remove one of the two.',
  ],
  [
    { ...smollm, partial_rotary_factor: 0.5 },
    `partial_rotary_factor: expected 1 (only rotation of the whole head is supported), got 0.5. ${check}`,
  ],
  [
    { ...smollm, sliding_window: 4096 },
    'sliding_window: expected null, or at least max_position_embeddings (8192), got 4096. ' +
      'Sliding-window attention is not supported; only full attention over the whole cache is.',
  ],
  [
    { ...smollm, layer_types: ['full_attention', 'sliding_attention'] },
    `layer_types[1]: expected full_attention (no other kind of layer is supported), got "sliding_attention". ${check}`,
  ],
  [
    { ...smollm, attn_logit_softcapping: 50 },
    `attn_logit_softcapping: expected null (capped logits are not supported), got 50. ${check}`,
  ],
  [
    { ...smollm, model_type: 'gemma2' },
    'model_type: expected one of llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma, phi3, starcoder2, ' +
      'got "gemma2". If the model has the attention of Llama, set model_type to "llama".',
  ],
])('case %#: a configuration that cannot be right is refused at its field', (config, message) => {
  expect(refusal(() => modelFrom(config))).toBe(message);
});

test.each(['a\nb', 'a\u0000', 'a\u2028b', ''])('the name %j is refused: generated text prints it', (name) => {
  const message = `name: expected printable characters on one line, got ${JSON.stringify(name)}. The name is printed in generated text.`;
  expect(refusal(() => modelFrom(smollm, name))).toBe(message);
});
