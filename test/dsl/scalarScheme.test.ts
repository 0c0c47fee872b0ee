import { describe, expect, it } from 'vitest';
import {
  asymmetric,
  defineScheme,
  float8,
  geometryOf,
  hadamard,
  KvforgeError,
  lloydMax,
  modelFrom,
  perChannel,
  perHead,
  perToken,
  presetModel,
  type ScalarCodec,
  type Scheme,
  shard,
  symmetric,
  unrope,
} from '../../dsl/index.js';

const codec = symmetric({ bits: 4 });
const int4 = defineScheme({
  name: 'int4-turned',
  keys: [hadamard(), perToken(codec)],
  values: [hadamard(), perToken(codec)],
  sinks: 4,
  window: 64,
  stream: lloydMax({ bits: 4 }),
});
const llama = presetModel('llama-3.1-8b');

/** Code and message that a step is refused with. */
function refusalOf(step: () => unknown): string {
  try {
    step();
  } catch (error) {
    expect(error).toBeInstanceOf(KvforgeError);
    return `${(error as KvforgeError).code}: ${(error as KvforgeError).message}`;
  }
  return 'accepted';
}

const refusal = (change: object) => refusalOf(() => defineScheme({ ...int4, ...change } as Scheme));
const withCodec = (change: object) => ({ keys: [perToken({ ...codec, ...change } as ScalarCodec)] });
const withBlock = (block: unknown) => ({ values: [{ ...perToken(codec), block }] });

describe('a scheme of scalar codes', () => {
  it('has a quantizer alone or after one step, and other steps for keys than for values', () => {
    for (const keys of [[perHead(codec)], [hadamard(), perToken(codec)], [unrope(), perChannel(codec)]]) {
      expect(refusal({ keys })).toBe('accepted');
    }
    for (const values of [[perHead(codec)], [hadamard(), perToken(codec)]]) {
      expect(refusal({ values })).toBe('accepted');
    }
  });

  it('has a range of two ascending numbers, or none', () => {
    expect(refusal(withCodec({ range: [-1, 1] }))).toBe('accepted');
    expect(refusal(withCodec({ range: undefined }))).toBe('accepted');
    for (const [range, received] of [
      [[1, -1], '[1,-1]'],
      ['x', '"x"'],
      [[0], '[0]'],
      [[0, Number.NaN], '[0,null]'],
    ] as const) {
      expect(refusal(withCodec({ range }))).toBe(
        `invalid-scheme: keys[0].codec.range: expected two finite numbers, ascending, or nothing, got ${received}. Leave it out for the first and last level.`,
      );
    }
  });

  it('has no norm of a whole prompt for a scale: levels over it are for a known number of numbers', () => {
    const expected = 'expected a codec whose scale does not grow with the number of tokens, got "lloydMax".';
    const hint = 'Take symmetric, asymmetric or table, or let fewer tokens share a scale.';
    for (const quantizer of [perHead(lloydMax({ bits: 4 })), perChannel(lloydMax({ bits: 4 }))]) {
      expect(refusal({ keys: [hadamard(), quantizer] })).toBe(`invalid-scheme: keys[1].codec: ${expected} ${hint}`);
      expect(refusal({ values: [quantizer] })).toBe(`invalid-scheme: values[0].codec: ${expected} ${hint}`);
    }
    expect(refusal({ keys: [perChannel(lloydMax({ bits: 4 }), { tokens: 16 })] })).toBe('accepted');
  });

  it('is refused for another chain of keys', () => {
    const expected = 'invalid-scheme: keys: expected a quantizer, after unrope(), polar() or hadamard() or alone, got';
    expect(refusal({ keys: [unrope(), hadamard(), perToken(codec)] })).toBe(
      `${expected} ["rotary","transform","quantizer"]. Write perToken(...); outliers({...}) may follow it, or qjl() where hadamard() comes first.`,
    );
    expect(refusal({ keys: [perToken(codec), perToken(codec)] })).toBe(
      `${expected} ["quantizer","quantizer"]. Write perToken(...); outliers({...}) may follow it, or qjl() where hadamard() comes first.`,
    );
    expect(refusal({ keys: [{}, perToken(codec)] })).toBe(
      `${expected} [null,"quantizer"]. Write perToken(...); outliers({...}) may follow it, or qjl() where hadamard() comes first.`,
    );
  });

  it('is refused for another chain of values', () => {
    const expected = 'invalid-scheme: values: expected a quantizer, after hadamard() or alone, got';
    expect(refusal({ values: [unrope(), perToken(codec)] })).toBe(
      `${expected} ["rotary","quantizer"]. Write perToken(...); outliers({...}) may follow it.`,
    );
    expect(refusal({ values: shard.values })).toBe(
      `${expected} ["transform","normalize","vector-quantizer"]. Write perToken(...); outliers({...}) may follow it.`,
    );
    expect(refusal({ values: [] })).toBe(`${expected} []. Write perToken(...); outliers({...}) may follow it.`);
    expect(refusal({ values: undefined })).toBe(
      `${expected} undefined. Write perToken(...); outliers({...}) may follow it.`,
    );
    expect(refusal({ values: [null] })).toBe(`${expected} [null]. Write perToken(...); outliers({...}) may follow it.`);
  });

  it('does not go with keys, or values, of the other family', () => {
    expect(refusal({ keys: shard.keys })).toBe(
      'invalid-scheme: values: expected codecs of kind transform, normalize, vector-quantizer, got ["transform","quantizer"]. Write hadamard(), channelMax(), vq({...}).',
    );
  });

  it('has a codec that is one', () => {
    expect(refusal({ keys: [perToken(undefined as unknown as ScalarCodec)] })).toBe(
      'invalid-scheme: keys[0].codec: expected codecs of kind scalar, got [null]. Write perToken(symmetric({ bits: 4 })).',
    );
    expect(refusal({ keys: [hadamard(), perToken({ ...codec, kind: 'vector' } as unknown as ScalarCodec)] })).toBe(
      'invalid-scheme: keys[1].codec: expected codecs of kind scalar, got ["vector"]. Write perToken(symmetric({ bits: 4 })).',
    );
    expect(refusal(withCodec({ name: 'a b' }))).toBe(
      'invalid-scheme: keys[0].codec.name: expected a letter, then letters, digits, hyphens and underscores, at most 40, got "a b". The name is printed in generated text.',
    );
    expect(refusal(withCodec({ bits: 6 }))).toBe(
      'invalid-scheme: keys[0].codec.bits: expected 2, 3, 4 or 8, got 6. Shard ships 8.',
    );
    expect(refusal(withCodec({ levels: [1, 2] }))).toBe(
      'invalid-scheme: keys[0].codec.levels: expected a function of the head dimension, got [1,2]. Build the codec with defineCodec.',
    );
    expect(refusal(withCodec({ device: undefined }))).toBe(
      "invalid-scheme: keys[0].codec.device.scale: expected a function marked 'device', got undefined. Build the codec with defineCodec.",
    );
    expect(refusal(withCodec({ device: { ...codec.device, value: 3 } }))).toBe(
      "invalid-scheme: keys[0].codec.device.value: expected a function marked 'device', got 3. Build the codec with defineCodec.",
    );
    expect(refusal(withCodec({ device: { ...codec.device, offset: 0 } }))).toBe(
      "invalid-scheme: keys[0].codec.device.offset: expected a function marked 'device', or nothing, got 0. Build the codec with defineCodec.",
    );
  });

  it('has a name for the quantizer too', () => {
    expect(refusal({ keys: [{ ...perToken(codec), name: '' }] })).toBe(
      'invalid-scheme: keys[0].name: expected a letter, then letters, digits, hyphens and underscores, at most 40, got "". The name is printed in generated text.',
    );
  });

  it('shares a scale among tokens and channels that there are schedules for', () => {
    for (const tokens of [1, 16, 32, 64, 128, 'prompt']) {
      for (const channels of [1, 16, 32, 64, 128, 'head']) {
        expect(refusal(withBlock({ tokens, channels }))).toBe('accepted');
      }
    }
    const hint = 'Write perToken(...) or perChannel(...).';
    expect(refusal(withBlock({ tokens: 8, channels: 'head' }))).toBe(
      `invalid-scheme: values[0].block.tokens: expected 1, 16, 32, 64, 128 or 'prompt', got 8. ${hint}`,
    );
    expect(refusal(withBlock({ tokens: 'head', channels: 'head' }))).toBe(
      `invalid-scheme: values[0].block.tokens: expected 1, 16, 32, 64, 128 or 'prompt', got "head". ${hint}`,
    );
    expect(refusal(withBlock({ tokens: 1, channels: 256 }))).toBe(
      `invalid-scheme: values[0].block.channels: expected 1, 16, 32, 64, 128 or 'head', got 256. ${hint}`,
    );
    expect(refusal(withBlock({ tokens: 1, channels: Number.NaN }))).toBe(
      `invalid-scheme: values[0].block.channels: expected 1, 16, 32, 64, 128 or 'head', got NaN. ${hint}`,
    );
    expect(refusal(withBlock(undefined))).toBe(
      `invalid-scheme: values[0].block.tokens: expected 1, 16, 32, 64, 128 or 'prompt', got undefined. ${hint}`,
    );
  });

  it('has a stream without an offset, of either family', () => {
    const message =
      'invalid-scheme: stream.device.offset: expected nothing, as the stream stores a scale alone, got "a function". Take a codec without an offset, such as lloydMax or symmetric.';
    expect(refusal({ stream: asymmetric({ bits: 4 }) })).toBe(message);
    expect(refusalOf(() => defineScheme({ ...shard, stream: asymmetric({ bits: 4 }) }))).toBe(message);
  });
});

describe('the sizes of scalar codes', () => {
  it('are words of a head, and halves for each block that shares a scale', () => {
    const g = geometryOf(
      {
        ...int4,
        keys: [unrope(), perChannel(codec, { tokens: 32 })],
        values: [hadamard(), perToken(lloydMax({ bits: 3 }))],
      },
      llama,
    );
    expect(g).toMatchObject({ family: 'scalar', weighted: false, keyRowWords: 8 * 16, valueRowWords: 8 * 12 });
    expect(g.keys).toMatchObject({ bits: 4, headWords: 16, unrotated: true, turned: false });
    expect(g.keys).toMatchObject({ scaleTokens: 32, scaleChannels: 1, levelChannels: 32, scaleRowWords: 8 * 64 });
    expect(g.values).toMatchObject({ bits: 3, headWords: 12, unrotated: false, turned: true });
    expect(g.values).toMatchObject({ scaleTokens: 1, scaleChannels: 128, levelChannels: 128, scaleRowWords: 4 });
  });

  it('count tokens of a whole prompt as 0, and round odd blocks and broken words up', () => {
    const smol = presetModel('smollm2-135m');
    const g = geometryOf(
      { ...int4, keys: [perHead(codec)], values: [perToken(lloydMax({ bits: 3 }), { channels: 16 })] },
      smol,
    );
    expect(g.keys).toMatchObject({ headWords: 8, scaleTokens: 0, scaleChannels: 64, scaleRowWords: 2 });
    expect(g.values).toMatchObject({
      headWords: 6,
      scaleTokens: 1,
      scaleChannels: 16,
      levelChannels: 16,
      scaleRowWords: 6,
    });
    const narrow = modelFrom(
      {
        model_type: 'llama',
        hidden_size: 80,
        num_attention_heads: 1,
        num_hidden_layers: 1,
        max_position_embeddings: 64,
        head_dim: 80,
      },
      'narrow',
    );
    expect(geometryOf({ ...int4, keys: [perToken(lloydMax({ bits: 3 }))] }, narrow).keys.headWords).toBe(8);
  });

  it('are refused where a block would cross heads', () => {
    const phi = presetModel('phi-3-mini');
    const scheme = { ...int4, values: [hadamard(), perToken(codec, { channels: 64 })] } as const;
    expect(refusalOf(() => geometryOf(scheme, phi))).toBe(
      "invalid-scheme: values[1].block.channels: expected a number that divides the head dimension 96, or 'head', got 64. Scales do not cross heads.",
    );
    expect(refusalOf(() => geometryOf(scheme, llama))).toBe('accepted');
  });
});

describe('the levels of a codec of keys', () => {
  const refusalFor = (base: ScalarCodec, levels: readonly number[]) =>
    refusalOf(() =>
      geometryOf({ ...int4, keys: [perToken({ ...base, levels: () => levels }, { channels: 32 })] }, llama),
    );

  it('ascend where a code is found by bisection', () => {
    expect(refusalFor(lloydMax({ bits: 2 }), [0, 2, 1, 3])).toBe(
      'invalid-scheme: keys[0].codec.levels: expected 4 finite numbers, ascending, for 32 channels, got 2 before 1 at 2. Sort them, and name none twice.',
    );
    expect(refusalFor(symmetric({ bits: 2 }), [0, 2, 1, 3])).toBe('accepted');
    expect(refusalOf(() => geometryOf({ ...int4, keys: [perHead(float8({ format: 'e4m3' }))] }, llama))).toBe(
      'accepted',
    );
  });

  it('are one finite number a code in any order', () => {
    const expected = 'invalid-scheme: keys[0].codec.levels: expected 4 finite numbers for 32 channels, got';
    expect(refusalFor(symmetric({ bits: 2 }), [0, 2, 1])).toBe(
      `${expected} 3 numbers. Return one value for every code.`,
    );
    expect(refusalFor(symmetric({ bits: 2 }), [3, Infinity, 1, 0])).toBe(
      `${expected} Infinity at 1. Return one value for every code.`,
    );
  });
});
