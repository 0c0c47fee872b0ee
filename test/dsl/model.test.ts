import { describe, expect, test } from 'vitest';
import { KvforgeError } from '../../dsl/errors.js';
import { frequenciesFor, layerShape, type ModelShape, modelFrom, presetModel, presetNames } from '../../dsl/model.js';

const smollm = {
  model_type: 'llama',
  hidden_size: 576,
  num_hidden_layers: 30,
  num_attention_heads: 9,
  num_key_value_heads: 3,
  max_position_embeddings: 8192,
};
const llama3 = {
  rope_type: 'llama3',
  factor: 8,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_max_position_embeddings: 8192,
};

function refusal(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof KvforgeError && error.code === 'invalid-model') return error.message;
    throw error;
  }
  throw new Error('nothing was refused');
}

/** [layers], 0 for full attention. */
function windowsOf(model: ModelShape): number[] {
  return Array.from({ length: model.layers }, (_, layer) => layerShape(model, layer).slidingWindow ?? 0);
}

describe('presets', () => {
  test.each([
    ['llama-3.1-8b', { layers: 32, heads: 32, kvHeads: 8, headDim: 128, groupSize: 4, width: 1024 }],
    ['smollm2-135m', { layers: 30, heads: 9, kvHeads: 3, headDim: 64, groupSize: 3, width: 192 }],
    ['llama-2-7b', { layers: 32, heads: 32, kvHeads: 32, headDim: 128, groupSize: 1, width: 4096 }],
    ['mistral-7b', { layers: 32, heads: 32, kvHeads: 8, headDim: 128, groupSize: 4, width: 1024 }],
    ['qwen2.5-7b', { layers: 28, heads: 28, kvHeads: 4, headDim: 128, groupSize: 7, width: 512 }],
    ['llama-3.2-1b', { layers: 16, heads: 32, kvHeads: 8, headDim: 64, groupSize: 4, width: 512 }],
    ['qwen3-8b', { layers: 36, heads: 32, kvHeads: 8, headDim: 128, groupSize: 4, width: 1024 }],
    ['phi-3-mini', { layers: 32, heads: 32, kvHeads: 32, headDim: 96, groupSize: 1, width: 3072 }],
    ['phi-4-mini', { layers: 32, heads: 24, kvHeads: 8, headDim: 128, groupSize: 3, width: 1024 }],
    ['gemma-2-9b', { layers: 42, heads: 16, kvHeads: 8, headDim: 256, groupSize: 2, width: 2048 }],
    ['gemma-3-4b', { layers: 34, heads: 8, kvHeads: 4, headDim: 256, groupSize: 2, width: 1024 }],
    ['pythia-1.4b', { layers: 24, heads: 16, kvHeads: 16, headDim: 128, groupSize: 1, width: 2048 }],
    ['stablelm-2-1.6b', { layers: 24, heads: 32, kvHeads: 32, headDim: 64, groupSize: 1, width: 2048 }],
    ['smollm3-3b', { layers: 36, heads: 16, kvHeads: 4, headDim: 128, groupSize: 4, width: 512 }],
  ])('%s has the shape of its published configuration', (name, shape) => {
    expect(presetModel(name)).toMatchObject({ name, ...shape });
  });

  test('positions and theta are those of the published configurations', () => {
    const rows = presetNames.map(presetModel).map(({ name, maxPositions, rope }) => [name, maxPositions, rope.theta]);
    expect(rows).toEqual([
      ['llama-3.1-8b', 131072, 500000],
      ['smollm2-135m', 8192, 100000],
      ['llama-2-7b', 4096, 10000],
      ['mistral-7b', 32768, 1000000],
      ['qwen2.5-7b', 32768, 1000000],
      ['llama-3.2-1b', 131072, 500000],
      ['qwen3-8b', 40960, 1000000],
      ['phi-3-mini', 4096, 10000],
      ['phi-4-mini', 131072, 10000],
      ['gemma-2-9b', 8192, 10000],
      ['gemma-3-4b', 131072, 1000000],
      ['pythia-1.4b', 2048, 10000],
      ['stablelm-2-1.6b', 4096, 10000],
      ['smollm3-3b', 65536, 5000000],
      ['deepseek-v3', 163840, 10000],
      ['deepseek-v2-lite', 163840, 10000],
    ]);
  });

  test.each([
    ['phi-3-mini', { type: 'default', rotaryDim: 96, pairing: 'half' }, [2047]],
    [
      'phi-4-mini',
      { type: 'longrope', rotaryDim: 96, attentionFactor: Math.sqrt(1 + Math.log(32) / Math.log(4096)) },
      [0],
    ],
    ['gemma-2-9b', { type: 'default', rotaryDim: 256 }, [4096, 0]],
    ['gemma-3-4b', { type: 'linear', theta: 1e6 }, [1024, 1024, 1024, 1024, 1024, 0]],
    ['pythia-1.4b', { rotaryDim: 32 }, [0]],
    ['stablelm-2-1.6b', { rotaryDim: 16 }, [0]],
    ['smollm3-3b', { type: 'default', rotaryDim: 128 }, [0]],
    ['qwen3-8b', { type: 'default', rotaryDim: 128 }, [0]],
  ])('%s: the RoPE of full attention, and the windows that repeat over its layers', (name, rope, repeated) => {
    const model = presetModel(name);
    expect(model.rope).toMatchObject(rope);
    expect(windowsOf(model)).toEqual(
      Array.from({ length: model.layers }, (_, layer) => repeated[layer % repeated.length]),
    );
  });

  test.each(['gpt-5', 'toString', '__proto__'])('the unknown name %s is refused with the list', (name) => {
    expect(refusal(() => presetModel(name))).toBe(
      'model: expected one of llama-3.1-8b, smollm2-135m, llama-2-7b, mistral-7b, qwen2.5-7b, llama-3.2-1b, ' +
        'qwen3-8b, phi-3-mini, phi-4-mini, gemma-2-9b, gemma-3-4b, pythia-1.4b, stablelm-2-1.6b, smollm3-3b, deepseek-v3, ' +
        `deepseek-v2-lite, got ${JSON.stringify(name)}. For any other model, give its Hugging Face config.json.`,
    );
  });
});

describe('RoPE frequencies', () => {
  test('pair j of the default kind turns by theta^(-2j/d) a token', () => {
    const { rope } = modelFrom({ ...smollm, rope_theta: 100000 });
    expect(rope).toMatchObject({ type: 'default', theta: 100000, rotaryDim: 64 });
    expect(rope.invFreq).toHaveLength(32);
    expect(rope.invFreq[0]).toBe(1);
    expect(rope.invFreq[16]).toBeCloseTo(1 / Math.sqrt(100000), 15);
  });

  // Worked out apart, with 40 decimal digits, from the published formula.
  test.each([
    ['fast', 20, 0.016560440080994446],
    ['fast', 28, 0.003211445994752591],
    ['blended', 29, 0.0021665707635033587],
    ['blended', 33, 0.0003126937503840651],
    ['slow', 40, 3.428102195952591e-5],
    ['slow', 63, 3.068925988914511e-7],
  ])('llama3 scaling of a %s pair (%i)', (_kind, pair, expected) => {
    const frequency = presetModel('llama-3.1-8b').rope.invFreq[pair]!;
    expect(Math.abs(frequency / expected - 1)).toBeLessThan(1e-14);
  });

  test('rope_scaling, its older `type` and the newer rope_parameters mean the same', () => {
    const { rope_type: type, ...rest } = llama3;
    const older = modelFrom({ ...smollm, rope_theta: 500000, rope_scaling: { type, ...rest } });
    expect(modelFrom({ ...smollm, rope_theta: 500000, rope_scaling: llama3 })).toEqual(older);
    expect(modelFrom({ ...smollm, rope_parameters: { ...llama3, rope_theta: 500000 } })).toEqual(older);
    expect(older.rope.scaling).toEqual({
      type: 'llama3',
      factor: 8,
      lowFreqFactor: 1,
      highFreqFactor: 4,
      originalMaxPositions: 8192,
    });
  });
});

test('what a configuration leaves out is derived', () => {
  const { num_key_value_heads: _, ...rest } = smollm;
  expect(modelFrom({ ...rest, rope_scaling: null, head_dim: null })).toMatchObject({
    name: 'llama',
    kvHeads: 9,
    headDim: 64,
    rope: { theta: 10000 },
  });
  expect(modelFrom({ ...smollm, hidden_size: 1000, head_dim: 80 }, 'mine')).toMatchObject({ name: 'mine', width: 240 });
});

test('a sliding window that is switched off or never reached is none', () => {
  const window = (config: object) => windowsOf(modelFrom({ ...smollm, num_hidden_layers: 2, ...config }));
  expect(window({ sliding_window: 8192 })).toEqual([0, 0]);
  expect(window({ sliding_window: 64, use_sliding_window: false })).toEqual([0, 0]);
  expect(window({ model_type: 'qwen2', sliding_window: 64 })).toEqual([0, 0]);
  expect(window({ model_type: 'qwen2', sliding_window: 64, use_sliding_window: true })).toEqual([0, 0]);
  expect(window({ model_type: 'mistral', sliding_window: null })).toEqual([0, 0]);
  expect(window({ model_type: 'mistral', sliding_window: 8192 })).toEqual([0, 0]);
  expect(window({ model_type: 'mistral', sliding_window: 8191 })).toEqual([8191, 8191]);
  expect(window({ model_type: 'mistral' })).toEqual([4096, 4096]);
});

describe('layers', () => {
  const gemma3 = { ...smollm, model_type: 'gemma3_text', num_hidden_layers: 6 };

  test('layers that do the same are one kind', () => {
    const model = presetModel('gemma-2-9b');
    expect(model.kinds).toEqual([{ rope: model.rope, slidingWindow: 4096 }, { rope: model.rope }]);
    expect(model.layerKinds.slice(0, 4)).toEqual([0, 1, 0, 1]);
    expect(presetModel('llama-3.1-8b').layerKinds).toEqual(Array(32).fill(0));
  });

  test('layer_types decides over the pattern of the architecture', () => {
    const types = ['full_attention', 'full_attention', 'sliding_attention'];
    const model = modelFrom({ ...gemma3, num_hidden_layers: 3, layer_types: types, sliding_window: 64 });
    expect(windowsOf(model)).toEqual([0, 0, 64]);
  });

  test('layers without RoPE have frequencies of 0, and the pairing and rotary size of the others', () => {
    const model = presetModel('smollm3-3b');
    const without = layerShape(model, 3).rope;
    expect(without).toMatchObject({ type: 'none', rotaryDim: 128, pairing: 'half', attentionFactor: 1 });
    expect(without.invFreq).toEqual(Array(64).fill(0));
    expect(frequenciesFor(without, 1e6)).toEqual(without.invFreq);
    expect(model.layerKinds.slice(0, 8)).toEqual([0, 0, 0, 1, 0, 0, 0, 1]);
  });

  test('the full attention of Cohere 2 is without RoPE', () => {
    const model = modelFrom({ ...smollm, model_type: 'cohere2', num_hidden_layers: 4 });
    expect(model.rope.type).toBe('none');
    expect(model.kinds.map(({ rope }) => [rope.type, rope.pairing])).toEqual([
      ['default', 'interleaved'],
      ['none', 'interleaved'],
    ]);
  });

  test('sliding layers of Gemma 3 have a RoPE of their own, which rope_scaling leaves alone', () => {
    const rope_scaling = { rope_type: 'linear', factor: 8 };
    const older = modelFrom({ ...gemma3, rope_theta: 1e6, rope_local_base_freq: 20000, rope_scaling });
    const newer = modelFrom({
      ...gemma3,
      rope_parameters: {
        full_attention: { ...rope_scaling, rope_theta: 1e6 },
        sliding_attention: { rope_type: 'default', rope_theta: 20000 },
      },
    });
    expect(newer).toEqual(older);
    expect(layerShape(older, 0).rope).toMatchObject({ type: 'default', theta: 20000 });
    expect(layerShape(older, 5).rope).toMatchObject({ type: 'linear', theta: 1e6, scaling: { factor: 8 } });
    expect(older.rope).toBe(layerShape(older, 5).rope);
  });

  test("Google's text_config of Gemma 3 leaves out most of its shape", () => {
    const published = {
      hidden_size: 2560,
      model_type: 'gemma3_text',
      num_hidden_layers: 34,
      rope_scaling: { factor: 8, rope_type: 'linear' },
      sliding_window: 1024,
    };
    expect(modelFrom(published, 'gemma-3-4b')).toEqual(presetModel('gemma-3-4b'));
  });

  test.each([-1, 42, 0.5, Number.NaN])('layer %d of 42 is refused', (layer) => {
    const message = `layer: expected a whole number from 0 to 41, got ${layer}. gemma-2-9b has 42 layers.`;
    expect(() => layerShape(presetModel('gemma-2-9b'), layer)).toThrow(
      expect.objectContaining({ code: 'wrong-use', message }),
    );
  });
});

describe('scores', () => {
  test('are scaled by what the architecture scales them by', () => {
    const scale = (config: object) => modelFrom({ ...smollm, ...config }).scoreScale;
    expect(scale({})).toBe(0.125);
    expect(scale({ model_type: 'gemma2', head_dim: 128, query_pre_attn_scalar: 144 })).toBeCloseTo(1 / 12, 15);
    expect(scale({ model_type: 'granite', attention_multiplier: 0.0078125 })).toBe(0.0078125);
    expect(scale({ model_type: 'granite' })).toBe(1);
    expect(scale({ query_pre_attn_scalar: 64, attention_multiplier: 0.125 })).toBe(0.125);
  });

  test('are capped in Gemma 2 alone', () => {
    const gemma2 = { ...smollm, model_type: 'gemma2' };
    expect(modelFrom(gemma2).scoreCap).toBe(50);
    expect(modelFrom({ ...gemma2, attn_logit_softcapping: 30 }).scoreCap).toBe(30);
    expect(modelFrom({ ...gemma2, attn_logit_softcapping: null })).not.toHaveProperty('scoreCap');
    expect(modelFrom(smollm)).not.toHaveProperty('scoreCap');
  });
});

test('beyond the original context dynamic and longrope have other frequencies', () => {
  const dynamic = modelFrom({ ...smollm, rope_scaling: { type: 'dynamic', factor: 2 } }).rope;
  expect(frequenciesFor(dynamic, 8192)).toBe(dynamic.invFreq);
  // Twice the length: the base grows by (2 * 2 - 1) ** (64 / 62).
  expect(frequenciesFor(dynamic, 16384)[31]! / dynamic.invFreq[31]!).toBeCloseTo(1 / 3, 12);
  const phi = presetModel('phi-4-mini').rope;
  expect(frequenciesFor(phi, 4096)).toBe(phi.invFreq);
  expect(phi.invFreq[47]! / frequenciesFor(phi, 4097)[47]!).toBeCloseTo(47.77, 12);
  const linear = presetModel('gemma-3-4b').rope;
  expect(frequenciesFor(linear, 1e6)).toBe(linear.invFreq);
});

test('Phi-3 has longrope under its older names', () => {
  const factors = { short_factor: Array(32).fill(1), long_factor: Array(32).fill(2) };
  const phi = (type: string) =>
    modelFrom({
      ...smollm,
      model_type: 'phi3',
      original_max_position_embeddings: 4096,
      rope_scaling: { type, ...factors },
    });
  expect(phi('su')).toEqual(phi('longrope'));
  expect(phi('yarn')).toEqual(phi('longrope'));
});
