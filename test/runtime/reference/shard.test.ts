import { readFile } from 'node:fs/promises';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type ModelShape, modelFrom } from '../../../dsl/model.js';
import {
  attentionError,
  type Cache,
  decodeShard,
  emptyTensor,
  encodeShard,
  type HeadTensor,
  identityScore,
  lastQueries,
  meanOf,
  normalFrom,
  observe,
  observedWeights,
  queryWeights,
  rotate,
  type ShardOptions,
  type ShardParts,
  seededRandom,
  toHalf,
  unrotatedRows,
  vectorAt,
} from '../../../runtime/reference/index.js';
import { parseSafetensors, tensorValues } from '../../../runtime/safetensors.js';

const small = modelFrom({
  model_type: 'llama',
  hidden_size: 32,
  num_hidden_layers: 1,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 1024,
});
const options: ShardOptions = {
  rank: 6,
  bits: [4, 4],
  group: 4,
  channels: 4,
  entries: 16,
  iterations: 3,
  seed: 1,
  sinks: 4,
  window: 8,
};

function randomTensor(heads: number, tokens: number, channels: number, seed: number): HeadTensor {
  const random = seededRandom(seed);
  const tensor = emptyTensor(heads, tokens, channels);
  return { ...tensor, data: tensor.data.map(() => toHalf(normalFrom(random))) };
}

const randomCache = (tokens: number, seed = 1): Cache => ({
  keys: randomTensor(2, tokens, 8, seed),
  values: randomTensor(2, tokens, 8, seed + 1000),
});

const relative = (a: HeadTensor, b: HeadTensor) =>
  Math.sqrt(a.data.reduce((sum, x, i) => sum + (x - b.data[i]!) ** 2, 0) / a.data.reduce((sum, x) => sum + x ** 2, 0));

test('a middle of one token, a stream of one token and one kept token decode by hand', () => {
  const kept = { heads: 1, tokens: 1, channels: 2, data: Float64Array.of(5, 6) };
  const none = emptyTensor(1, 0, 2);
  const parts: ShardParts = {
    kvHeads: 1,
    headDim: 2,
    rope: { invFreq: [Math.PI / 2], pairing: 'half' },
    sinks: { keys: kept, values: kept },
    middle: {
      tokens: 1,
      firstPosition: 1,
      rank: 1,
      coefficientCodes: Int32Array.of(3),
      codeOffset: 0,
      coefficientScales: Float64Array.of(0.5),
      basisCodes: Int8Array.of(100, -50),
      basisScales: Float64Array.of(0.01),
      mean: Float64Array.of(1, 2),
      weights: Float64Array.of(1, 1),
      channels: 2,
      valueCodes: Uint16Array.of(1),
      codebook: Float64Array.of(9, 9, 0.5, 1),
      channelMax: Float64Array.of(2, 4),
    },
    stream: {
      tokens: 1,
      keyCodes: Uint16Array.of(1, 0),
      valueCodes: Uint16Array.of(1, 1),
      keyNorms: Float64Array.of(2),
      valueNorms: Float64Array.of(1),
      levels: Float64Array.of(-0.5, 0.5),
    },
    window: { keys: none, values: none },
  };
  const { keys, values } = decodeShard(parts);
  // Middle key before RoPE: (1, 2) + 1.5 * (1, -0.5) = (2.5, 1.25), then a quarter turn.
  const h = Math.SQRT2;
  const close = (expected: number[]) => expected.map((x) => expect.closeTo(x, 12));
  expect([...keys.data]).toEqual(close([5, 6, -1.25, 2.5, 0, h]));
  expect([...values.data]).toEqual(close([5, 6, 5 / h, -3 / h, 1 / h, 0]));
});

describe('encodeShard then decodeShard', () => {
  test('keeps sinks and window exactly, in order', () => {
    const cache = randomCache(40);
    const decoded = decodeShard(encodeShard(cache, small, options));
    for (const name of ['keys', 'values'] as const) {
      for (const token of [0, 3, 32, 39]) {
        expect(vectorAt(decoded[name], 1, token)).toEqual(vectorAt(cache[name], 1, token));
      }
      expect(vectorAt(decoded[name], 1, 4)).not.toEqual(vectorAt(cache[name], 1, 4));
    }
  });

  test('loses next to nothing at full rank, 8 bits and an entry for every value', () => {
    const cache = randomCache(60);
    const fine = { ...options, rank: 16, bits: [8, 8, 8, 8], entries: 256, iterations: 20 };
    const decoded = decodeShard(encodeShard(cache, small, fine));
    expect(relative(cache.keys, decoded.keys)).toBeLessThan(0.012);
    expect(relative(cache.values, decoded.values)).toBeLessThan(0.001);
  });

  test('codes the stream apart from the middle', () => {
    const cache = randomCache(60);
    const parts = encodeShard(cache, small, { ...options, stream: 48 });
    expect([parts.middle.tokens, parts.stream.tokens]).toEqual([0, 48]);
    const decoded = decodeShard(parts);
    expect(relative(cache.keys, decoded.keys)).toBeLessThan(0.02);
    expect(relative(cache.values, decoded.values)).toBeLessThan(0.02);
  });

  test('drops components that get no bits', () => {
    const cache = randomCache(60);
    const some = encodeShard(cache, small, { ...options, bits: [4, 0] });
    const fewer = encodeShard(cache, small, { ...options, rank: 4, bits: [4] });
    expect(decodeShard(some).keys).toEqual(decodeShard(fewer).keys);
  });

  test('gives as many finite tokens as it got, at every length', () => {
    fc.assert(
      fc.property(
        fc.nat(40),
        fc.nat(20),
        fc.constantFrom('random', 'zero', 'constant', 'outlier'),
        (tokens, stream, kind) => {
          const cache = randomCache(tokens, tokens);
          if (kind === 'zero') cache.keys.data.fill(0);
          if (kind === 'zero') cache.values.data.fill(0);
          if (kind === 'constant') cache.values.data.fill(2 ** -24);
          if (kind === 'outlier' && tokens > 0) cache.values.data[5] = 65504;
          if (kind === 'outlier' && tokens > 0) cache.keys.data[5] = -65504;
          const { keys, values } = decodeShard(encodeShard(cache, small, { ...options, stream }));
          return (
            keys.tokens === tokens &&
            keys.data.length === tokens * 16 &&
            [...keys.data, ...values.data].every(Number.isFinite)
          );
        },
      ),
      { numRuns: 60 },
    );
  });
});

describe('encodeShard with queries', () => {
  const cache = randomCache(80);
  const queries = randomTensor(4, 40, 8, 9);

  test('observes the last 32 of them', () => {
    const last = lastQueries(queries, 32);
    expect(encodeShard(cache, small, { ...options, queries })).toEqual(
      encodeShard(cache, small, { ...options, queries: last }),
    );
    expect(encodeShard(cache, small, { ...options, queries }).middle.weights).not.toEqual(
      encodeShard(cache, small, { ...options, queries: lastQueries(queries, 31) }).middle.weights,
    );
  });

  test("gives them the layer's sight", () => {
    const sliding = { rope: small.rope, slidingWindow: 12 };
    const model: ModelShape = { ...small, layers: 2, kinds: [...small.kinds, sliding], layerKinds: [0, 1] };
    const last = lastQueries(queries, 32);
    const [sinks, count] = [4, 68];
    for (const [layer, slidingWindow] of [undefined, 12].entries()) {
      const { middle } = encodeShard(cache, model, { ...options, queries, layer });
      const sums = observe({ ...cache, queries: last }, { scale: small.scoreScale, slidingWindow }, sinks, count);
      const { tokens, heads } = observedWeights(sums);
      const rows = unrotatedRows(cache.keys, sinks, count, small.rope);
      expect(middle.mean).toEqual(meanOf(rows, tokens).map(toHalf));
      expect(middle.weights).toEqual(queryWeights(last, 2, small.rope, heads).map(toHalf));
    }
    const [full, narrow] = [0, 1].map((layer) => encodeShard(cache, model, { ...options, queries, layer }).middle.mean);
    expect(narrow).not.toEqual(full);
  });
});

test.each([
  [{ bits: [4] }, '1 widths for 2 groups'],
  [{ rank: 17 }, 'rank 17 is not in 1 to 16'],
  [{ channels: 3 }, '3 channels a code do not divide a head of 8'],
  [{ entries: 65537 }, '65537 entries do not fit 16-bit codes'],
])('options that do not fit, %o, are refused', (change, message) => {
  expect(() => encodeShard(randomCache(20), small, { ...options, ...change })).toThrow(new RangeError(message));
});

test('a cache that is not finite is refused', () => {
  const cache = randomCache(20);
  cache.values.data[3] = Number.NaN;
  expect(() => encodeShard(cache, small, options)).toThrow(new RangeError('the cache is not finite'));
});

const { invFreq } = small.rope;
const variants: readonly [string, Partial<ShardParts>, Partial<ShardParts['middle']>][] = [
  ['as Shard codes it', {}, {}],
  ['with interleaved pairs', { rope: { invFreq, pairing: 'interleaved' } }, {}],
  ['with half of the channels rotated', { rope: { invFreq: invFreq.slice(0, 2), pairing: 'half' } }, {}],
  [
    'with mid-rise codes and weights',
    {},
    { codeOffset: 0.5, weights: Float64Array.from({ length: 16 }, (_, i) => 1 / (1 + i)) },
  ],
];

test.each(variants)('the closed-form identity gives the score of the decoded key, %s', (_name, change, middle) => {
  const encoded = encodeShard(randomCache(200), small, options);
  const parts = { ...encoded, ...change, middle: { ...encoded.middle, ...middle } };
  const { keys } = decodeShard(parts);
  const queries = randomTensor(1, 20, 8, 3);
  for (let index = 0; index < queries.tokens; index++) {
    const query = vectorAt(queries, 0, index);
    const queryPosition = 199 + 31 * index;
    const turned = rotate(query, queryPosition, parts.rope);
    for (const token of [0, 1, 77, parts.middle.tokens - 1]) {
      for (const kvHead of [0, 1]) {
        const key = vectorAt(keys, kvHead, options.sinks + token);
        const direct = turned.reduce((sum, x, i) => sum + x * key[i]!, 0);
        expect(Math.abs(identityScore(parts, { query, queryPosition, kvHead, token }) - direct)).toBeLessThan(1e-9);
      }
    }
  }
});

describe('real activations of SmolLM2-135M, layer 14', async () => {
  const bytes = await readFile(new URL('../../fixtures/smollm2-135m-kv.safetensors', import.meta.url));
  const { tensors, metadata } = parseSafetensors(bytes);
  const model: ModelShape = modelFrom(JSON.parse(metadata.get('config')!), 'smollm2-135m');
  const tensorOf = (name: string): HeadTensor => {
    const tensor = tensors.get(name)!;
    const [heads, tokens, channels] = tensor.shape as [number, number, number];
    return { heads, tokens, channels, data: tensorValues(tensor) };
  };
  const positions = Array.from({ length: 16 }, (_, index) => 2032 + index);

  test('compress to 4-bit coefficients of rank 32 and 2-bit values with an attention error of about a fifth', () => {
    const exact = { keys: tensorOf('layers.14.k'), values: tensorOf('layers.14.v') };
    const plain = tensorOf('layers.14.q');
    const queries = emptyTensor(plain.heads, plain.tokens, plain.channels);
    for (let head = 0; head < plain.heads; head++) {
      positions.forEach((position, index) => {
        vectorAt(queries, head, index).set(rotate(vectorAt(plain, head, index), position, model.rope));
      });
    }
    const parts = encodeShard(exact, model, {
      rank: 32,
      bits: [4],
      group: 64,
      channels: 4,
      entries: 256,
      iterations: 2,
      seed: 1,
      sinks: 4,
      window: 64,
    });
    const decoded = decodeShard(parts);
    const visible = positions.map((position) => position + 1);
    const error = attentionError({ queries, exact, decoded, visible });
    console.log(`Shard, rank 32, layer 14: attention error ${error.toFixed(4)}`);
    expect(error).toBeGreaterThan(0.15);
    expect(error).toBeLessThan(0.25);

    const query = vectorAt(plain, 8, 15);
    const key = vectorAt(decoded.keys, 2, 4 + 1234);
    const direct = vectorAt(queries, 8, 15).reduce((sum, x, i) => sum + x * key[i]!, 0);
    const witness = identityScore(parts, { query, queryPosition: 2047, kvHead: 2, token: 1234 });
    expect(Math.abs(witness - direct)).toBeLessThan(1e-9);
  });
});
