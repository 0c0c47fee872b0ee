import { splitPrompt } from '../../codegen/plan/layout.js';
import { KvCache } from '../cache.js';
import type { LoadedKernels } from '../kernels.js';
import { emptyTensor, type ShardParts, unrotatedRows, vectorAt } from '../reference/index.js';
import type { PrefillDraw } from './caseDraws.js';
import { checkKeys } from './checkKeys.js';
import { checkValues } from './checkValues.js';
import { halfBits, halfValues, numbers } from './draws.js';
import { type Bench, checkExact, checkReads, readHeld } from './held.js';
import type { Judge } from './judge.js';
import { asFloats } from './run.js';
import type { Tap } from './tap.js';

/** Compresses a drawn prompt and judges every part of the result, then attention over it. */
export async function prefillCase(
  kernels: LoadedKernels,
  tap: Tap,
  { tokens, keys, values, seed, query }: PrefillDraw,
  bench: Bench,
): Promise<void> {
  const g = kernels.geometry;
  const { judge } = bench;
  const drawn = (kind: PrefillDraw['keys'], salt: number) =>
    halfBits(numbers({ kind, seed: seed + salt }, tokens * g.kvHeads, g.headDim));
  const bits = { keys: drawn(keys, 1), values: drawn(values, 2) };
  const prompt = {
    keys: { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halfValues(bits.keys) },
    values: { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halfValues(bits.values) },
  };
  const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0 });
  try {
    if (tokens > 0) await cache.prefill(0, bits.keys, bits.values, tokens);
    const held = await readHeld(cache, 0);
    const { parts } = held;
    const { sinks, middle, window } = splitPrompt(g, tokens);
    const about = `${keys} keys, ${values} values, ${tokens} tokens`;
    for (const name of ['keys', 'values'] as const) {
      const token = (first: number) => (index: number) => tokenOf(prompt[name], first + index);
      checkExact(g, parts.sinks[name], token(0), `prefill, sink ${name} (${about})`, judge);
      checkExact(g, parts.window[name], token(tokens - window), `prefill, window ${name} (${about})`, judge);
    }
    judge.check(`prefill: middle tokens (${about})`, Math.abs(parts.middle.tokens - middle), 0);
    if (tokens > 0) {
      checkFinite(parts, judge);
      const plain = unrotatedRows(prompt.keys, sinks, middle, g.model.rope.invFreq);
      const columns = asFloats(tap.bytes!).subarray(0, g.width * g.rank);
      checkKeys(g, { middle: parts.middle, plain, columns }, judge);
      checkValues(g, parts.middle, prompt.values, judge);
    }
    await checkReads(cache, [held], { query, seed }, bench);
  } finally {
    cache.release();
  }
}

function tokenOf(tensor: ReturnType<typeof emptyTensor>, token: number): Float64Array {
  const row = new Float64Array(tensor.heads * tensor.channels);
  for (let head = 0; head < tensor.heads; head++) row.set(vectorAt(tensor, head, token), head * tensor.channels);
  return row;
}

function checkFinite({ middle }: ShardParts, judge: Judge): void {
  for (const name of ['coefficientScales', 'basisScales', 'mean', 'codebook', 'channelMax'] as const) {
    const at = middle[name].findIndex((x) => !Number.isFinite(x));
    judge.check(`prefill: ${name}[${at}] is not finite`, at < 0 ? 0 : Number.POSITIVE_INFINITY, 0);
  }
}
