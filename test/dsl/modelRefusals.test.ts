import { expect, test } from 'vitest';
import { KvforgeError } from '../../dsl/errors.js';
import { modelFrom } from '../../dsl/model.js';
import { supportedModelTypes } from '../../dsl/models/architectures.js';

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

const { num_key_value_heads: _, ...heads } = smollm;
const neox = { ...heads, model_type: 'gpt_neox' };
const phi = { ...smollm, model_type: 'phi3' };
const gemma3 = { ...smollm, model_type: 'gemma3_text' };
const longrope = {
  type: 'longrope',
  short_factor: Array.from({ length: 32 }, () => 1),
  long_factor: Array.from({ length: 32 }, () => 2),
};
const perType = { sliding_attention: { rope_type: 'default' } };
const ropeTypes = 'default, linear, dynamic, yarn, llama3, longrope';
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
    { ...smollm, rope_scaling: { type: 'mrope', factor: 4 } },
    `rope_scaling.type: expected one of ${ropeTypes}, got "mrope". Other kinds of RoPE are not supported.`,
  ],
  [
    { ...smollm, rope_scaling: { factor: 4 } },
    `rope_scaling.rope_type: expected one of ${ropeTypes}, got nothing. Name the kind of RoPE.`,
  ],
  [
    { ...smollm, rope_scaling: { type: 'su' } },
    `rope_scaling.type: expected one of ${ropeTypes}, got "su". Models of type llama have no other kind.`,
  ],
  [
    { ...smollm, model_type: 'phi3', rope_scaling: { rope_type: 'linear', factor: 4 } },
    'rope_scaling.rope_type: expected one of default, longrope, got "linear". Models of type phi3 have no other kind.',
  ],
  [
    { ...smollm, rope_scaling: { rope_type: 'yarn', type: 'linear', factor: 4 } },
    'rope_scaling.type: expected yarn, as in rope_type, got "linear". Remove one of the two.',
  ],
  [
    { ...smollm, rope_scaling: { type: 'linear' } },
    'rope_scaling.factor: expected a number, got nothing. linear scaling needs it.',
  ],
  [
    { ...smollm, rope_scaling: { type: 'dynamic', factor: 0.5 } },
    `rope_scaling.factor: expected at least 1, got 0.5. ${check}`,
  ],
  [
    { ...smollm, rope_scaling: { type: 'dynamic', factor: 2, original_max_position_embeddings: 4096 } },
    'original_max_position_embeddings: expected max_position_embeddings (8192), from which dynamic scaling starts, ' +
      `got 4096. ${check}`,
  ],
  [
    { ...smollm, head_dim: 2, rope_scaling: { rope_type: 'dynamic', factor: 2 } },
    `rope_scaling.rope_type: expected another kind for 2 rotated channels, got "dynamic". ${check}`,
  ],
  [
    { ...smollm, rope_scaling: { type: 'yarn', factor: 4, beta_fast: 1, beta_slow: 2 } },
    `rope_scaling.beta_fast: expected at least beta_slow (2), got 1. ${check}`,
  ],
  [
    { ...smollm, rope_scaling: { type: 'longrope', short_factor: [1], long_factor: [1] } },
    'rope_scaling.original_max_position_embeddings: expected a number, got nothing. longrope scaling needs it.',
  ],
  [
    { ...phi, rope_scaling: { type: 'longrope', short_factor: Array(32).fill(1), long_factor: [1] } },
    `rope_scaling.long_factor: expected 32 numbers, one for each rotated pair of channels, got 1. ${check}`,
  ],
  [
    { ...phi, rope_scaling: { type: 'longrope', short_factor: [1, '2'] } },
    `rope_scaling.short_factor[1]: expected a number from 0.001 to 1000000, got "2". ${check}`,
  ],
  [
    { ...phi, rope_scaling: { type: 'longrope', long_factor: [1] } },
    'rope_scaling.short_factor: expected a list of numbers, got nothing. longrope scaling needs it.',
  ],
  [
    { ...phi, rope_scaling: { type: 'longrope', original_max_position_embeddings: 2048 } },
    'rope_scaling.original_max_position_embeddings: expected 4096, as beside rope_scaling, got 2048. Give the same number twice.',
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
    { ...smollm, rotary_emb_base: 20000 },
    'rotary_emb_base: expected nothing, as llama reads rope_theta, got 20000. The model would ignore it.',
  ],
  [
    { ...neox, rope_theta: 20000 },
    'rope_theta: expected nothing, as gpt_neox reads rotary_emb_base, got 20000. The model would ignore it.',
  ],
  [
    { ...smollm, partial_rotary_factor: 0.5 },
    'partial_rotary_factor: expected 1 (llama rotates the whole head), got 0.5. The model would ignore it.',
  ],
  [
    { ...smollm, rope_parameters: { rope_type: 'default', partial_rotary_factor: 0.5 } },
    'rope_parameters.partial_rotary_factor: expected 1 (llama rotates the whole head), got 0.5. The model would ignore it.',
  ],
  [
    { ...neox, partial_rotary_factor: 0.5 },
    'partial_rotary_factor: expected nothing, as gpt_neox reads rotary_pct, got 0.5. The model would ignore it.',
  ],
  [
    { ...neox, rotary_pct: 0.5, rope_parameters: { rope_type: 'default', partial_rotary_factor: 0.25 } },
    'rotary_pct: expected 0.25, as in the rope parameters, got 0.5. Remove one of the two.',
  ],
  [
    { ...smollm, model_type: 'stablelm', partial_rotary_factor: 0.3 },
    'partial_rotary_factor: expected a share that is an even number of the 64 channels (it is 19), got 0.3. ' +
      'RoPE rotates channels in pairs.',
  ],
  [
    { ...smollm, model_type: 'phi', partial_rotary_factor: 1.5 },
    `partial_rotary_factor: expected a number above 0 and at most 1, got 1.5. ${check}`,
  ],
  [
    { ...smollm, model_type: 'stablelm', head_dim: 128 },
    'head_dim: expected nothing, or 576 / 9, got 128. Models of type stablelm divide hidden_size by the heads.',
  ],
  [
    { ...neox, num_key_value_heads: 3 },
    'num_key_value_heads: expected nothing, or 9, got 3. Models of type gpt_neox have a KV head for each query head.',
  ],
  [
    { ...smollm, rope_interleaved: true },
    'rope_interleaved: expected false, as in llama, got true. The model would ignore it.',
  ],
  [
    { ...smollm, model_type: 'glm', rope_interleave: false },
    'rope_interleave: expected true, as in glm, got false. The model would ignore it.',
  ],
  [
    { ...smollm, rope_parameters: { full_attention: { rope_type: 'default' } } },
    'rope_parameters.full_attention: expected one set of rope parameters for all layers, got an object. Give it without a type.',
  ],
  [
    { ...gemma3, rope_parameters: { rope_type: 'default' } },
    'rope_parameters.full_attention: expected an object for each type of layer, got nothing. ' +
      'Give full_attention and sliding_attention.',
  ],
  ...['gemma3_text', 'olmo3'].flatMap((model_type): [object, string][] => [
    [
      { ...smollm, model_type, rope_parameters: { rope_theta: 20000, factor: 8 } },
      'rope_parameters.full_attention: expected an object for each type of layer, got nothing. ' +
        'Give full_attention and sliding_attention.',
    ],
    [
      { ...smollm, model_type, rope_parameters: { fullAttention: { rope_type: 'default' } } },
      'rope_parameters.full_attention: expected an object for each type of layer, got nothing. ' +
        'Give full_attention and sliding_attention.',
    ],
    [
      { ...smollm, model_type, rope_parameters: { ...perType, fullAttention: { rope_type: 'default' } } },
      'rope_parameters.fullAttention: expected nothing beside the types of layer, got an object. ' +
        'Give full_attention and sliding_attention.',
    ],
    [
      { ...smollm, model_type, rope_parameters: { ...perType, rope_theta: 20000 } },
      'rope_parameters.rope_theta: expected nothing beside the types of layer, got 20000. ' +
        'Give full_attention and sliding_attention.',
    ],
  ]),
  [
    {
      ...gemma3,
      rope_local_base_freq: 10000,
      rope_parameters: { sliding_attention: { rope_type: 'default', rope_theta: 20000 } },
    },
    'rope_local_base_freq: expected 20000, as in the rope parameters, got 10000. Remove one of the two.',
  ],
  [
    {
      ...gemma3,
      rope_scaling: { rope_type: 'linear', factor: 4 },
      rope_parameters: { full_attention: { rope_type: 'linear', factor: 8 } },
    },
    'rope_scaling: expected the same as rope_parameters.full_attention, got an object. Remove one of the two.',
  ],
  [
    { ...smollm, sliding_window: 4096 },
    'sliding_window: expected null, or at least max_position_embeddings (8192), got 4096. ' +
      'Models of type llama have no sliding window: check model_type.',
  ],
  [
    { ...smollm, model_type: 'mistral', sliding_window: 0 },
    'sliding_window: expected a whole number above 0, as layers slide, got 0. Or list no sliding layers.',
  ],
  [
    { ...smollm, model_type: 'gemma2', sliding_window: null },
    'sliding_window: expected a whole number above 0, as layers slide, got null. Or list no sliding layers.',
  ],
  [
    { ...smollm, model_type: 'qwen2', num_hidden_layers: 1, layer_types: ['sliding_attention'] },
    'use_sliding_window: expected true, as layers slide, got false. Or list no sliding layers.',
  ],
  [
    { ...smollm, layer_types: ['full_attention', 'full_attention'] },
    `layer_types: expected a type for each of the 30 layers, got 2. ${check}`,
  ],
  [
    { ...smollm, num_hidden_layers: 2, layer_types: ['full_attention', 'sliding_attention'] },
    'layer_types[1]: expected full_attention, as in every layer of this llama, got "sliding_attention". ' +
      'The model would ignore it.',
  ],
  [
    { ...smollm, model_type: 'qwen2', layer_types: ['linear_attention'] },
    'layer_types[0]: expected full_attention or sliding_attention (no other kind of layer is supported), ' +
      `got "linear_attention". ${check}`,
  ],
  [
    { ...smollm, no_rope_layers: [1, 0] },
    'no_rope_layers: expected nothing (llama has RoPE in every layer), got a list. The model would ignore it.',
  ],
  [
    { ...smollm, model_type: 'smollm3', no_rope_layers: [1, 0] },
    `no_rope_layers: expected 0 or 1 for each of the 30 layers, got 2. ${check}`,
  ],
  [
    { ...smollm, model_type: 'smollm3', no_rope_layers: Array.from({ length: 31 }, () => 1) },
    `no_rope_layers: expected 0 or 1 for each of the 30 layers, got 31. ${check}`,
  ],
  ...['qwen2', 'qwen2_moe', 'qwen3'].map((model_type): [object, string] => [
    { ...smollm, model_type, use_sliding_window: true, max_window_layers: null },
    'max_window_layers: expected a whole number from 0 to 4096, as use_sliding_window is true, got null. ' +
      'Or give layer_types.',
  ]),
  [
    { ...phi, rope_scaling: { ...longrope, long_factor: Array.from({ length: 32 }, () => 5e-324) } },
    `rope_scaling.long_factor[0]: expected a number from 0.001 to 1000000, got 5e-324. ${check}`,
  ],
  [
    { ...phi, original_max_position_embeddings: 1, rope_scaling: longrope },
    'original_max_position_embeddings: expected at least 2, got 1. ' +
      'The factor on cosine and sine divides by its logarithm.',
  ],
  [
    { ...smollm, rope_scaling: { rope_type: 'yarn', factor: Math.E, mscale: 1, mscale_all_dim: -10 } },
    `rope_scaling.mscale_all_dim: expected a number from 0 to 1000000, got -10. ${check}`,
  ],
  ...[1e-300, 1e300].flatMap((value): [object, string][] =>
    [
      ['gemma2', 'query_pre_attn_scalar'],
      ['gemma2', 'attn_logit_softcapping'],
      ['granite', 'attention_multiplier'],
    ].map(([model_type, field]) => [
      { ...smollm, model_type, [field!]: value },
      `${field}: expected a number from 0.000001 to 1000000, got ${value}. ${check}`,
    ]),
  ),
  [
    { ...smollm, model_type: 'smollm3', no_rope_layers: [1, 2] },
    `no_rope_layers[1]: expected a whole number from 0 to 1, got 2. ${check}`,
  ],
  [
    { ...smollm, attn_logit_softcapping: 50 },
    'attn_logit_softcapping: expected null, got 50. Models of type llama do not cap scores.',
  ],
  [
    { ...smollm, query_pre_attn_scalar: 144 },
    'query_pre_attn_scalar: expected nothing, or the head size, 64, got 144. Models of type llama scale scores otherwise.',
  ],
  [
    { ...smollm, attention_multiplier: 0.5 },
    'attention_multiplier: expected nothing, or 1/sqrt(64), got 0.5. Models of type llama scale scores otherwise.',
  ],
  [
    { ...smollm, model_type: 'granite', attention_multiplier: null },
    'attention_multiplier: expected a number, got null. granite scales scores by it.',
  ],
  [
    { ...gemma3, use_bidirectional_attention: true },
    `use_bidirectional_attention: expected false (a KV cache needs causal attention), got true. ${check}`,
  ],
  [
    { model_type: 'gemma3', text_config: gemma3 },
    `model_type: expected one of ${supportedModelTypes.join(', ')}, got "gemma3". ` +
      'This is a multimodal configuration: pass its text_config.',
  ],
  [
    { ...smollm, model_type: 'gpt_oss' },
    `model_type: expected one of ${supportedModelTypes.join(', ')}, got "gpt_oss". ` +
      'If the model has the attention of Llama, set model_type to "llama".',
  ],
])('case %#: a configuration that cannot be right is refused at its field', (config, message) => {
  expect(refusal(() => modelFrom(config))).toBe(message);
});

test.each(['a\nb', 'a\u0000', 'a\u2028b', ''])('the name %j is refused: generated text prints it', (name) => {
  const message = `name: expected printable characters on one line, got ${JSON.stringify(name)}. The name is printed in generated text.`;
  expect(refusal(() => modelFrom(smollm, name))).toBe(message);
});
