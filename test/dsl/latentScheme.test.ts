import { describe, expect, it } from 'vitest';
import { defaultTargets } from '../../codegen/generate.js';
import { generateFp16 } from '../../codegen/generateFp16.js';
import { halfPrecisionBytes, layoutSequence } from '../../codegen/plan/layout.js';
import {
  asymmetric,
  defineScheme,
  geometryOf,
  hadamard,
  int8,
  type KvforgeError,
  latentFp8,
  latentInt8,
  type ModelShape,
  modelFrom,
  outliers,
  perChannel,
  perToken,
  presetModel,
  type Scheme,
  symmetric,
  unrope,
} from '../../dsl/index.js';

const deepseek = presetModel('deepseek-v3');
const codec = symmetric({ bits: 8 });

/** The refusal of a changed latent-int8. */
function refusal(change: object, model: ModelShape = deepseek): string {
  try {
    geometryOf(defineScheme({ ...latentInt8, ...change } as Scheme), model);
  } catch (error) {
    return `${(error as KvforgeError).code}: ${(error as Error).message}`;
  }
  return 'accepted';
}

const plainConfig = {
  model_type: 'deepseek_v2',
  hidden_size: 96,
  num_hidden_layers: 1,
  num_attention_heads: 4,
  kv_lora_rank: 32,
  qk_nope_head_dim: 16,
  qk_rope_head_dim: 16,
  max_position_embeddings: 4096,
};

describe('a scheme of latents', () => {
  it('has a chain that codes latents', () => {
    const expected = 'invalid-scheme: latent: expected a quantizer, after hadamard() or alone, got';
    expect(refusal({ latent: [] })).toBe(`${expected} []. Write perToken(...).`);
    expect(refusal({ latent: [unrope(), perToken(codec)] })).toBe(
      `${expected} ["rotary","quantizer"]. Write perToken(...).`,
    );
    expect(refusal({ latent: 'exact' })).toBe(`${expected} "exact". Write perToken(...).`);
    expect(refusal({ latent: [hadamard(), perToken(asymmetric({ bits: 4 }), { channels: 64 })] })).toBe('accepted');
  });

  it('has a rotary part with codes of its own, or exact', () => {
    const expected = "invalid-scheme: rotary: expected a quantizer alone, or 'exact', got";
    expect(refusal({ rotary: undefined })).toBe(`${expected} undefined. Write [perToken(...)].`);
    expect(refusal({ rotary: [hadamard(), perToken(codec)] })).toBe(
      `${expected} ["transform","quantizer"]. Write [perToken(...)].`,
    );
    expect(refusal({ rotary: 'exact' })).toBe('accepted');
  });

  it('codes every token by itself', () => {
    expect(refusal({ latent: [perChannel(codec, { tokens: 32 })] })).toBe(
      'invalid-scheme: latent[0].block.tokens: expected 1, got 32. Write perToken(...).',
    );
    expect(refusal({ rotary: [perChannel(codec)] })).toBe(
      'invalid-scheme: rotary[0].block.tokens: expected 1, got "prompt". Write perToken(...).',
    );
    expect(refusal({ latent: [perToken(codec, { trim: 0.01 })] })).toBe(
      'invalid-scheme: latent[0].trim: expected nothing, got 0.01. Write perToken(...) without trim.',
    );
    expect(refusal({ latent: [perToken(codec), outliers({ cap: 1 })] })).toBe(
      'invalid-scheme: latent: expected no outliers, got ["quantizer","outliers"]. Leave them out: latents have none beside them.',
    );
  });

  it('has neither keys nor values beside latents', () => {
    const hint = 'A latent is key and value at once.';
    const { keys, values } = int8;
    expect(refusal({ keys })).toBe(`invalid-scheme: keys: expected nothing beside latent, got ["quantizer"]. ${hint}`);
    expect(refusal({ values })).toBe(
      `invalid-scheme: values: expected nothing beside latent, got ["quantizer"]. ${hint}`,
    );
  });

  it('has scales that do not cross the parts', () => {
    const odd = modelFrom({
      model_type: 'deepseek_v2',
      hidden_size: 96,
      num_hidden_layers: 1,
      num_attention_heads: 4,
      kv_lora_rank: 48,
      qk_nope_head_dim: 16,
      qk_rope_head_dim: 16,
      max_position_embeddings: 4096,
    });
    const hint = 'Scales do not cross from latents to rotary parts.';
    expect(refusal({}, odd)).toBe(
      `invalid-scheme: latent[0].block.channels: expected a number that divides the 48 channels of the latent, or 'head', got 128. ${hint}`,
    );
    expect(refusal({ rotary: [perToken(codec, { channels: 128 })] })).toBe(
      `invalid-scheme: rotary[0].block.channels: expected a number that divides the 64 channels of the rotary part, or 'head', got 128. ${hint}`,
    );
  });
});

describe('models', () => {
  it('with latents take schemes of latents, and no others', async () => {
    expect(refusal({}, presetModel('llama-3.1-8b'))).toBe(
      'invalid-scheme: model.latent: expected multi-head latent attention, as the scheme codes latents, got none in llama-3.1-8b. Take a scheme with keys and values, such as int8.',
    );
    const refused =
      'model.latent: expected keys and values for each KV head, got a latent of 512 channels for all heads. Take a scheme of latents, such as latent-int8.';
    expect(() => geometryOf(int8, deepseek)).toThrow(refused);
    await expect(generateFp16(deepseek, defaultTargets.cuda)).rejects.toThrow(refused);
  });

  it('have the shapes and the score scales of the published code', () => {
    expect(deepseek).toMatchObject({ layers: 61, heads: 128, kvHeads: 1, headDim: 576, groupSize: 128, width: 576 });
    expect(deepseek.latent).toEqual({ latentDim: 512, rotaryDim: 64 });
    expect(deepseek.rope).toMatchObject({ type: 'yarn', rotaryDim: 64, pairing: 'interleaved', attentionFactor: 1 });
    // softmax_scale = 192^-0.5 times yarn_get_mscale(40, mscale_all_dim)^2
    expect(deepseek.scoreScale).toBeCloseTo((0.1 * Math.log(40) + 1) ** 2 / Math.sqrt(192), 12);
    const lite = presetModel('deepseek-v2-lite');
    expect(lite.scoreScale).toBeCloseTo((0.0707 * Math.log(40) + 1) ** 2 / Math.sqrt(192), 12);
    expect(modelFrom({ ...plainConfig, num_key_value_heads: 4 }).scoreScale).toBe(1 / Math.sqrt(32));
  });

  it.each([
    [
      { kv_lora_rank: undefined },
      'kv_lora_rank: expected a whole number, got nothing. deepseek_v2 caches so many channels of a token.',
    ],
    [
      { qk_nope_head_dim: null },
      'qk_nope_head_dim: expected a whole number, got nothing. Scores are scaled by the size of a whole head.',
    ],
    [{ qk_rope_head_dim: 15 }, 'qk_rope_head_dim: expected an even number, got 15. RoPE rotates channels in pairs.'],
    [
      { head_dim: 128 },
      'head_dim: expected nothing, or qk_rope_head_dim, 16, got 128. Heads of such models have no other size.',
    ],
    [
      { num_key_value_heads: 1 },
      'num_key_value_heads: expected nothing, or 4, got 1. Models of type deepseek_v2 have a KV head for each query head.',
    ],
    [
      { model_type: 'deepseek_v3', rope_interleave: false },
      'rope_interleave: expected true, as in deepseek_v3, got false. Other pairings of such models are not supported.',
    ],
  ])('refuse a configuration with %o', (change, message) => {
    expect(() => modelFrom({ ...plainConfig, ...change })).toThrow(message);
  });

  it('put together by hand have to agree with themselves', () => {
    const changed = (change: object) => refusal({}, { ...deepseek, ...change });
    const hint = 'Let modelFrom(config) or presetModel(name) make the model.';
    expect(changed({ headDim: 512 })).toBe(
      `invalid-scheme: model.headDim: expected 576 (latent 512, rotary part 64), got 512. ${hint}`,
    );
    expect(changed({ kvHeads: 2 })).toBe(
      `invalid-scheme: model.kvHeads: expected 1, as all heads share a token, got 2. ${hint}`,
    );
    expect(changed({ groupSize: 1 })).toBe(
      `invalid-scheme: model.groupSize: expected 128, as all heads share a token, got 1. ${hint}`,
    );
    expect(changed({ latent: { latentDim: 520, rotaryDim: 64 } })).toBe(
      'invalid-scheme: model.latent.latentDim: expected a multiple of 16, at most 512, got 520. Other sizes have no schedule yet.',
    );
    expect(changed({ latent: { latentDim: 512, rotaryDim: 144 } })).toBe(
      'invalid-scheme: model.latent.rotaryDim: expected a multiple of 16, at most 128, got 144. Other sizes have no schedule yet.',
    );
  });
});

describe('bytes', () => {
  const bytesOf = (tokens: number, scheme: Scheme) =>
    layoutSequence(geometryOf(scheme, deepseek), { tokens, generated: 0 }).bytes;

  it('are those of one row a token: 1152 in f16', () => {
    expect(halfPrecisionBytes(geometryOf(latentInt8, deepseek), 1)).toBe(1152);
    // 512 + 4 scales, 64 + a scale and its padding; then FP8 with the rotary part in f16.
    expect(bytesOf(8192 + 256, latentInt8) - bytesOf(8192, latentInt8)).toBe(256 * (512 + 8 + 64 + 4));
    expect(bytesOf(8192 + 256, latentFp8) - bytesOf(8192, latentFp8)).toBe(256 * (512 + 8 + 128));
  });
});
