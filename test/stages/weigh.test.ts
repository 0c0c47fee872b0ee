import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { recordIndex } from '../../codegen/plan/layout.js';
import { observedQueries } from '../../dsl/stages/observe.js';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { channelPairs, emptyTensor, lastQueries, queryWeights, vectorAt } from '../../runtime/reference/index.js';
import {
  draws,
  halfBits,
  halfValues,
  lengths,
  numbers,
  strayWrites,
  untouched,
  worstDifference,
} from '../../runtime/verify/draws.js';
import { halfRounding } from '../../runtime/verify/judge.js';
import {
  asFloats,
  asHalfBits,
  cases,
  deviceNames,
  geometry,
  load,
  openDevice,
  partBytes,
  promptSetting,
  runKernel,
} from './harness.js';

const weighted = cases.filter((one) => geometry(one).weighted);
/** A hundred draws a backend, however many of the cases are weighted. */
const RUNS = Math.ceil(100 / weighted.length);

describe.each(deviceNames)('weights of keys on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  }, 60_000);
  afterAll(() => device?.close());

  describe.each(weighted)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const pairs = channelPairs(g.model.rope, g.headDim);
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['weigh_queries', 'weigh_finish']);
    }, 60_000);

    test('are the root mean squares of the last queries, pair by pair, above zero', async () => {
      const lengthsFromOne = lengths(observedQueries, 70).map((tokens) => Math.max(1, tokens));
      await fc.assert(
        fc.asyncProperty(draws(lengthsFromOne), async ({ tokens: queryTokens, kind, seed }) => {
          const { layout, record } = promptSetting(g, g.scheme.sinks + 1 + g.scheme.window);
          record[recordIndex('queryTokens')] = queryTokens;
          const queries = halfBits(numbers({ kind, seed }, g.heads * queryTokens, g.headDim));
          const given = { ...emptyTensor(g.heads, queryTokens, g.headDim), data: halfValues(queries) };
          const exact = lastQueries(given, observedQueries);
          // One head at least has the factor 1, another may have next to none.
          const headFactors = Float32Array.from({ length: g.kvHeads }, (_, head) => (head === 0 ? 1 : (seed % 5) / 4));
          const summed = await runKernel(
            kernels,
            'weigh_queries',
            {},
            { sequence: record, queries, squares: { bytes: g.kvHeads * g.pairs * 4 } },
          );
          const squares = asFloats(summed.squares!);
          const finished = await runKernel(
            kernels,
            'weigh_finish',
            {},
            {
              sequence: record,
              squares,
              head_factors: headFactors,
              cache: new Uint8Array(layout.bytes).fill(untouched),
              weights: { bytes: g.width * 4 },
            },
          );

          const sums = new Float64Array(squares.length);
          for (let head = 0; head < g.heads; head++) {
            for (let token = 0; token < exact.tokens; token++) {
              const from = Math.floor(head / g.groupSize) * g.pairs;
              const query = vectorAt(exact, head, token);
              for (const [pair, [a, b]] of pairs.entries()) sums[from + pair]! += query[a]! ** 2 + query[b]! ** 2;
            }
          }
          expect(worstOf(sums.map((sum, at) => Math.abs(squares[at]! - sum) / (2e-5 * sum || 1e-30)))).toBeLessThan(1);

          const weights = asFloats(finished.weights!);
          const errors = queryWeights(exact, g.kvHeads, g.model.rope, headFactors).map((weight, channel) => {
            return Math.abs(weights[channel]! - weight) / (halfRounding(weight) + 1e-5 * weight);
          });
          expect(worstOf(errors)).toBeLessThan(1);
          expect(Math.min(...weights)).toBeGreaterThan(0);
          for (let head = 0; head < g.width; head += g.headDim) {
            const [firsts, seconds] = [0, 1].map((i) => pairs.map((pair) => weights[head + pair[i]!]));
            expect(firsts).toEqual(seconds);
          }
          const stored = halfValues(asHalfBits(partBytes(layout, finished.cache!, 'keyWeights'))).slice(0, g.width);
          expect(worstDifference(stored, weights)).toEqual({ at: -1, by: 0 });
          expect(strayWrites(finished.cache!, [layout.parts.find(({ name }) => name === 'keyWeights')!])).toEqual([]);
        }),
        { numRuns: RUNS },
      );
    });
  });
});

/** The largest; not a number where one is not. */
function worstOf(errors: Float64Array): number {
  return errors.reduce((a, b) => Math.max(a, b), 0);
}
