import { KvforgeError } from './errors.js';
import { type Architecture, architectures } from './models/architectures.js';
import { type Config, parseConfig } from './models/config.js';
import { invalid } from './models/invalid.js';
import { latentOf, latentScoreScale } from './models/latent.js';
import { rotatingLayers, slidingLayers } from './models/layerTypes.js';
import { type PresetName, presetConfigs } from './models/presets.js';
import { type RopeShapes, ropesOf, withoutRope } from './models/ropeConfig.js';
import type { RopeShape } from './models/scaling.js';
import { maxPositionsOf } from './models/scalingConfig.js';
import { scoreCapOf, scoreScaleOf } from './models/scores.js';

export {
  type DynamicScaling,
  frequenciesFor,
  type LinearScaling,
  type Llama3Scaling,
  type LongropeScaling,
  type RopeScaling,
  type RopeShape,
  type YarnScaling,
} from './models/scaling.js';

/** What the attention of one layer does. */
export interface LayerShape {
  readonly rope: RopeShape;
  /** Tokens a query sees, itself included; all of them if absent. */
  readonly slidingWindow?: number;
}

/** Multi-head latent attention (DeepSeek-V2, 2024): what a token has in the cache, once for all heads. */
export interface LatentShape {
  /** Channels of the latent, which a query meets through projections that are absorbed in it: `kv_lora_rank`. */
  readonly latentDim: number;
  /** Channels of the rotary part of keys: `qk_rope_head_dim`. */
  readonly rotaryDim: number;
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
  /**
   * Tokens of a sequence, at most: `max_position_embeddings`. With dynamic NTK that is the original context, which
   * sequences may outgrow: then it is that times the factor, rounded down.
   */
  readonly maxPositions: number;
  /**
   * RoPE of the layers with full attention (of all layers in most models); of those among them that rotate, if some do
   * not (SmolLM3). pairing and rotaryDim are the same in every layer.
   */
  readonly rope: RopeShape;
  /** Factor of q.k before the softmax: 1/sqrt(headDim) in most models. */
  readonly scoreScale: number;
  /** Scores become cap * tanh(score / cap) (Gemma 2); absent in most models. */
  readonly scoreCap?: number;
  /** The distinct kinds of layer. */
  readonly kinds: readonly LayerShape[];
  /** For each layer, its index in kinds. */
  readonly layerKinds: readonly number[];
  /** Where tokens are latents: then there is one KV head, and `headDim` are the channels of a latent and its rotary part. */
  readonly latent?: LatentShape;
}

/**
 * The shape of a model, from its Hugging Face `config.json` (already parsed).
 *
 * What would make the kernels compute another attention than the model's (an unknown kind of RoPE, fields that
 * contradict one another or that the architecture would ignore) is an `invalid-model` error, never passed over.
 *
 * @example
 * const model = modelFrom(JSON.parse(await readFile('config.json', 'utf8')), 'my-model');
 * model.width; // model.kvHeads * model.headDim
 */
export function modelFrom(config: unknown, name?: string): ModelShape {
  const fields = parseConfig(config);
  const shapeName = name ?? fields.model_type;
  if (shapeName === '' || /[\p{Cc}\u2028\u2029]/u.test(shapeName)) {
    throw invalid('name', 'printable characters on one line', shapeName, 'The name is printed in generated text.');
  }
  const architecture: Architecture = architectures[fields.model_type];
  const heads = fields.num_attention_heads;
  const latent = latentOf(fields, architecture);
  const ownHeads = kvHeadsOf(fields, architecture);
  const kvHeads = latent ? 1 : ownHeads;
  const headDim = latent ? latent.latentDim + latent.rotaryDim : headDimOf(fields, architecture);
  const scoreCap = scoreCapOf(fields, architecture);
  const ropes = ropesOf(fields, architecture, latent?.rotaryDim ?? headDim);
  const maxPositions = maxPositionsOf(fields, ropes.full);
  const { kinds, layerKinds } = kindsOf(fields, architecture, ropes, maxPositions);
  return {
    name: shapeName,
    layers: fields.num_hidden_layers,
    heads,
    kvHeads,
    headDim,
    groupSize: heads / kvHeads,
    width: kvHeads * headDim,
    maxPositions,
    rope: fullAttentionRope(kinds),
    scoreScale: latent ? latentScoreScale(fields, latent, ropes.full) : scoreScaleOf(fields, architecture, headDim),
    ...(scoreCap === undefined ? {} : { scoreCap }),
    kinds,
    layerKinds,
    ...(latent ? { latent } : {}),
  };
}

/**
 * What the attention of one layer does.
 *
 * @param layer from 0
 * @example
 * layerShape(presetModel('gemma-2-9b'), 0).slidingWindow; // 4096
 */
export function layerShape(model: ModelShape, layer: number): LayerShape {
  const kind = model.kinds[model.layerKinds[layer] ?? -1];
  if (kind) return kind;
  throw new KvforgeError('wrong-use', {
    at: 'layer',
    expected: `a whole number from 0 to ${model.layers - 1}`,
    received: String(layer),
    hint: `${model.name} has ${model.layers} layers.`,
  });
}

/**
 * The models that `presetModel` knows.
 *
 * @example
 * presetNames.includes('llama-3.1-8b'); // true
 */
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

function kindsOf(
  config: Config,
  architecture: Architecture,
  ropes: RopeShapes,
  maxPositions: number,
): { kinds: readonly LayerShape[]; layerKinds: readonly number[] } {
  const sliding = slidingLayers(config, architecture);
  const rotating = rotatingLayers(config, architecture, sliding);
  // A window as long as the longest sequence hides nothing.
  const window = (config.sliding_window ?? 0) < maxPositions ? config.sliding_window : undefined;
  const found = new Map<string, { index: number; kind: LayerShape }>();
  const layerKinds = sliding.map((slides, layer) => {
    const own = slides ? ropes.sliding : ropes.full;
    const rope = rotating[layer] ? own : withoutRope(own);
    const kind = slides && window ? { rope, slidingWindow: window } : { rope };
    const key = JSON.stringify(kind);
    const index = found.get(key)?.index ?? found.size;
    if (index === found.size) found.set(key, { index, kind });
    return index;
  });
  return { kinds: [...found.values()].map(({ kind }) => kind), layerKinds };
}

function fullAttentionRope(kinds: readonly LayerShape[]): RopeShape {
  const full = kinds.filter(({ slidingWindow }) => slidingWindow === undefined);
  const candidates = full.length > 0 ? full : kinds;
  return (candidates.find(({ rope }) => rope.type !== 'none') ?? candidates[0]!).rope;
}

function kvHeadsOf(fields: Config, architecture: Architecture): number {
  const { num_attention_heads: heads, num_key_value_heads: given } = fields;
  const kvHeads = given ?? heads;
  if (architecture.multiHead && kvHeads !== heads) {
    const hint = `Models of type ${fields.model_type} have a KV head for each query head.`;
    throw invalid('num_key_value_heads', `nothing, or ${heads}`, kvHeads, hint);
  }
  if (heads % kvHeads !== 0) {
    throw invalid('num_key_value_heads', `a divisor of the ${heads} query heads`, kvHeads, 'Check the configuration.');
  }
  return kvHeads;
}

function headDimOf(fields: Config, architecture: Architecture): number {
  const { head_dim: explicit, hidden_size: hidden, num_attention_heads: heads } = fields;
  if (explicit == null && hidden == null) {
    throw invalid('hidden_size', 'a whole number, as head_dim is not given', undefined, 'Give either of the two.');
  }
  if (architecture.ignoresHeadDim && explicit != null && hidden != null && explicit * heads !== hidden) {
    const hint = `Models of type ${fields.model_type} divide hidden_size by the heads.`;
    throw invalid('head_dim', `nothing, or ${hidden} / ${heads}`, explicit, hint);
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
