import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import type { ModelShape } from '../../dsl/model.js';
import type { Scheme } from '../../dsl/scheme.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { emptyTensor, observedScores, tokenMasses, vectorAt } from '../../runtime/reference/index.js';
import { halfValues, worstDifference } from '../../runtime/verify/draws.js';
import { cases, deviceNames, openDevice, targetOf } from '../stages/harness.js';
import { polarCases } from '../stages/polarCases.js';
import { scalarCases } from '../stages/scalarCases.js';
import { tiltCases } from '../stages/tiltCases.js';
import { halves } from './cacheCase.js';
import { latentSchemes, tinyLatents } from './latentCases.js';

interface Family {
  readonly family: string;
  readonly scheme: Scheme;
  readonly model: ModelShape;
  /** Tokens of the middle that are kept, from its first on. */
  readonly middle: readonly number[];
}

const scattered = [1, 2, 5, 30, 36];
const families: readonly Family[] = [
  // Keys coded before RoPE keep the order of their places.
  { family: 'low-rank', ...cases[0]!, middle: [0, 1, 2] },
  { family: 'tilt', ...tiltCases[0]!, middle: [0, 1, 2] },
  { family: 'scalar', ...scalarCases[0]!, middle: scattered },
  { family: 'scalar with capped scores', ...scalarCases.find(({ model }) => model.scoreCap)!, middle: scattered },
  // Intervals of 16 tokens, the last one of five.
  { family: 'polar', ...polarCases[0]!, middle: Array.from({ length: 21 }, (_, token) => 16 + token) },
  { family: 'latent', scheme: latentSchemes[1]!, model: tinyLatents, middle: scattered },
];

describe.each(deviceNames)('weights and eviction on %s', (name) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(name);
  });
  afterAll(() => device?.close());

  test.each(families)('serve a $family scheme', async ({ family, scheme, model, middle }) => {
    const kernels = await LoadedKernels.load(device, await generate(scheme, model, targetOf(device)));
    const g = kernels.geometry;
    const tokens = g.scheme.sinks + 37 + g.scheme.window;
    const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 8 });
    const pair = (count: number, seed: number) => {
      const keys = halves(count * g.width, seed);
      return family === 'latent' ? { keys } : { keys, values: halves(count * g.width, seed + 1) };
    };
    const queries = halves(tokens * g.heads * g.headDim, 9);
    await cache.prefill(0, { ...pair(tokens, 1), tokens, ...(g.weighted || family === 'tilt' ? { queries } : {}) });
    const next = pair(6, 3);
    await cache.append(next.keys, next.values, { tokens: 6 });
    const before = await cache.decompress(0);
    const stream = [37, 39, 42];
    const kept = [...middle, ...stream].map((token) => g.scheme.sinks + token);
    await cache.keep(0, kept);
    expect(await cache.lengths(0)).toMatchObject({ evictedTokens: 43 - kept.length, streamTokens: 3 });
    const after = await cache.decompress(0);
    const rowOf = (data: Uint16Array, held: number, token: number) =>
      Array.from({ length: g.kvHeads }, (_, head) => {
        const from = (head * held + token) * g.headDim;
        return [...data.subarray(from, from + g.headDim)];
      });
    for (const [index, token] of kept.entries()) {
      for (const operand of ['keys', 'values'] as const) {
        if (before[operand].length === 0) continue;
        const found = rowOf(after[operand], after.tokens, g.scheme.sinks + index);
        expect(found).toEqual(rowOf(before[operand], before.tokens, token));
      }
    }

    const bits = halves(2 * g.heads * g.headDim, 7);
    const { weights } = await cache.tokenWeights(0, bits, { queries: 2 });
    const keys = { ...emptyTensor(g.kvHeads, after.tokens, g.headDim), data: halfValues(after.keys) };
    const query = emptyTensor(g.heads, 2, g.headDim);
    const given = halfValues(bits);
    for (let row = 0; row < 2 * g.heads; row++) {
      const own = given.subarray(row * g.headDim, (row + 1) * g.headDim);
      vectorAt(query, row % g.heads, Math.floor(row / g.heads)).set(own);
    }
    const { scoreScale: scale, scoreCap: cap } = g.model;
    const scores = observedScores({ keys, queries: query }, { scale, cap });
    const wanted = tokenMasses(scores, { kvHeads: g.kvHeads, queries: 2, after: 0, slidingWindow: 0 });
    expect(worstDifference(weights, wanted).by).toBeLessThan(1e-4);
    await cache.release();
  });
});
