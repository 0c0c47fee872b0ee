import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { recordIndex } from '../../codegen/plan/layout.js';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { emptyTensor, type HeadTensor, observedScores, tokenMasses, vectorAt } from '../../runtime/reference/index.js';
import { halfBits, halfValues, kinds, largestOf, lengths, numbers } from '../../runtime/verify/draws.js';
import {
  asFloats,
  cases,
  deviceNames,
  geometry,
  load,
  makeCase,
  openDevice,
  promptSetting,
  runKernel,
} from './harness.js';

const RUNS = 20;
const TILE = 32;

/** What the shared cases leave out: the largest head, and MHA with the smallest. */
const massCases = [
  ...cases,
  makeCase({ heads: 2, kvHeads: 1, headDim: 256, rank: 16, bits: 4, window: 3 }),
  makeCase({ heads: 2, kvHeads: 2, headDim: 16, rank: 16, bits: 4, sinks: 1, window: 2 }),
];

describe.each(deviceNames)('attention mass of tokens on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(massCases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const { scoreScale: scale, scoreCap: cap } = g.model;
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['mass_scores', 'mass_tokens']);
    });
    const kind = fc.constantFrom(...kinds);
    const draws = fc.record({
      tokens: fc.oneof(
        fc.constantFrom(1, 2),
        lengths(TILE, g.heads * g.headDim > 1000 ? 40 : 90).map((middle) => middle + 1),
      ),
      queries: fc.oneof(fc.constantFrom(1, 3), fc.integer({ min: 1, max: 12 })),
      after: fc.constantFrom(0, 0, 1, 5, 200),
      slidingWindow: fc.oneof(fc.constantFrom(0, 0, 1), fc.integer({ min: 2, max: 60 })),
      keys: kind,
      query: kind,
      seed: fc.nat({ max: 0xffff }),
    });

    test('is the sum of what its queries and heads give, each kernel by what it was given', async () => {
      await fc.assert(
        fc.asyncProperty(draws, async ({ tokens, queries, after, slidingWindow, seed, ...data }) => {
          const { record } = promptSetting(g, tokens);
          record[recordIndex('slidingWindow')] = slidingWindow;
          const keyBits = halfBits(numbers({ kind: data.keys, seed }, g.kvHeads * tokens, g.headDim));
          const queryBits = halfBits(numbers({ kind: data.query, seed: seed + 1 }, queries * g.heads, g.headDim));
          const call = Uint32Array.of(queries, after);
          const room = (count: number) => ({ bytes: count * 4 });
          const scored = await runKernel(
            kernels,
            'mass_scores',
            { tokens },
            { sequence: record, call, keys: keyBits, query: queryBits, scores: room(g.heads * queries * tokens) },
          );
          const scores = asFloats(scored.scores!).slice();
          const summed = await runKernel(
            kernels,
            'mass_tokens',
            {},
            { sequence: record, call, scores, masses: room(g.kvHeads * tokens) },
          );
          const masses = asFloats(summed.masses!);

          const keys = { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halfValues(keyBits) };
          const query = byHead(halfValues(queryBits), g.heads, queries, g.headDim);
          // To what float32 may lose of the sum.
          const absolute = (tensor: HeadTensor) => ({ ...tensor, data: tensor.data.map(Math.abs) });
          const sizes = observedScores(
            { keys: absolute(keys), queries: absolute(query) },
            { scale: scale * Math.LOG2E },
          ).data;
          const exponents = observedScores({ keys, queries: query }, { scale, cap }).data;
          exponents.forEach((score, at) => {
            const allowed = 1e-5 * sizes[at]! + (cap ? 1e-5 : 1e-30);
            expect(Math.abs(scores[at]! - score * Math.LOG2E)).toBeLessThanOrEqual(allowed);
          });

          const given = {
            rows: g.heads * queries,
            columns: tokens,
            data: Float64Array.from(scores, (s) => s * Math.LN2),
          };
          const wanted = tokenMasses(given, { kvHeads: g.kvHeads, queries, after, slidingWindow });
          const most = largestOf(wanted);
          wanted.forEach((mass, at) => {
            expect(Math.abs(masses[at]! - mass)).toBeLessThanOrEqual(2e-5 * most);
          });
        }),
        { numRuns: RUNS },
      );
    });
  });
});

/** [queries][heads][channels] as [heads][queries][channels]. */
function byHead(data: Float64Array, heads: number, queries: number, channels: number): HeadTensor {
  const tensor = emptyTensor(heads, queries, channels);
  for (let index = 0; index < queries; index++) {
    for (let head = 0; head < heads; head++) {
      const at = (index * heads + head) * channels;
      vectorAt(tensor, head, index).set(data.subarray(at, at + channels));
    }
  }
  return tensor;
}
