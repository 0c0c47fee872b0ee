import { recordIndex } from '../../../codegen/plan/layout.js';
import type { LoadedKernels } from '../../../runtime/kernels.js';
import { attend, emptyTensor, headRows, tokenMasses } from '../../../runtime/reference/index.js';
import { halfBits, halfValues, largestOf, numbers, worstDifference } from '../../../runtime/verify/draws.js';
import type { Judge } from '../../../runtime/verify/judge.js';
import { asFloats, runKernel } from '../../../runtime/verify/run.js';
import { middleSetting } from './setting.js';

/** Query tokens, tokens after them, and a sliding window: all that is seen, nothing that is, and what a window leaves. */
const calls = [
  { queries: 3, after: 0, slidingWindow: 0 },
  { queries: 2, after: 200, slidingWindow: 0 },
  { queries: 5, after: 2, slidingWindow: 7 },
] as const;

/** More tokens than a tile has, and than one stride of a block. */
const middle = 300;

export async function driveMassScores(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = kernels.geometry;
  const { record } = middleSetting(g, middle);
  const tokens = g.scheme.sinks + middle + g.scheme.window;
  const keyBits = halfBits(numbers({ kind: 'normal', seed: 31 }, g.kvHeads * tokens, g.headDim));
  const keys = { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halfValues(keyBits) };
  for (const { queries, after } of calls) {
    const queryBits = halfBits(numbers({ kind: 'normal', seed: 32 }, queries * g.heads, g.headDim));
    const query = halfValues(queryBits);
    const outputs = await runKernel(
      kernels,
      'mass_scores',
      { tokens },
      {
        sequence: record,
        call: Uint32Array.of(queries, after),
        keys: keyBits,
        query: queryBits,
        scores: { bytes: g.heads * queries * tokens * 4 },
      },
    );
    const { scoreScale, scoreCap } = g.model;
    const wanted = new Float64Array(g.heads * queries * tokens);
    for (let row = 0; row < g.heads * queries; row++) {
      const [head, index] = [Math.floor(row / queries), row % queries];
      const one = query.subarray((index * g.heads + head) * g.headDim, (index * g.heads + head + 1) * g.headDim);
      for (let token = 0; token < tokens; token++) {
        // The logarithm of a sum over one token is its score.
        const rows = headRows(keys, Math.floor(head / g.groupSize), tokens);
        const own = { rows: 1, columns: g.headDim, data: rows.data.slice(token * g.headDim, (token + 1) * g.headDim) };
        const { lse } = attend({ query: one, keys: own, values: own, scale: scoreScale, cap: scoreCap });
        wanted[row * tokens + token] = lse * Math.LOG2E;
      }
    }
    judge.check('scores', worstDifference(asFloats(outputs.scores!), wanted).by, 1e-4);
  }
}

export async function driveMassTokens(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = kernels.geometry;
  const { record } = middleSetting(g, middle);
  const tokens = g.scheme.sinks + middle + g.scheme.window;
  for (const { queries, after, slidingWindow } of calls) {
    record[recordIndex('slidingWindow')] = slidingWindow;
    const scores = Float32Array.from(
      numbers({ kind: 'normal', seed: 33 }, g.heads * queries, tokens),
      (x) => 30 + 4 * x,
    );
    const outputs = await runKernel(
      kernels,
      'mass_tokens',
      {},
      {
        sequence: record,
        call: Uint32Array.of(queries, after),
        scores,
        masses: { bytes: g.kvHeads * tokens * 4 },
      },
    );
    const nats = {
      rows: g.heads * queries,
      columns: tokens,
      data: Float64Array.from(scores, (score) => score * Math.LN2),
    };
    const wanted = tokenMasses(nats, { kvHeads: g.kvHeads, queries, after, slidingWindow });
    judge.check('masses', worstDifference(asFloats(outputs.masses!), wanted).by / Math.max(1, largestOf(wanted)), 1e-5);
  }
}
