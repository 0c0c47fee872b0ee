import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { asymmetric, lloydMax, midRise, modelFrom, nf4, symmetric } from '../../../dsl/index.js';
import {
  type Cache,
  decodeScalar,
  decodeSequence,
  emptyTensor,
  encodeBlock,
  encodeScalar,
  type HeadTensor,
  headRows,
  nearestLevel,
  normalFrom,
  type ScalarCodes,
  type ScalarCoding,
  type ScalarOptions,
  type ScalarParts,
  type ScalarRule,
  seededRandom,
  toHalf,
  vectorAt,
} from '../../../runtime/reference/index.js';
import { halfRounding } from '../../../runtime/verify/judge.js';

const small = modelFrom({
  model_type: 'llama',
  hidden_size: 32,
  num_hidden_layers: 1,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 1024,
});

/** Steps between -1 and 1, the code below them never taken. */
const symmetricRule = (bits: number): ScalarRule => {
  const largest = 2 ** (bits - 1) - 1;
  const levels = Array.from({ length: 2 ** bits }, (_, code) => (code - largest - 1) / largest);
  return { levels: levels.with(0, Number.NEGATIVE_INFINITY), offset: 'none', scale: 'largest' };
};
const asymmetricRule = (bits: number): ScalarRule => ({
  levels: Array.from({ length: 2 ** bits }, (_, code) => code / (2 ** bits - 1)),
  offset: 'least',
  scale: 'largest',
});

const midRiseRule = (bits: number): ScalarRule => ({
  levels: Array.from({ length: 2 ** bits }, (_, code) => (code + 0.5) / 2 ** bits),
  offset: 'least',
  scale: 'largest',
});

function randomTensor(tokens: number, seed: number): HeadTensor {
  const random = seededRandom(seed);
  const tensor = emptyTensor(2, tokens, 8);
  return { ...tensor, data: tensor.data.map(() => toHalf(normalFrom(random))) };
}
const randomCache = (tokens: number): Cache => ({ keys: randomTensor(tokens, 1), values: randomTensor(tokens, 2) });

const none = emptyTensor(1, 0, 2);
const noTokens = new Float64Array();
/** A cache of one head of two channels, a quarter turn a position, that holds a middle from position 1 on and nothing else. */
function middleAlone(keys: ScalarCodes, values: ScalarCodes, tokens: number): ScalarParts {
  return {
    kvHeads: 1,
    headDim: 2,
    rope: { invFreq: [Math.PI / 2], pairing: 'half' },
    sinks: { keys: none, values: none },
    middle: { tokens, firstPosition: 1, keys, values },
    stream: {
      tokens: 0,
      keyCodes: new Uint16Array(),
      valueCodes: new Uint16Array(),
      keyNorms: noTokens,
      valueNorms: noTokens,
      levels: noTokens,
    },
    window: { keys: none, values: none },
  };
}

const close = (expected: number[]) => expected.map((x) => expect.closeTo(x, 12));

describe('a middle decodes by hand', () => {
  test('with offsets, a scale for two tokens of a channel, the last block short', () => {
    const codes: ScalarCodes = {
      form: 'cached',
      block: { tokens: 2, channels: 1 },
      codes: Uint8Array.of(0, 2, 1, 1, 2, 0),
      scales: Float64Array.of(2, 4, 1, 0.5),
      offsets: Float64Array.of(1, -1, 0, 10),
      values: Float64Array.of(0, 0.5, 1),
    };
    const { keys, values } = decodeScalar(middleAlone(codes, codes, 3));
    expect([...keys.data]).toEqual([1, 3, 2, 1, 1, 10]);
    expect(values.data).toEqual(keys.data);
  });

  test('keys before RoPE, values after Hadamard, a scale for all of a prompt', () => {
    const whole = {
      block: { tokens: 'prompt', channels: 2 },
      codes: Uint8Array.of(1, 0, 1, 1),
      values: Float64Array.of(-1, 1),
    } as const;
    const keys: ScalarCodes = { ...whole, form: 'unrotated', scales: Float64Array.of(3) };
    const values: ScalarCodes = { ...whole, form: 'turned', scales: Float64Array.of(2) };
    const decoded = decodeSequence(middleAlone(keys, values, 2));
    // (3, -3) a quarter turn on, (3, 3) a half turn.
    expect([...decoded.keys.data]).toEqual(close([3, 3, -3, -3]));
    const h = 2 * Math.SQRT2;
    expect([...decoded.values.data]).toEqual(close([0, h, h, 0]));
  });
});

describe('a block', () => {
  test('is coded from its least number on, over its largest magnitude', () => {
    expect(encodeBlock(Float64Array.of(4, 1, 2.4), asymmetricRule(2))).toEqual({
      codes: Uint8Array.of(3, 0, 1),
      scale: 3,
      offset: 1,
    });
  });

  test('is coded over its length', () => {
    const rule: ScalarRule = { levels: [-0.5, 0.5, 0.8], offset: 'none', scale: 'norm' };
    expect(encodeBlock(Float64Array.of(3, -4), rule)).toEqual({ codes: Uint8Array.of(1, 0), scale: 5, offset: 0 });
  });

  test('that is flat, or too small for float16, has the codes nearest to zero', () => {
    expect(encodeBlock(Float64Array.of(7, 7), asymmetricRule(4))).toEqual({
      codes: Uint8Array.of(0, 0),
      scale: 0,
      offset: 7,
    });
    expect(encodeBlock(Float64Array.of(1e-9, -1e-9), symmetricRule(4))).toEqual({
      codes: Uint8Array.of(8, 8),
      scale: 0,
      offset: 0,
    });
  });

  test('beyond float16 saturates', () => {
    const { scale, codes } = encodeBlock(Float64Array.of(-1e5, 1e5, 0), symmetricRule(2));
    expect([scale, ...codes]).toEqual([65504, 1, 3, 2]);
  });
});

const magnitudes = fc.constantFrom(1e-4, 1, 1000);
const blocks = fc.tuple(
  fc.constantFrom(2, 3, 4, 8),
  fc
    .array(fc.double({ min: -1, max: 1, noNaN: true }), { minLength: 1, maxLength: 64 })
    .chain((x) => magnitudes.map((factor) => Float64Array.from(x, (number) => toHalf(number * factor)))),
);

describe('what a number loses is at most half a step, and the rounding of what is stored', () => {
  test('with an offset', () => {
    fc.assert(
      fc.property(blocks, ([bits, x]) => {
        const { codes, scale, offset } = encodeBlock(x, asymmetricRule(bits));
        const bound = scale / (2 ** bits - 1) / 2 + halfRounding(scale) + halfRounding(offset);
        return x.every((number, i) => {
          const decoded = offset + (scale * codes[i]!) / (2 ** bits - 1);
          return Math.abs(number - decoded) <= bound * (1 + 1e-12);
        });
      }),
    );
  });

  test('without', () => {
    fc.assert(
      fc.property(blocks, ([bits, x]) => {
        const rule = symmetricRule(bits);
        const { codes, scale } = encodeBlock(x, rule);
        const bound = scale / (2 ** (bits - 1) - 1) / 2 + halfRounding(scale);
        return x.every((number, i) => Math.abs(number - scale * rule.levels[codes[i]!]!) <= bound * (1 + 1e-12));
      }),
    );
  });
});

/** Built-in codecs, each with the rule that its device functions must follow. */
const ruled = [
  ...([2, 3, 4, 8] as const).flatMap((bits) => [
    { codec: symmetric({ bits }), rule: symmetricRule(bits) },
    { codec: asymmetric({ bits }), rule: asymmetricRule(bits) },
    { codec: midRise({ bits }), rule: midRiseRule(bits) },
    {
      codec: lloydMax({ bits }),
      rule: { levels: lloydMax({ bits }).levels(64), offset: 'none', scale: 'norm' } as ScalarRule,
    },
  ]),
  { codec: nf4(), rule: { levels: nf4().levels(64), offset: 'none', scale: 'largest' } as ScalarRule },
];

test.each(ruled)('the device functions of $codec.name, $codec.bits bits, follow its rule', ({ codec, rule }) => {
  const { device, bits } = codec;
  const table = Float32Array.from(codec.levels(64));
  const levels = Float64Array.from(rule.levels);
  fc.assert(
    fc.property(blocks, ([, x]) => {
      const wanted = encodeBlock(x, rule);
      const offset = device.offset?.(Math.min(...x), Math.max(...x)) ?? 0;
      const rest = x.map((number) => number - offset);
      const largest = rest.reduce((most, y) => Math.max(most, Math.abs(y)), 0);
      const sum = rest.reduce((total, y) => total + (largest > 0 ? (y / largest) ** 2 : 0), 0);
      expect({ offset, scale: device.scale(sum, largest) }).toEqual({ offset: wanted.offset, scale: wanted.scale });
      for (const y of rest) {
        const quotient = wanted.scale > 0 ? y / wanted.scale : 0;
        const code = device.code(quotient, (index) => table[index]!, bits);
        const distance = (at: number) => Math.abs(levels[at]! - quotient);
        // Midpoints are float32 in the device functions.
        expect(distance(code) - distance(nearestLevel(quotient, levels))).toBeLessThan(
          1e-6 * Math.abs(quotient) + 1e-12,
        );
      }
    }),
  );
});

const codings: readonly [string, ScalarCoding, ScalarCoding][] = [
  [
    'a scale a token, after Hadamard',
    { rule: symmetricRule(8), form: 'turned', block: { tokens: 1, channels: 8 } },
    { rule: symmetricRule(8), form: 'turned', block: { tokens: 1, channels: 8 } },
  ],
  [
    'a scale a channel of 16 tokens, values by four channels',
    { rule: asymmetricRule(8), form: 'cached', block: { tokens: 16, channels: 1 } },
    { rule: asymmetricRule(8), form: 'cached', block: { tokens: 1, channels: 4 } },
  ],
  [
    'keys before RoPE, a scale a channel; values with a scale a head',
    { rule: symmetricRule(8), form: 'unrotated', block: { tokens: 'prompt', channels: 1 } },
    { rule: asymmetricRule(8), form: 'cached', block: { tokens: 'prompt', channels: 8 } },
  ],
  [
    'the signs of what keys of 8 bits leave',
    {
      rule: symmetricRule(8),
      form: 'turned',
      block: { tokens: 1, channels: 8 },
      projection: [1, -1, -1, 1, 1, 1, -1, 1],
    },
    { rule: symmetricRule(8), form: 'turned', block: { tokens: 1, channels: 8 } },
  ],
  [
    'keys as radius and angle, a scale a channel of 16 tokens',
    { rule: midRiseRule(8), form: 'polar', block: { tokens: 16, channels: 1 } },
    { rule: midRiseRule(8), form: 'cached', block: { tokens: 1, channels: 8 } },
  ],
];

describe.each(codings)('encodeScalar then decodeScalar, %s', (_name, keys, values) => {
  const options: ScalarOptions = { keys, values, sinks: 4, window: 8 };

  test('keeps sinks and window exactly, and loses next to nothing with 8 bits', () => {
    const cache = randomCache(61);
    const decoded = decodeScalar(encodeScalar(cache, small, options));
    for (const name of ['keys', 'values'] as const) {
      for (const token of [0, 3, 53, 60]) {
        expect(vectorAt(decoded[name], 1, token)).toEqual(vectorAt(cache[name], 1, token));
      }
      for (let head = 0; head < 2; head++) {
        const [exact, own] = [headRows(cache[name], head).data, headRows(decoded[name], head).data];
        const error = Math.max(...exact.map((x, i) => Math.abs(x - own[i]!)));
        // Magnitudes reach 4: half a step of 8 bits is 0.016, and RoPE and Hadamard sum up several of them.
        expect(error).toBeGreaterThan(0);
        expect(error).toBeLessThan(0.05);
      }
    }
  });

  test('gives as many finite tokens as it got, at every length', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 48 }), fc.integer({ min: 0, max: 20 }), (tokens, stream) => {
        const decoded = decodeScalar(encodeScalar(randomCache(tokens), small, { ...options, stream }));
        return decoded.keys.tokens === tokens && decoded.values.data.every(Number.isFinite);
      }),
    );
  });
});

test('scales are of consecutive tokens and channels of one head, the last block short', () => {
  const cache = randomCache(17);
  const coding = { rule: symmetricRule(4), form: 'cached', block: { tokens: 2, channels: 4 } } as const;
  const { middle } = encodeScalar(cache, small, { keys: coding, values: coding, sinks: 4, window: 8 });
  expect(middle).toMatchObject({ tokens: 5, firstPosition: 4 });
  const expected: number[] = [];
  for (const tokens of [[4, 5], [6, 7], [8]]) {
    for (const head of [0, 1]) {
      for (const first of [0, 4]) {
        const all = tokens.flatMap((token) => [...vectorAt(cache.keys, head, token).subarray(first, first + 4)]);
        expected.push(Math.max(...all.map(Math.abs)));
      }
    }
  }
  expect([...middle.keys.scales]).toEqual(expected);
  expect(middle.keys.offsets).toBeUndefined();
});

test.each([
  [{ values: { form: 'unrotated' } }, 'values have no RoPE to take off'],
  [{ values: { form: 'polar' } }, 'values have no pairs that RoPE turns'],
  [{ keys: { form: 'polar' } }, 'radii and angles have no scale in common'],
  [{ keys: { block: { tokens: 1, channels: 3 } } }, '3 channels of a scale do not divide a head of 8'],
] as const)('a coding that cannot be is refused: %j', (change, message) => {
  const coding: ScalarCoding = { rule: symmetricRule(4), form: 'cached', block: { tokens: 1, channels: 8 } };
  const { keys = {}, values = {} } = change as Partial<Record<'keys' | 'values', Partial<ScalarCoding>>>;
  const options = { keys: { ...coding, ...keys }, values: { ...coding, ...values }, sinks: 4, window: 8 };
  expect(() => encodeScalar(randomCache(20), small, options)).toThrow(new RangeError(message));
});

test('a cache that is not finite is refused', () => {
  const cache = randomCache(20);
  cache.values.data[5] = Number.NaN;
  const coding: ScalarCoding = { rule: symmetricRule(4), form: 'cached', block: { tokens: 1, channels: 8 } };
  expect(() => encodeScalar(cache, small, { keys: coding, values: coding, sinks: 4, window: 8 })).toThrow(
    new RangeError('the cache is not finite'),
  );
});
