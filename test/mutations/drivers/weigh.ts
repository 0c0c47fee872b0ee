import { recordIndex } from '../../../codegen/plan/layout.js';
import { observedQueries } from '../../../dsl/stages/observe.js';
import type { LoadedKernels } from '../../../runtime/kernels.js';
import { channelPairs, emptyTensor, lastQueries, queryWeights, vectorAt } from '../../../runtime/reference/index.js';
import { halfBits, halfValues, largestOf, numbers, worstDifference } from '../../../runtime/verify/draws.js';
import { halfRounding, type Judge, Worst } from '../../../runtime/verify/judge.js';
import { asFloats, asHalfBits, runKernel } from '../../../runtime/verify/run.js';
import { middleSetting, writtenParts } from './setting.js';

/** More query tokens than are observed, one token, and queries that ask for nothing. */
const queryCases = [
  [37, 'normal'],
  [1, 'normal'],
  [3, 'zeros'],
] as const;

function drawQueries(kernels: LoadedKernels, [tokens, kind]: (typeof queryCases)[number]) {
  const g = kernels.geometry;
  const { record, layout, cache } = middleSetting(g, 1);
  record[recordIndex('queryTokens')] = tokens;
  // Some channels ask for so little that only the floor keeps their weight.
  const drawn = numbers({ kind, seed: 27 }, g.heads * tokens, g.headDim).map((x, i) => (i % 8 >= 6 ? x * 1e-5 : x));
  const bits = halfBits(drawn);
  const given = { ...emptyTensor(g.heads, tokens, g.headDim), data: halfValues(bits) };
  const queries = lastQueries(given, observedQueries);
  const pairs = channelPairs(g.model.rope, g.headDim);
  const squares = new Float64Array(g.kvHeads * g.pairs);
  for (let head = 0; head < g.heads; head++) {
    const first = Math.floor(head / g.groupSize) * g.pairs;
    for (let token = 0; token < queries.tokens; token++) {
      const query = vectorAt(queries, head, token);
      for (const [pair, [a, b]] of pairs.entries()) squares[first + pair]! += query[a]! ** 2 + query[b]! ** 2;
    }
  }
  return { tokens, record, layout, cache, bits, queries, squares };
}

export async function driveQueries(kernels: LoadedKernels, judge: Judge): Promise<void> {
  for (const one of queryCases) {
    const { tokens, record, bits, squares } = drawQueries(kernels, one);
    const outputs = await runKernel(
      kernels,
      'weigh_queries',
      {},
      { sequence: record, queries: bits, squares: { bytes: squares.length * 4 } },
    );
    const { at, by } = worstDifference(asFloats(outputs.squares!), squares);
    judge.check(`squares of ${tokens} tokens, entry ${at}`, by, 1e-5 * largestOf(squares));
  }
}

export async function driveWeights(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = kernels.geometry;
  const factors = Float32Array.from({ length: g.kvHeads }, (_, head) => 1 / (1 + head));
  for (const one of queryCases) {
    const { tokens, record, layout, cache, queries, squares } = drawQueries(kernels, one);
    const outputs = await runKernel(
      kernels,
      'weigh_finish',
      {},
      {
        sequence: record,
        squares: Float32Array.from(squares),
        head_factors: factors,
        cache,
        weights: { bytes: g.width * 4 },
      },
    );
    const weights = asFloats(outputs.weights!);
    const [stored] = writtenParts(layout, outputs.cache!, ['keyWeights'], judge);
    judge.check('weights, as stored', worstDifference(weights, halfValues(asHalfBits(stored!))).by, 0);
    const worst = new Worst();
    for (const [channel, exact] of queryWeights(queries, g.kvHeads, g.model.rope, factors).entries()) {
      const allowed = halfRounding(exact) + 1e-5 * exact;
      worst.add(Math.abs(weights[channel]! - exact) / allowed, () => `channel ${channel}`);
    }
    judge.check(`weights by ${tokens} tokens, over their rounding: ${worst.at}`, worst.error, 1);
  }
}
