import * as z from 'zod';
import { architectures, supportedModelTypes } from './architectures.js';
import { invalid } from './invalid.js';

/** Positions beyond this are not exact in a kernel's 32-bit float; no published model comes near. */
export const maxPositionsLimit = 2 ** 24;

/** The kinds of RoPE that a configuration can name. */
export const ropeTypes = ['default', 'linear', 'dynamic', 'yarn', 'llama3', 'longrope'] as const;

// The `error` of every rule is the `expected` part of a KvforgeError.
const whole = (least: number, limit: number) => {
  const error = `a whole number from ${least} to ${limit}`;
  return z.int({ error }).min(least, { error }).max(limit, { error });
};
const count = (limit: number) => whole(1, limit);
const positive = (limit: number) => {
  const error = `a number above 0 and at most ${limit}`;
  return z.number({ error }).gt(0, { error }).max(limit, { error });
};
/** What kernels or angles are scaled by: neither vanishes nor overflows in float32. */
const factor = (least: number) => {
  const error = `a number from ${least} to 1000000`;
  return z.number({ error }).min(least, { error }).max(1e6, { error });
};
const theta = (() => {
  const error = 'a number above 1 and at most 1000000000000';
  return z.number({ error }).gt(1, { error }).max(1e12, { error });
})();
const flag = z.boolean({ error: 'true or false' });
const factors = z.array(factor(1e-3), { error: 'a list of numbers' });

// "su" is what Phi-3 first called longrope.
const ropeType = z.enum([...ropeTypes, 'su'], { error: `one of ${ropeTypes.join(', ')}` });

const ropeFields = z.object(
  {
    rope_type: ropeType.nullish(),
    type: ropeType.nullish(),
    rope_theta: theta.nullish(),
    partial_rotary_factor: positive(1).nullish(),
    factor: factor(1e-3).nullish(),
    original_max_position_embeddings: count(maxPositionsLimit).nullish(),
    low_freq_factor: factor(1e-3).nullish(),
    high_freq_factor: factor(1e-3).nullish(),
    attention_factor: factor(1e-3).nullish(),
    beta_fast: factor(1e-3).nullish(),
    beta_slow: factor(1e-3).nullish(),
    mscale: factor(0).nullish(),
    mscale_all_dim: factor(0).nullish(),
    truncate: flag.nullish(),
    short_factor: factors.nullish(),
    long_factor: factors.nullish(),
  },
  { error: 'an object or null' },
);

const ropeScaling = ropeFields
  .extend({ full_attention: ropeFields.nullish(), sliding_attention: ropeFields.nullish() })
  // A misspelt type of layer must not pass for one that was left out.
  .catchall(z.unknown());

/** Only what fixes the shape of a KV cache, and what attention does with it. */
const configSchema = z.object(
  {
    model_type: z.enum(supportedModelTypes, { error: `one of ${supportedModelTypes.join(', ')}` }),
    hidden_size: count(2 ** 20).nullish(),
    num_hidden_layers: count(4096),
    num_attention_heads: count(4096),
    num_key_value_heads: count(4096).nullish(),
    head_dim: count(256).nullish(),
    kv_lora_rank: count(4096).nullish(),
    qk_nope_head_dim: count(4096).nullish(),
    qk_rope_head_dim: count(256).nullish(),
    max_position_embeddings: count(maxPositionsLimit),
    original_max_position_embeddings: count(maxPositionsLimit).nullish(),
    rope_theta: theta.nullish(),
    rotary_emb_base: theta.nullish(),
    rope_local_base_freq: theta.nullish(),
    rope_scaling: ropeScaling.nullish(),
    rope_parameters: ropeScaling.nullish(),
    partial_rotary_factor: positive(1).nullish(),
    rotary_pct: positive(1).nullish(),
    rope_interleave: flag.nullish(),
    rope_interleaved: flag.nullish(),
    no_rope_layers: z.array(whole(0, 1), { error: 'a list of 0 and 1' }).nullish(),
    no_rope_layer_interval: count(4096).nullish(),
    sliding_window: whole(0, Number.MAX_SAFE_INTEGER).nullish(),
    sliding_window_pattern: count(4096).nullish(),
    use_sliding_window: flag.nullish(),
    max_window_layers: whole(0, 4096).nullish(),
    layer_types: z
      .array(
        z.enum(['full_attention', 'sliding_attention'], {
          error: 'full_attention or sliding_attention (no other kind of layer is supported)',
        }),
        { error: 'a list' },
      )
      .nullish(),
    use_bidirectional_attention: z.literal(false, { error: 'false (a KV cache needs causal attention)' }).nullish(),
    attn_logit_softcapping: factor(1e-6).nullish(),
    query_pre_attn_scalar: factor(1e-6).nullish(),
    attention_multiplier: factor(1e-6).nullish(),
  },
  { error: 'a Hugging Face config.json as an object' },
);

export type Config = z.infer<typeof configSchema>;
export type RopeFields = z.infer<typeof ropeFields>;
export type RopeScalingFields = z.infer<typeof ropeScaling>;

/**
 * The fields of a `config.json` that matter here, with what its architecture takes for those left out.
 *
 * @example
 * const config = parseConfig(JSON.parse(text));
 * config.num_hidden_layers; // 32
 */
export function parseConfig(config: unknown): Config {
  const filled = withDefaults(config);
  const parsed = configSchema.safeParse(filled);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0]!;
  const at = issue.path.map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`)).join('');
  let received = filled;
  for (const key of issue.path) received = (received as Record<PropertyKey, unknown>)[key];
  const nested = config !== null && typeof config === 'object' && 'text_config' in config;
  const hint = nested
    ? 'This is a multimodal configuration: pass its text_config.'
    : (hints[String(issue.path.at(-1))] ?? 'Check the configuration.');
  throw invalid(at.slice(1) || 'config', issue.message, received, hint);
}

function withDefaults(config: unknown): unknown {
  if (config === null || typeof config !== 'object' || !('model_type' in config)) return config;
  const known = supportedModelTypes.find((type) => type === config.model_type);
  return known ? { ...architectures[known].defaults, ...config } : config;
}

const hints: Readonly<Record<string, string>> = {
  model_type: 'If the model has the attention of Llama, set model_type to "llama".',
  rope_type: 'Other kinds of RoPE are not supported.',
  type: 'Other kinds of RoPE are not supported.',
  head_dim: 'Larger heads are not supported.',
};
