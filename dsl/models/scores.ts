import type { Architecture } from './architectures.js';
import type { Config } from './config.js';
import { invalid } from './invalid.js';

/**
 * Factor of q.k before the softmax.
 *
 * @example
 * scoreScaleOf(config, architectures.llama, 64); // 0.125
 */
export function scoreScaleOf(config: Config, architecture: Architecture, headDim: number): number {
  const { query_pre_attn_scalar: scalar, attention_multiplier: multiplier } = config;
  const usual = 1 / Math.sqrt(headDim);
  if (architecture.scale !== 'query_pre_attn_scalar' && scalar != null && scalar !== headDim) {
    const hint = `Models of type ${config.model_type} scale scores otherwise.`;
    throw invalid('query_pre_attn_scalar', `nothing, or the head size, ${headDim}`, scalar, hint);
  }
  if (architecture.scale !== 'attention_multiplier' && multiplier != null && Math.abs(multiplier / usual - 1) > 1e-6) {
    const hint = `Models of type ${config.model_type} scale scores otherwise.`;
    throw invalid('attention_multiplier', `nothing, or 1/sqrt(${headDim})`, multiplier, hint);
  }
  if (!architecture.scale) return usual;
  const value = config[architecture.scale];
  if (value == null) throw invalid(architecture.scale, 'a number', value, `${config.model_type} scales scores by it.`);
  return architecture.scale === 'attention_multiplier' ? value : 1 / Math.sqrt(value);
}

/**
 * The cap of the scores, `cap * tanh(score / cap)`, if there is one.
 *
 * @example
 * scoreCapOf(config, architectures.gemma2); // 50
 */
export function scoreCapOf(config: Config, architecture: Architecture): number | undefined {
  const cap = config.attn_logit_softcapping ?? undefined;
  if (cap === undefined || architecture.capped) return cap;
  const hint = `Models of type ${config.model_type} do not cap scores.`;
  throw invalid('attn_logit_softcapping', 'null', cap, hint);
}
