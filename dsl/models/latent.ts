import type { LatentShape } from '../model.js';
import type { Architecture } from './architectures.js';
import type { Config } from './config.js';
import { invalid } from './invalid.js';
import type { RopeShape } from './scaling.js';
import { magnitude } from './scalingConfig.js';

/**
 * What a token of multi-head latent attention has in the cache; undefined for an architecture with keys and values.
 *
 * @example
 * latentOf(config, architectures.deepseek_v3); // { latentDim: 512, rotaryDim: 64 }
 */
export function latentOf(config: Config, architecture: Architecture): LatentShape | undefined {
  if (!architecture.latent) return undefined;
  const { head_dim: headDim, model_type: type } = config;
  const given = (field: 'kv_lora_rank' | 'qk_rope_head_dim') =>
    config[field] ?? refuse(field, `${type} caches so many channels of a token.`);
  const latent = { latentDim: given('kv_lora_rank'), rotaryDim: given('qk_rope_head_dim') };
  if (latent.rotaryDim % 2 !== 0) {
    throw invalid('qk_rope_head_dim', 'an even number', latent.rotaryDim, 'RoPE rotates channels in pairs.');
  }
  if (headDim != null && headDim !== latent.rotaryDim) {
    const hint = 'Heads of such models have no other size.';
    throw invalid('head_dim', `nothing, or qk_rope_head_dim, ${latent.rotaryDim}`, headDim, hint);
  }
  return latent;
}

/**
 * Factor of q.k before the softmax: 1 / sqrt of the channels of a head before they were absorbed, and with YaRN times the
 * square of its magnitude for `mscale_all_dim`. Source: `modeling_deepseek.py`, published with DeepSeek-V2 and V3.
 *
 * @example
 * latentScoreScale(config, latent, model.rope); // 0.1352... for DeepSeek-V3
 */
export function latentScoreScale(config: Config, { rotaryDim }: LatentShape, { scaling }: RopeShape): number {
  const plain = config.qk_nope_head_dim ?? refuse('qk_nope_head_dim', 'Scores are scaled by the size of a whole head.');
  const { mscale_all_dim: mscale } = config.rope_parameters ?? config.rope_scaling ?? {};
  const stretch = scaling?.type === 'yarn' && mscale ? magnitude(scaling.factor, mscale) : 1;
  return stretch ** 2 / Math.sqrt(plain + rotaryDim);
}

function refuse(field: string, hint: string): never {
  throw invalid(field, 'a whole number', undefined, hint);
}
