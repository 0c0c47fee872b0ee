import { type Architecture, hasRope, type SlidingRule } from './architectures.js';
import type { Config } from './config.js';
import { invalid } from './invalid.js';

/**
 * Which layers see only a window of tokens, [layers].
 *
 * A query at position p of a sliding layer sees the keys at p - sliding_window + 1 .. p (`sliding_window_overlay` of
 * transformers: `kv_idx > q_idx - sliding_window`).
 *
 * @example
 * slidingLayers(config, architectures.gemma2).slice(0, 3); // [true, false, true]
 */
export function slidingLayers(config: Config, architecture: Architecture): readonly boolean[] {
  const { layer_types: listed, num_hidden_layers: layers } = config;
  if (listed && listed.length !== layers) {
    throw invalid('layer_types', `a type for each of the ${layers} layers`, listed.length, 'Check the configuration.');
  }
  const rule = architecture.sliding;
  if (!rule) requireNoWindow(config);
  const types = listed?.map((type) => type === 'sliding_attention');
  const derived = () => Array.from({ length: layers }, (_, layer) => rule !== undefined && slides(rule, layer, config));
  if (types && !rule?.listed) requireSame(types, derived(), config);
  const sliding = types ?? derived();
  if (sliding.includes(true)) requireWindow(config, rule!);
  return sliding;
}

/**
 * Which layers rotate keys and queries, [layers].
 *
 * @example
 * rotatingLayers(config, architectures.smollm3, sliding).slice(0, 4); // [true, true, true, false]
 */
export function rotatingLayers(
  config: Config,
  architecture: Architecture,
  sliding: readonly boolean[],
): readonly boolean[] {
  const { no_rope_layers: listed, num_hidden_layers: layers } = config;
  if (architecture.rotates === 'sliding') return sliding;
  if (architecture.rotates === 'no_rope_layers') {
    if (listed && listed.length !== layers) {
      throw invalid(
        'no_rope_layers',
        `0 or 1 for each of the ${layers} layers`,
        listed.length,
        'Check the configuration.',
      );
    }
    return sliding.map((_, layer) => hasRope(layer, config));
  }
  if (listed?.includes(0)) {
    const expected = `nothing (${config.model_type} has RoPE in every layer)`;
    throw invalid('no_rope_layers', expected, listed, 'The model would ignore it.');
  }
  return sliding.map(() => true);
}

function slides(rule: SlidingRule, layer: number, config: Config): boolean {
  if (rule.window === 'switched' && !config.use_sliding_window) return false;
  if (rule.window !== 'required' && config.sliding_window == null) return false;
  if (rule.reads && config[rule.reads] == null) {
    const expected = 'a whole number from 0 to 4096, as use_sliding_window is true';
    throw invalid(rule.reads, expected, config[rule.reads], 'Or give layer_types.');
  }
  return rule.layers(layer, config);
}

/** An architecture without sliding layers ignores a window, so one that would matter is a mistake. */
function requireNoWindow(config: Config): void {
  const { sliding_window: window, max_position_embeddings: positions, use_sliding_window: used } = config;
  if (window == null || window >= positions || used === false) return;
  const expected = `null, or at least max_position_embeddings (${positions})`;
  const hint = `Models of type ${config.model_type} have no sliding window: check model_type.`;
  throw invalid('sliding_window', expected, window, hint);
}

function requireSame(types: readonly boolean[], derived: readonly boolean[], config: Config): void {
  const layer = types.findIndex((type, index) => type !== derived[index]);
  if (layer < 0) return;
  const name = (type: boolean) => (type ? 'sliding_attention' : 'full_attention');
  const expected = `${name(derived[layer]!)}, as in every layer of this ${config.model_type}`;
  throw invalid(`layer_types[${layer}]`, expected, name(types[layer]!), 'The model would ignore it.');
}

function requireWindow(config: Config, rule: SlidingRule): void {
  const { sliding_window: window, use_sliding_window: used } = config;
  if (rule.window === 'switched' && !used) {
    throw invalid('use_sliding_window', 'true, as layers slide', used ?? undefined, 'Or list no sliding layers.');
  }
  if (window == null || window < 1) {
    throw invalid('sliding_window', 'a whole number above 0, as layers slide', window, 'Or list no sliding layers.');
  }
}
