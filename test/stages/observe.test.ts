import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { recordIndex } from '../../codegen/plan/layout.js';
import type { LowRankGeometry } from '../../dsl/geometry.js';
import { observedQueries } from '../../dsl/stages/observe.js';
import type { Device } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import {
  emptyTensor,
  type HeadTensor,
  lastQueries,
  observe,
  observedOutputs,
  observedProbabilities,
  observedScores,
  observedSums,
  observedWeights,
} from '../../runtime/reference/index.js';
import { halfBits, halfValues, type Kind, kinds, largestOf, lengths, numbers } from '../../runtime/verify/draws.js';
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

/** What the shared cases leave out: the largest head and group, the smallest head, and MHA. */
const weightedCases = [
  ...cases.filter(({ scheme }) => scheme.keys[1].weight === 'queries'),
  makeCase({ heads: 2, kvHeads: 1, headDim: 256, rank: 16, bits: 4, weight: 'queries', window: 3 }),
  makeCase({ heads: 16, kvHeads: 1, headDim: 32, rank: 16, bits: 4, weight: 'queries', sinks: 0 }),
  makeCase({ heads: 2, kvHeads: 2, headDim: 16, rank: 16, bits: 4, weight: 'queries', sinks: 1, window: 2 }),
];

interface PromptDraw {
  readonly tokens: number;
  readonly queryTokens: number;
  readonly slidingWindow: number;
  readonly keys: Kind;
  readonly values: Kind;
  readonly queries: Kind;
  readonly seed: number;
}

function promptDraws(g: LowRankGeometry): fc.Arbitrary<PromptDraw> {
  const exact = g.scheme.sinks + g.scheme.window;
  // Large heads are slow on a CPU, and tell no more about long prompts than small ones.
  const most = g.heads * g.headDim > 1000 ? 40 : 90;
  const kind = fc.constantFrom(...kinds);
  return fc
    .record({
      tokens: fc.oneof(
        fc.constantFrom(1, 2, exact),
        lengths(TILE, most).map((middle) => exact + middle),
      ),
      queryTokens: fc.oneof(fc.constantFrom(1, observedQueries, observedQueries + 1), fc.integer({ min: 1, max: 40 })),
      slidingWindow: fc.oneof(fc.constantFrom(0, 0, 1), fc.integer({ min: 2, max: 60 })),
      keys: kind,
      values: kind,
      queries: kind,
      seed: fc.nat({ max: 0xffff }),
    })
    .map((draw) => ({ ...draw, queryTokens: Math.min(draw.queryTokens, draw.tokens) }));
}

/** The largest difference over what is allowed for it. */
function worstOver(actual: ArrayLike<number>, expected: ArrayLike<number>, allowed: (at: number) => number): number {
  let worst = 0;
  for (let at = 0; at < expected.length; at++) {
    const error = Math.abs(actual[at]! - expected[at]!);
    if (error !== 0) worst = Math.max(worst, Number.isFinite(error) ? error / allowed(at) : Number.POSITIVE_INFINITY);
  }
  return worst;
}

function drawTensor(heads: number, tokens: number, channels: number, data: { kind: Kind; seed: number }) {
  const bits = halfBits(numbers(data, heads * tokens, channels));
  return { bits, exact: { ...emptyTensor(heads, tokens, channels), data: halfValues(bits) } };
}

const magnitudes = (tensor: HeadTensor): HeadTensor => ({ ...tensor, data: tensor.data.map(Math.abs) });
const widened = (floats: Float32Array, columns: number) => ({
  rows: floats.length / columns,
  columns,
  data: Float64Array.from(floats),
});

describe.each(deviceNames)('observing the prompt on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(weightedCases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const { scoreScale: scale, scoreCap: cap } = g.model;
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, [
        'observe_scores',
        'observe_softmax',
        'observe_tokens',
        'observe_finish',
      ]);
    });

    /** Runs the four kernels, each on what the one before it gave. */
    async function run(draw: PromptDraw) {
      const { tokens, queryTokens, slidingWindow, seed } = draw;
      const { record, middle, sinks } = promptSetting(g, tokens);
      record[recordIndex('queryTokens')] = queryTokens;
      record[recordIndex('slidingWindow')] = slidingWindow;
      const keys = drawTensor(g.kvHeads, tokens, g.headDim, { kind: draw.keys, seed: seed + 1 });
      const values = drawTensor(g.kvHeads, tokens, g.headDim, { kind: draw.values, seed: seed + 2 });
      const queries = drawTensor(g.heads, queryTokens, g.headDim, { kind: draw.queries, seed: seed + 3 });
      const last = lastQueries(queries.exact, observedQueries);
      const rows = g.heads * last.tokens;
      const dimensions = { promptTokens: tokens, middleTokens: middle };
      const room = (count: number) => ({ bytes: count * 4 });
      const taken = async (entry: string, contents: Parameters<typeof runKernel>[3]) => {
        const outputs = await runKernel(kernels, entry, dimensions, { sequence: record, ...contents });
        return (name: string, count: number) => asFloats(outputs[name]!).subarray(0, count);
      };

      const scored = await taken('observe_scores', {
        keys: keys.bits,
        queries: queries.bits,
        scores: room(rows * tokens),
      });
      const scores = scored('scores', rows * tokens).slice();
      const softened = await taken('observe_softmax', {
        values: values.bits,
        probabilities: scores,
        outputs: room(rows * g.headDim),
      });
      const probabilities = softened('probabilities', rows * tokens);
      const outputs = softened('outputs', rows * g.headDim);
      const perHead = middle * g.kvHeads;
      const summed = await taken('observe_tokens', {
        values: values.bits,
        probabilities,
        outputs,
        sensitivities: room(perHead),
        masses: room(perHead),
      });
      const sums = { sensitivities: summed('sensitivities', perHead), masses: summed('masses', perHead) };
      const finished = await taken('observe_finish', {
        ...sums,
        token_weights: room(middle),
        value_weights: room(perHead),
        head_factors: room(g.kvHeads),
      });
      const weights = {
        tokens: finished('token_weights', middle),
        values: finished('value_weights', perHead),
        heads: finished('head_factors', g.kvHeads),
      };
      const exact = { keys: keys.exact, values: values.exact, queries: last };
      return { exact, middle, sinks, scores, probabilities, outputs, sums, weights };
    }

    test('every kernel gives what its definition does of what it was given', async () => {
      await fc.assert(
        fc.asyncProperty(promptDraws(g), async (draw) => {
          const { tokens, slidingWindow } = draw;
          const { exact, middle, sinks, scores, probabilities, outputs, sums, weights } = await run(draw);
          const { queries, values } = exact;

          // Scores, to what float32 may lose of the sum.
          const exponents = observedScores(exact, { scale, cap }).data.map((score) => score * Math.LOG2E);
          const absolute = { keys: magnitudes(exact.keys), queries: magnitudes(queries) };
          const sizes = observedScores(absolute, { scale: scale * Math.LOG2E }).data;
          expect(worstOver(scores, exponents, (at) => 1e-5 * sizes[at]! + (cap ? 1e-5 : 1e-30))).toBeLessThanOrEqual(1);

          // Probabilities, to a part of the row's largest.
          const given = widened(scores, tokens);
          const nats = { ...given, data: given.data.map((exponent) => exponent * Math.LN2) };
          const expected = observedProbabilities(nats, queries.tokens, slidingWindow);
          const largest = Array.from({ length: expected.rows }, (_, row) =>
            largestOf(expected.data.subarray(row * tokens, (row + 1) * tokens)),
          );
          const allowed = (at: number) => 2e-5 * largest[Math.floor(at / tokens)]!;
          expect(worstOver(probabilities, expected.data, allowed)).toBeLessThanOrEqual(1);

          const held = widened(probabilities, tokens);
          const reach = observedOutputs(held, magnitudes(values)).data;
          const output = (at: number) => 1e-5 * reach[at]! + 1e-30;
          expect(worstOver(outputs, observedOutputs(held, values).data, output)).toBeLessThanOrEqual(1);

          const wanted = observedSums(
            { probabilities: held, outputs: widened(outputs, g.headDim), values },
            sinks,
            middle,
          );
          // Squares of probabilities below the least float32 are lost.
          const lost = 1e-36 * g.headDim * Math.max(1, 2 * largestOf(values.data)) ** 2;
          const sensitivity = (at: number) => 2e-5 * wanted.sensitivities[at]! + lost;
          expect(worstOver(sums.sensitivities, wanted.sensitivities, sensitivity)).toBeLessThanOrEqual(1);
          const mass = (at: number) => 2e-5 * wanted.masses[at]! + 1e-36;
          expect(worstOver(sums.masses, wanted.masses, mass)).toBeLessThanOrEqual(1);

          const best = observedWeights({
            kvHeads: g.kvHeads,
            sensitivities: Float64Array.from(sums.sensitivities),
            masses: Float64Array.from(sums.masses),
          });
          expect(worstOver(weights.tokens, best.tokens, (at) => 2e-5 * best.tokens[at]!)).toBeLessThanOrEqual(1);
          expect(worstOver(weights.values, best.values, (at) => 2e-5 * best.values[at]!)).toBeLessThanOrEqual(1);
          expect(worstOver(weights.heads, best.heads, (at) => 1e-5 * best.heads[at]! + 1e-6)).toBeLessThanOrEqual(1);
        }),
        { numRuns: RUNS },
      );
    });

    test('one after the other they weigh tokens as the reference does', async () => {
      const calm = { keys: 'normal', values: 'normal', queries: 'normal' } as const;
      for (const [seed, slidingWindow] of [0, 0, 20].entries()) {
        const draw = { ...calm, tokens: 50, queryTokens: 10 + 12 * seed, slidingWindow, seed };
        const { exact, middle, sinks, weights } = await run(draw);
        const wanted = observedWeights(observe(exact, { scale, cap, slidingWindow }, sinks, middle));
        for (const name of ['tokens', 'values', 'heads'] as const) {
          const worst = worstOver(weights[name], wanted[name], (at) => 1e-3 * wanted[name][at]!);
          expect(worst, name).toBeLessThanOrEqual(1);
        }
      }
    });
  });

  test('a window that says nothing weighs all alike', async () => {
    const [first] = weightedCases;
    const g = geometry(first!);
    const kernels = await load(device, first!, ['observe_finish']);
    const middle = 300;
    const { record } = promptSetting(g, g.scheme.sinks + middle + g.scheme.window);
    const outputs = await runKernel(
      kernels,
      'observe_finish',
      { promptTokens: middle, middleTokens: middle },
      {
        sequence: record,
        sensitivities: new Float32Array(middle * g.kvHeads),
        masses: new Float32Array(middle * g.kvHeads),
        token_weights: { bytes: middle * 4 },
        value_weights: { bytes: middle * g.kvHeads * 4 },
        head_factors: { bytes: g.kvHeads * 4 },
      },
    );
    for (const name of ['token_weights', 'value_weights', 'head_factors']) {
      expect(new Set(asFloats(outputs[name]!))).toEqual(new Set([1]));
    }
  });
});
