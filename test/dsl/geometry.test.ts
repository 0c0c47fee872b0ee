import { describe, expect, it } from 'vitest';
import {
  channelMax,
  defineScheme,
  geometryOf,
  hadamard,
  type KvforgeError,
  type LowRankScheme,
  lloydMax,
  modelFrom,
  pca,
  presetModel,
  type Scheme,
  shard,
  unrope,
  vq,
} from '../../dsl/index.js';

const smol = presetModel('smollm2-135m');
const withKeys = (keys: LowRankScheme['keys']) => defineScheme({ ...shard, keys });

describe('geometryOf', () => {
  it('takes 3/16 of the width, in sixteens, as the automatic rank', () => {
    expect(geometryOf(shard, presetModel('llama-3.1-8b')).rank).toBe(192);
    expect(geometryOf(shard, smol).rank).toBe(32);
    expect(geometryOf(shard, presetModel('llama-2-7b')).rank).toBe(768);
  });

  it('places each group of components in whole words, the last one shorter', () => {
    const g = geometryOf(withKeys([unrope(), pca({ rank: 80, bits: [6, 2], group: 64 })]), smol);
    expect(g.keyGroups).toEqual([
      { index: 0, firstComponent: 0, components: 64, bits: 6, firstWord: 0, words: 12 },
      { index: 1, firstComponent: 64, components: 16, bits: 2, firstWord: 12, words: 1 },
    ]);
    expect(g.keyRowWords).toBe(13);
  });

  it('refuses what the model cannot carry, with the path and both numbers', () => {
    const wide = withKeys([unrope(), pca({ rank: 256, bits: 4, group: 64 })]);
    expect(() => geometryOf(wide, smol)).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: keys[1].rank: expected at most 192 (the width of smollm2-135m), got 256. Lower the rank, or write rank: 'auto'.]`,
    );
    const twoWidths = withKeys([unrope(), pca({ rank: 'auto', bits: [4, 4], group: 64 })]);
    expect(() => geometryOf(twoWidths, smol)).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: keys[1].bits: expected 1 widths (rank 32 of smollm2-135m in groups of 64), got 2. Give one width a group, or one for all.]`,
    );
    const config = {
      model_type: 'llama',
      hidden_size: 96,
      num_attention_heads: 2,
      num_hidden_layers: 1,
      max_position_embeddings: 64,
    };
    const eights = defineScheme({ ...shard, values: [hadamard(), channelMax(), vq({ channels: 8, entries: 256 })] });
    expect(() => geometryOf(eights, modelFrom({ ...config, head_dim: 48 }, 'odd'))).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: values[2].channels: expected a number whose fourfold divides the head dimension 48, got 8. Four one-byte indices fill a word.]`,
    );
    expect(() => geometryOf(shard, modelFrom({ ...config, head_dim: 24 }, 'odd'))).toThrowErrorMatchingInlineSnapshot(
      `[KvforgeError: model.headDim: expected a multiple of 16, at most 256, got 24. Other head sizes have no schedule yet.]`,
    );
  });
});

describe('the scores of a model built by hand', () => {
  const refusal = (scores: { scoreScale?: number; scoreCap?: number }): string => {
    try {
      geometryOf(shard, { ...smol, ...scores });
    } catch (error) {
      return `${(error as KvforgeError).code}: ${(error as KvforgeError).message}`;
    }
    return 'accepted';
  };
  const expected = 'expected a number above 0 that float32 holds at full precision';

  it.each([Number.NaN, Number.POSITIVE_INFINITY, -1, 0, 1e-40, 1e-300, 1e39])('have no scale or cap of %d', (value) => {
    expect(refusal({ scoreScale: value })).toBe(
      `invalid-scheme: model.scoreScale: ${expected}, got ${value}. Most models have 1 / sqrt(headDim).`,
    );
    expect(refusal({ scoreCap: value })).toBe(
      `invalid-scheme: model.scoreCap: ${expected}, got ${value}. Leave it out for scores without a cap.`,
    );
  });

  it('have a scale over the cap that float32 holds', () => {
    expect(refusal({ scoreScale: 1e-20, scoreCap: 1e20 })).toBe(
      `invalid-scheme: model.scoreScale: ${expected}, over scoreCap too, got 1e-20 over 100000000000000000000. ` +
        'Most models have 1 / sqrt(headDim).',
    );
    expect(refusal({ scoreScale: 1, scoreCap: 1 })).toBe('accepted');
  });
});

describe('the heads of a model', () => {
  const refusal = (change: object): string => {
    try {
      geometryOf(shard, { ...smol, ...change });
    } catch (error) {
      return `${(error as KvforgeError).code}: ${(error as KvforgeError).message}`;
    }
    return 'accepted';
  };

  it('do not contradict one another', () => {
    const hint = 'Let modelFrom(config) or presetModel(name) make the model.';
    const size = (received: unknown) =>
      `invalid-scheme: model.headDim: expected a multiple of 16, at most 256, got ${received}. Other head sizes have no schedule yet.`;
    for (const headDim of [0, -16, 24, 272, '64', undefined]) expect(refusal({ headDim })).toBe(size(headDim));
    expect(refusal({ heads: 7 })).toBe(
      `invalid-scheme: model.heads: expected 9 (3 KV heads of 3 query heads), got 7. ${hint}`,
    );
    expect(refusal({ kvHeads: 0 })).toBe(
      `invalid-scheme: model.kvHeads: expected a whole number of at least 1, got 0. ${hint}`,
    );
    expect(refusal({ groupSize: 1.5 })).toBe(
      `invalid-scheme: model.groupSize: expected a whole number of at least 1, got 1.5. ${hint}`,
    );
    expect(refusal({ width: 128 })).toBe(
      `invalid-scheme: model.width: expected 192 (3 KV heads x 64), got 128. ${hint}`,
    );
    expect(refusal({})).toBe('accepted');
  });
});

describe('the levels of the stream', () => {
  const refusal = (levels: (headDim: number) => unknown): string => {
    const stream = { ...lloydMax({ bits: 2 }), levels } as Scheme['stream'];
    const model = { ...smol, name: 'of\nours' };
    try {
      geometryOf(defineScheme({ ...shard, stream }), model);
    } catch (error) {
      return `${(error as KvforgeError).code}: ${(error as KvforgeError).message}`;
    }
    return 'accepted';
  };
  const expected = 'invalid-scheme: stream.levels: expected 4 finite numbers, ascending, for 64 channels, got';

  it('are one finite number a code, ascending', () => {
    expect(refusal(() => [-1, 0, 1, 2])).toBe('accepted');
    expect(refusal(() => [-1, 0, 1])).toBe(`${expected} 3 numbers. Return one value for every code.`);
    expect(refusal(() => [0, 1, 2, Number.NaN])).toBe(`${expected} NaN at 3. Return one value for every code.`);
    expect(refusal(() => [0, 1, 2, 1e300])).toBe(`${expected} 1e+300 at 3. Return one value for every code.`);
    expect(refusal(() => [0, 1, 2, 65505])).toBe(
      'invalid-scheme: stream.levels: expected numbers up to 65504, which a scale of f16 leaves finite, got 65505 at 3. Let the scale hold the size.',
    );
    expect(refusal(() => [0, 2, 1, 3])).toBe(`${expected} 2 before 1 at 2. Sort them, and name none twice.`);
    expect(refusal(() => [0, 1, 1 + 1e-12, 3])).toBe(
      `${expected} 1 before 1.000000000001 at 2. Sort them, and name none twice.`,
    );
    expect(refusal(() => 'abcd')).toBe(`${expected} something else than an array. Return one value for every code.`);
    const fails = () => {
      throw new Error('no');
    };
    expect(refusal(fails)).toBe(`${expected} an exception: no. Return one value for every code.`);
  });
});
