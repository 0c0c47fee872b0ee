import type { LoadedKernels } from '../../../runtime/kernels.js';
import { unrotate } from '../../../runtime/reference/index.js';
import { halfBits, halfValues, largestOf, numbers, worstDifference } from '../../../runtime/verify/draws.js';
import type { Judge } from '../../../runtime/verify/judge.js';
import { asFloats, runKernel } from '../../../runtime/verify/run.js';
import { lowRankOf } from '../../lowRank.js';
import { promptSetting } from '../../stages/harness.js';

const TILE = 32;

/** Two tiles of tokens with a tail, and one token. */
export async function driveUnrope(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  for (const middle of [37, 1]) {
    const tokens = g.scheme.sinks + middle + g.scheme.window;
    const { record, tables } = promptSetting(g, tokens);
    const keys = halfBits(numbers({ kind: 'normal', seed: 26 }, g.kvHeads * tokens, g.headDim));
    const tokenWeights = Float32Array.from({ length: middle }, (_, token) => (g.weighted ? 0.5 + (token % 3) : 1));
    const tiles = Math.ceil(middle / TILE);
    const outputs = await runKernel(
      kernels,
      'unrope_keys',
      { middleTokens: middle },
      {
        sequence: record,
        keys,
        tables,
        ...(g.weighted ? { token_weights: tokenWeights } : {}),
        plain: { bytes: middle * g.width * 4 },
        partial_sums: { bytes: tiles * g.width * 4 },
      },
    );
    const exact = halfValues(keys);
    const expected = new Float64Array(middle * g.width);
    const sums = new Float64Array(tiles * g.width);
    for (let token = 0; token < middle; token++) {
      const position = g.scheme.sinks + token;
      for (let head = 0; head < g.kvHeads; head++) {
        const source = (head * tokens + position) * g.headDim;
        const plain = unrotate(exact.subarray(source, source + g.headDim), position, g.model.rope);
        expected.set(plain, token * g.width + head * g.headDim);
        const sum = Math.floor(token / TILE) * g.width + head * g.headDim;
        for (const [i, x] of plain.entries()) sums[sum + i]! += tokenWeights[token]! * x;
      }
    }
    for (const [what, actual, wanted] of [
      ['keys before RoPE', outputs.plain!, expected],
      ['sums of a tile', outputs.partial_sums!, sums],
    ] as const) {
      const { at, by } = worstDifference(asFloats(actual), wanted);
      judge.check(`${what}, ${middle} tokens, entry ${at}`, by, 1e-5 * largestOf(wanted));
    }
  }
}
