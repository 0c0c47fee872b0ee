import { KvforgeError } from './errors.js';
import { type Config, configSchema, type RopeScalingConfig } from './models/config.js';
import { type PresetName, presetConfigs } from './models/presets.js';

/** Llama 3.1's stretch of the slow pairs, by wavelength in positions. */
export interface RopeScaling {
  readonly factor: number;
  readonly lowFreqFactor: number;
  readonly highFreqFactor: number;
  /** Context length before scaling, in positions. */
  readonly originalMaxPositions: number;
}

/** Rotate-half RoPE: channel j pairs with j + rotaryDim/2, and the pair turns by `position * invFreq[j]` radians. */
export interface RopeShape {
  readonly type: 'default' | 'llama3';
  readonly theta: number;
  /** Channels of a head that are rotated; all of them in every model accepted so far. */
  readonly rotaryDim: number;
  readonly scaling?: RopeScaling;
  /** Radians per position, one for each of the rotaryDim/2 pairs, scaling included. */
  readonly invFreq: readonly number[];
}

/** Everything about a model that the layout of its KV cache and its attention depend on. */
export interface ModelShape {
  readonly name: string;
  readonly layers: number;
  /** Query heads. */
  readonly heads: number;
  readonly kvHeads: number;
  /** Channels of one head, d. */
  readonly headDim: number;
  /** Query heads that read one KV head: heads / kvHeads. */
  readonly groupSize: number;
  /** Channels of one token's keys over all KV heads: kvHeads * headDim. */
  readonly width: number;
  readonly maxPositions: number;
  readonly rope: RopeShape;
}

/**
 * The shape of a model, from its Hugging Face `config.json` (already parsed).
 *
 * What would make the kernels compute another attention than the model's (sliding windows, partial rotation, capped
 * logits, a RoPE variant not listed in `RopeShape`) is an `invalid-model` error, never ignored.
 *
 * @example
 * const model = modelFrom(JSON.parse(await readFile('config.json', 'utf8')), 'my-model');
 * model.width; // kvHeads * headDim
 */
export function modelFrom(config: unknown, name?: string): ModelShape {
  const fields = parseConfig(config);
  const shapeName = name ?? fields.model_type;
  if (shapeName === '' || /[\p{Cc}\u2028\u2029]/u.test(shapeName)) {
    throw invalid('name', 'printable characters on one line', shapeName, 'The name is printed in generated text.');
  }
  const heads = fields.num_attention_heads;
  const kvHeads = fields.num_key_value_heads ?? heads;
  if (heads % kvHeads !== 0) {
    throw invalid('num_key_value_heads', `a divisor of the ${heads} query heads`, kvHeads, 'Check the configuration.');
  }
  const headDim = headDimOf(fields, heads);
  rejectOtherAttention(fields, headDim);
  return {
    name: shapeName,
    layers: fields.num_hidden_layers,
    heads,
    kvHeads,
    headDim,
    groupSize: heads / kvHeads,
    width: kvHeads * headDim,
    maxPositions: fields.max_position_embeddings,
    rope: ropeOf(fields, headDim),
  };
}

export const presetNames = Object.keys(presetConfigs) as readonly PresetName[];

/**
 * The shape of a model kvforge knows by name.
 *
 * @example
 * presetModel('llama-3.1-8b').width; // 1024
 */
export function presetModel(name: string): ModelShape {
  if (!Object.hasOwn(presetConfigs, name)) {
    throw invalid(
      'model',
      `one of ${presetNames.join(', ')}`,
      name,
      'For any other model, give its Hugging Face config.json.',
    );
  }
  return modelFrom(presetConfigs[name as PresetName], name);
}

function headDimOf(fields: Config, heads: number): number {
  const { head_dim: explicit, hidden_size: hidden } = fields;
  if (explicit == null && hidden == null) {
    throw invalid('hidden_size', 'a whole number, as head_dim is not given', undefined, 'Give either of the two.');
  }
  const headDim = explicit ?? hidden! / heads;
  if (!Number.isInteger(headDim)) {
    throw invalid('hidden_size', `a multiple of the ${heads} query heads`, hidden, 'Or give head_dim.');
  }
  const at = explicit == null ? 'hidden_size' : 'head_dim';
  const value = explicit ?? hidden;
  if (headDim % 2 !== 0) {
    const expected = explicit == null ? `an even number of channels for each of ${heads} heads` : 'an even number';
    throw invalid(at, expected, value, 'RoPE rotates channels in pairs.');
  }
  if (headDim > 256) {
    throw invalid(at, `at most 256 channels for each of ${heads} heads`, value, 'Larger heads are not supported.');
  }
  return headDim;
}

function rejectOtherAttention(fields: Config, headDim: number): void {
  const { sliding_window: window, query_pre_attn_scalar: scalar, max_position_embeddings: positions } = fields;
  // transformers leaves Qwen's window off unless it is asked for; for every other model a number means on.
  const windowed = fields.use_sliding_window ?? !fields.model_type.startsWith('qwen');
  if (windowed && window != null && window < positions) {
    throw invalid(
      'sliding_window',
      `null, or at least max_position_embeddings (${positions})`,
      window,
      'Sliding-window attention is not supported; only full attention over the whole cache is.',
    );
  }
  if (scalar != null && scalar !== headDim) {
    throw invalid(
      'query_pre_attn_scalar',
      `the head size, ${headDim}`,
      scalar,
      'Only scores scaled by 1/sqrt(head size) are supported.',
    );
  }
}

function ropeOf(fields: Config, rotaryDim: number): RopeShape {
  const older = fields.rope_scaling == null ? undefined : scalingOf(fields.rope_scaling, 'rope_scaling');
  const newer = fields.rope_parameters == null ? undefined : scalingOf(fields.rope_parameters, 'rope_parameters');
  if (older && newer && JSON.stringify(older) !== JSON.stringify(newer)) {
    throw invalid('rope_scaling', 'the same as rope_parameters', fields.rope_scaling, 'Remove one of the two.');
  }
  const { type, scaling } = newer ?? older ?? { type: 'default', scaling: undefined };

  const nested = fields.rope_parameters?.rope_theta ?? fields.rope_scaling?.rope_theta;
  if (nested != null && fields.rope_theta != null && nested !== fields.rope_theta) {
    throw invalid('rope_theta', `${nested}, as in the rope parameters`, fields.rope_theta, 'Remove one of the two.');
  }
  const theta = nested ?? fields.rope_theta ?? 10000;
  const unscaled = Array.from({ length: rotaryDim / 2 }, (_, pair) => 1 / theta ** ((2 * pair) / rotaryDim));
  if (!scaling) return { type, theta, rotaryDim, invFreq: unscaled };
  return { type, theta, rotaryDim, scaling, invFreq: unscaled.map((frequency) => stretched(frequency, scaling)) };
}

/** Source: `_compute_llama3_parameters` of Hugging Face transformers, in float64. */
function stretched(frequency: number, scaling: RopeScaling): number {
  const { factor, lowFreqFactor, highFreqFactor, originalMaxPositions } = scaling;
  const wavelength = (2 * Math.PI) / frequency;
  if (wavelength > originalMaxPositions / lowFreqFactor) return frequency / factor;
  if (wavelength < originalMaxPositions / highFreqFactor) return frequency;
  const smooth = (originalMaxPositions / wavelength - lowFreqFactor) / (highFreqFactor - lowFreqFactor);
  return ((1 - smooth) * frequency) / factor + smooth * frequency;
}

function scalingOf(fields: RopeScalingConfig, at: string): { type: RopeShape['type']; scaling?: RopeScaling } {
  const type = fields.rope_type ?? fields.type;
  if (type === undefined) {
    throw invalid(`${at}.rope_type`, 'one of default, llama3', undefined, 'Name the kind of RoPE.');
  }
  if (fields.rope_type && fields.type && fields.rope_type !== fields.type) {
    throw invalid(`${at}.type`, `${fields.rope_type}, as in rope_type`, fields.type, 'Remove one of the two.');
  }
  if (type === 'default') return { type };
  const required = (field: 'factor' | 'low_freq_factor' | 'high_freq_factor' | 'original_max_position_embeddings') => {
    const value = fields[field];
    if (value === undefined) throw invalid(`${at}.${field}`, 'a number', undefined, 'llama3 scaling needs it.');
    return value;
  };
  const scaling = {
    factor: required('factor'),
    lowFreqFactor: required('low_freq_factor'),
    highFreqFactor: required('high_freq_factor'),
    originalMaxPositions: required('original_max_position_embeddings'),
  };
  if (scaling.factor < 1) throw invalid(`${at}.factor`, 'at least 1', scaling.factor, 'Check the configuration.');
  if (scaling.highFreqFactor <= scaling.lowFreqFactor) {
    const expected = `more than low_freq_factor (${scaling.lowFreqFactor})`;
    throw invalid(`${at}.high_freq_factor`, expected, scaling.highFreqFactor, 'Check the configuration.');
  }
  return { type, scaling };
}

function parseConfig(config: unknown): Config {
  const parsed = configSchema.safeParse(config);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0]!;
  const at = issue.path.map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`)).join('');
  let received = config;
  for (const key of issue.path) received = (received as Record<PropertyKey, unknown>)[key];
  const nested = config !== null && typeof config === 'object' && 'text_config' in config;
  const hint = nested
    ? 'This is a multimodal configuration: pass its text_config.'
    : (hints[String(issue.path.at(-1))] ?? 'Check the configuration.');
  throw invalid(at.slice(1) || 'config', issue.message, received, hint);
}

const hints: Readonly<Record<string, string>> = {
  model_type: 'If the model has the attention of Llama, set model_type to "llama".',
  rope_type: 'Other kinds of RoPE are not supported yet.',
  type: 'Other kinds of RoPE are not supported yet.',
  head_dim: 'Larger heads are not supported.',
};

function invalid(at: string, expected: string, received: unknown, hint: string): KvforgeError {
  return new KvforgeError('invalid-model', { at, expected, received: shown(received), hint });
}

function shown(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object' && value !== null) return 'an object';
  const text = typeof value === 'string' ? JSON.stringify(value) : String(value);
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}
