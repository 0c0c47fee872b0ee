import { describe, expect, it } from 'vitest';
import { channelPairs, emptyTensor, queryWeights, rotate } from '../../../runtime/reference/index.js';

describe('channelPairs', () => {
  it('joins the channels that turn together, and the rest by halves', () => {
    expect(channelPairs({ invFreq: [1, 1], pairing: 'half' }, 4)).toEqual([
      [0, 2],
      [1, 3],
    ]);
    expect(channelPairs({ invFreq: [1], pairing: 'interleaved' }, 6)).toEqual([
      [0, 1],
      [2, 4],
      [3, 5],
    ]);
  });
});

describe('queryWeights', () => {
  const rope = { invFreq: [1, 0.1], pairing: 'half' } as const;

  it('is the root mean square of a pair over the largest, floored at a thousandth', () => {
    const queries = { ...emptyTensor(1, 2, 4), data: Float64Array.of(3, 0, 5, 0, 4, 0, 0, 1e-5) };
    const weights = queryWeights(queries, 1, rope);
    expect([...weights]).toEqual([1, 1e-3, 1, 1e-3]);
  });

  it('takes the heads of a group together, and compares KV heads with each other', () => {
    const queries = emptyTensor(4, 1, 4);
    queries.data.set([2, 2, 2, 2], 0);
    queries.data.set([1, 1, 1, 1], 12);
    const weights = queryWeights(queries, 2, rope);
    expect(weights[0]).toBe(1);
    expect(weights[4]).toBeCloseTo(0.5, 12);
  });

  it('is the same for queries before and after RoPE', () => {
    const plain = { ...emptyTensor(1, 3, 4), data: Float64Array.from({ length: 12 }, (_, i) => Math.sin(i * i)) };
    const turned = emptyTensor(1, 3, 4);
    for (let token = 0; token < 3; token++) {
      turned.data.set(rotate(plain.data.slice(token * 4, token * 4 + 4), 100 + token, rope), token * 4);
    }
    const [before, after] = [queryWeights(plain, 1, rope), queryWeights(turned, 1, rope)];
    for (const [i, weight] of before.entries()) expect(after[i]).toBeCloseTo(weight, 12);
  });

  it('is 1 everywhere for queries of zero', () => {
    expect([...queryWeights(emptyTensor(2, 1, 4), 2, rope)]).toEqual(Array.from({ length: 8 }, () => 1));
  });
});
