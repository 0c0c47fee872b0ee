/**
 * Where the attention of an architecture departs from Llama's: softmax of q.k/sqrt(headDim), rotate-half RoPE over the
 * whole head, every layer sees every token. Source of each entry: `configuration_*.py` and `modeling_*.py` of
 * Hugging Face transformers 5.24; test/fixtures/rope holds what that library computes for one model of each.
 */
export interface Architecture {
  /** Which channels are rotated together; 'half' if absent. */
  readonly pairing?: 'interleaved';
  /** Base of the frequencies; `rope_theta`, or 10000, if absent. */
  readonly base?: ThetaField;
  /** The field with the share of a head that is rotated; the whole head if absent. */
  readonly rotated?: { readonly field: 'partial_rotary_factor' | 'rotary_pct'; readonly value: number };
  /** Layers with full attention and sliding layers have a RoPE each; `rope_scaling` is that of full attention. */
  readonly ropePerLayerType?: true;
  /** Base of the frequencies in sliding layers; that of the others if absent. */
  readonly slidingBase?: ThetaField;
  /** The kinds of RoPE that the architecture has; all of them if absent. */
  readonly ropeTypes?: readonly string[];
  /** Other names of longrope in published configurations. */
  readonly longropeNames?: readonly string[];
  /** The layers with a rotation; all of them if absent. */
  readonly rotates?: 'sliding' | 'no_rope_layers';
  readonly sliding?: SlidingRule;
  /** The field that the factor of the scores comes from; 1/sqrt(headDim) if absent. */
  readonly scale?: 'query_pre_attn_scalar' | 'attention_multiplier';
  /** Scores are capped by `attn_logit_softcapping`. */
  readonly capped?: true;
  /** The head size is hidden_size / num_attention_heads, whatever head_dim says. */
  readonly ignoresHeadDim?: true;
  /** Each query head has a KV head of its own, whatever num_key_value_heads says. */
  readonly multiHead?: true;
  /** Tokens are latents of `kv_lora_rank` channels and a rotary part of `qk_rope_head_dim` (multi-head latent attention). */
  readonly latent?: true;
  /** What is taken for fields that a config.json leaves out (a null is not left out). */
  readonly defaults?: Readonly<Record<string, unknown>>;
}

/** The field with the base of the frequencies, and what is taken if it is left out. */
export interface ThetaField {
  readonly field: 'rope_theta' | 'rotary_emb_base' | 'rope_local_base_freq';
  readonly value: number;
}

export interface SlidingRule {
  /** Layers that slide where `layer_types` is left out: [layer] -> whether. */
  readonly layers: (layer: number, config: WindowFields) => boolean;
  /** optional: a null window means none; switched: also off unless use_sliding_window; required: must be a number. */
  readonly window: 'optional' | 'switched' | 'required';
  /** `layer_types` decides where it is given. */
  readonly listed?: true;
  /** What `layers` cannot do without. */
  readonly reads?: 'max_window_layers';
}

interface WindowFields {
  readonly max_window_layers?: number | null | undefined;
  readonly sliding_window_pattern?: number | null | undefined;
  readonly no_rope_layers?: readonly number[] | null | undefined;
  readonly no_rope_layer_interval?: number | null | undefined;
}

const everyLayer = { layers: () => true, window: 'optional' } as const;
const allButEvery = (interval: number): SlidingRule => ({
  layers: (layer, config) => (layer + 1) % (config.sliding_window_pattern ?? interval) !== 0,
  window: 'required',
  listed: true,
});
const fromLayer: SlidingRule = {
  layers: (layer, config) => layer >= config.max_window_layers!,
  window: 'switched',
  listed: true,
  reads: 'max_window_layers',
};

/**
 * Whether SmolLM3 rotates a layer.
 *
 * @example
 * hasRope(3, { no_rope_layer_interval: 4 }); // false
 */
export function hasRope(layer: number, config: WindowFields): boolean {
  if (config.no_rope_layers) return config.no_rope_layers[layer] !== 0;
  return (layer + 1) % (config.no_rope_layer_interval ?? 4) !== 0;
}

const half = { field: 'partial_rotary_factor', value: 0.5 } as const;
const qwenWindow = { use_sliding_window: false, sliding_window: 4096, max_window_layers: 28 };

export const supportedModelTypes = [
  'llama',
  'arcee',
  'cohere',
  'cohere2',
  'deepseek_v2',
  'deepseek_v3',
  'ernie4_5',
  'gemma',
  'gemma2',
  'gemma3_text',
  'glm',
  'glm4',
  'glm4_moe',
  'gpt_neox',
  'granite',
  'granitemoe',
  'helium',
  'ministral',
  'mistral',
  'mixtral',
  'nemotron',
  'olmo',
  'olmo2',
  'olmo3',
  'olmoe',
  'phi',
  'phi3',
  'qwen2',
  'qwen2_moe',
  'qwen3',
  'qwen3_moe',
  'seed_oss',
  'smollm3',
  'stablelm',
  'starcoder2',
] as const;

export type ModelType = (typeof supportedModelTypes)[number];

export const architectures: Readonly<Record<ModelType, Architecture>> = {
  llama: {},
  arcee: {},
  cohere: { pairing: 'interleaved', base: { field: 'rope_theta', value: 500000 } },
  cohere2: {
    pairing: 'interleaved',
    rotates: 'sliding',
    sliding: allButEvery(4),
    defaults: { sliding_window: 4096 },
  },
  deepseek_v2: { pairing: 'interleaved', latent: true, multiHead: true },
  deepseek_v3: { pairing: 'interleaved', latent: true, multiHead: true },
  ernie4_5: {
    pairing: 'interleaved',
    base: { field: 'rope_theta', value: 500000 },
    defaults: { num_key_value_heads: 2, head_dim: 128 },
  },
  gemma: { defaults: { num_key_value_heads: 16, head_dim: 256 } },
  gemma2: {
    sliding: { layers: (layer) => layer % 2 === 0, window: 'required', listed: true },
    scale: 'query_pre_attn_scalar',
    capped: true,
    defaults: {
      num_key_value_heads: 4,
      head_dim: 256,
      sliding_window: 4096,
      query_pre_attn_scalar: 256,
      attn_logit_softcapping: 50,
    },
  },
  gemma3_text: {
    base: { field: 'rope_theta', value: 1e6 },
    slidingBase: { field: 'rope_local_base_freq', value: 10000 },
    ropePerLayerType: true,
    sliding: allButEvery(6),
    scale: 'query_pre_attn_scalar',
    // Google's own text_config leaves all of these out.
    defaults: {
      num_attention_heads: 8,
      num_key_value_heads: 4,
      head_dim: 256,
      max_position_embeddings: 131072,
      sliding_window: 4096,
      query_pre_attn_scalar: 256,
    },
  },
  glm: { pairing: 'interleaved', rotated: half, defaults: { num_key_value_heads: 2, head_dim: 128 } },
  glm4: { pairing: 'interleaved', rotated: half, defaults: { num_key_value_heads: 2, head_dim: 128 } },
  glm4_moe: { rotated: half, defaults: { num_key_value_heads: 8 } },
  gpt_neox: {
    base: { field: 'rotary_emb_base', value: 10000 },
    rotated: { field: 'rotary_pct', value: 0.25 },
    ignoresHeadDim: true,
    multiHead: true,
  },
  granite: { scale: 'attention_multiplier', defaults: { attention_multiplier: 1 } },
  granitemoe: { scale: 'attention_multiplier', defaults: { attention_multiplier: 1 } },
  helium: {
    pairing: 'interleaved',
    base: { field: 'rope_theta', value: 100000 },
    defaults: { num_key_value_heads: 20, head_dim: 128 },
  },
  ministral: {
    sliding: { ...everyLayer, listed: true },
    defaults: { num_key_value_heads: 8, sliding_window: 4096 },
  },
  mistral: { sliding: everyLayer, defaults: { num_key_value_heads: 8, sliding_window: 4096 } },
  mixtral: { base: { field: 'rope_theta', value: 1e6 }, sliding: everyLayer, defaults: { num_key_value_heads: 8 } },
  nemotron: { rotated: half },
  olmo: {},
  olmo2: {},
  olmo3: {
    base: { field: 'rope_theta', value: 500000 },
    ropePerLayerType: true,
    sliding: { layers: (layer) => (layer + 1) % 4 !== 0, window: 'required', listed: true },
    defaults: { sliding_window: 4096 },
  },
  olmoe: {},
  phi: { rotated: half },
  phi3: {
    rotated: { field: 'partial_rotary_factor', value: 1 },
    ropeTypes: ['default', 'longrope'],
    longropeNames: ['su', 'yarn'],
    sliding: everyLayer,
    defaults: { original_max_position_embeddings: 4096 },
  },
  qwen2: { sliding: fromLayer, defaults: { ...qwenWindow, num_key_value_heads: 32 } },
  qwen2_moe: {
    sliding: {
      layers: (layer, config) => layer % 2 === 0 && layer < config.max_window_layers!,
      window: 'switched',
      listed: true,
      reads: 'max_window_layers',
    },
    defaults: { ...qwenWindow, num_key_value_heads: 16 },
  },
  qwen3: { sliding: fromLayer, defaults: { ...qwenWindow, num_key_value_heads: 32, head_dim: 128 } },
  qwen3_moe: {
    sliding: { ...everyLayer, window: 'switched' },
    defaults: { ...qwenWindow, num_key_value_heads: 4 },
  },
  seed_oss: { defaults: { num_key_value_heads: 8, head_dim: 128 } },
  smollm3: {
    base: { field: 'rope_theta', value: 2e6 },
    rotates: 'no_rope_layers',
    sliding: { layers: (layer, config) => !hasRope(layer, config), window: 'switched', listed: true },
    defaults: { num_key_value_heads: 4 },
  },
  stablelm: {
    rotated: { field: 'partial_rotary_factor', value: 0.25 },
    ignoresHeadDim: true,
    defaults: { num_key_value_heads: 32 },
  },
  starcoder2: { sliding: everyLayer, defaults: { num_key_value_heads: 2 } },
};
