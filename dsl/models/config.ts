import { z } from 'zod';

/** Positions beyond this are not exact in a kernel's 32-bit float; no published model comes near. */
export const maxPositionsLimit = 2 ** 24;

/** Architectures with ordinary grouped-query attention and rotate-half RoPE over the whole head. */
export const supportedModelTypes = [
  'llama',
  'mistral',
  'mixtral',
  'qwen2',
  'qwen2_moe',
  'qwen3',
  'qwen3_moe',
  'gemma',
  'phi3',
  'starcoder2',
] as const;

// The `error` of every rule is the `expected` part of a KvforgeError.
const count = (limit: number) => {
  const error = `a whole number from 1 to ${limit}`;
  return z.int({ error }).min(1, { error }).max(limit, { error });
};
const positive = (limit: number) => {
  const error = `a number above 0 and at most ${limit}`;
  return z.number({ error }).gt(0, { error }).max(limit, { error });
};
const one = z.literal(1, { error: '1 (only rotation of the whole head is supported)' });
const theta = (() => {
  const error = 'a number above 1 and at most 1000000000000';
  return z.number({ error }).gt(1, { error }).max(1e12, { error });
})();

const ropeTypes = ['default', 'llama3'] as const;
const ropeType = z.enum(ropeTypes, { error: `one of ${ropeTypes.join(', ')}` });

const ropeScaling = z.object(
  {
    rope_type: ropeType.optional(),
    type: ropeType.optional(),
    rope_theta: theta.nullish(),
    partial_rotary_factor: one.nullish(),
    factor: positive(1e6).optional(),
    low_freq_factor: positive(1e6).optional(),
    high_freq_factor: positive(1e6).optional(),
    original_max_position_embeddings: count(maxPositionsLimit).optional(),
    full_attention: z.undefined({ error: 'one set of rope parameters for all layers' }).optional(),
    sliding_attention: z.undefined({ error: 'one set of rope parameters for all layers' }).optional(),
  },
  { error: 'an object or null' },
);

/** Only what fixes the shape of a KV cache, and what would make attention differ from softmax(q.k/sqrt(d)). */
export const configSchema = z.object(
  {
    model_type: z.enum(supportedModelTypes, { error: `one of ${supportedModelTypes.join(', ')}` }),
    hidden_size: count(2 ** 20).nullish(),
    num_hidden_layers: count(4096),
    num_attention_heads: count(4096),
    num_key_value_heads: count(4096).nullish(),
    head_dim: count(256).nullish(),
    max_position_embeddings: count(maxPositionsLimit),
    rope_theta: theta.nullish(),
    rope_scaling: ropeScaling.nullish(),
    rope_parameters: ropeScaling.nullish(),
    partial_rotary_factor: one.nullish(),
    sliding_window: count(Number.MAX_SAFE_INTEGER).nullish(),
    use_sliding_window: z.boolean({ error: 'true or false' }).nullish(),
    layer_types: z
      .array(z.literal('full_attention', { error: 'full_attention (no other kind of layer is supported)' }), {
        error: 'a list',
      })
      .nullish(),
    attn_logit_softcapping: z.null({ error: 'null (capped logits are not supported)' }).optional(),
    query_pre_attn_scalar: positive(1e6).nullish(),
  },
  { error: 'a Hugging Face config.json as an object' },
);

export type Config = z.infer<typeof configSchema>;
export type RopeScalingConfig = z.infer<typeof ropeScaling>;
