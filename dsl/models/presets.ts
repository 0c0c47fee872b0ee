/**
 * The fields of each known model's Hugging Face `config.json` that fix the shape of its KV cache, as published with
 * its weights. `modelFrom` reads them like any other configuration.
 */
export const presetConfigs = {
  'llama-3.1-8b': {
    model_type: 'llama',
    hidden_size: 4096,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    max_position_embeddings: 131072,
    rope_theta: 500000,
    rope_scaling: {
      rope_type: 'llama3',
      factor: 8,
      low_freq_factor: 1,
      high_freq_factor: 4,
      original_max_position_embeddings: 8192,
    },
  },
  'smollm2-135m': {
    model_type: 'llama',
    hidden_size: 576,
    num_hidden_layers: 30,
    num_attention_heads: 9,
    num_key_value_heads: 3,
    max_position_embeddings: 8192,
    rope_theta: 100000,
    rope_scaling: null,
  },
  'llama-2-7b': {
    model_type: 'llama',
    hidden_size: 4096,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: 32,
    max_position_embeddings: 4096,
    rope_scaling: null,
  },
  'mistral-7b': {
    model_type: 'mistral',
    hidden_size: 4096,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    head_dim: 128,
    max_position_embeddings: 32768,
    rope_theta: 1e6,
    sliding_window: null,
  },
  'qwen2.5-7b': {
    model_type: 'qwen2',
    hidden_size: 3584,
    num_hidden_layers: 28,
    num_attention_heads: 28,
    num_key_value_heads: 4,
    max_position_embeddings: 32768,
    rope_theta: 1e6,
    sliding_window: 131072,
    use_sliding_window: false,
  },
} as const;

export type PresetName = keyof typeof presetConfigs;
