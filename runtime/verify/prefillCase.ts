import { splitPrompt } from '../../codegen/plan/layout.js';
import { layerShape } from '../../dsl/model.js';
import { KvCache } from '../cache.js';
import type { LoadedKernels } from '../kernels.js';
import { emptyTensor, isScalarParts, isTiltParts, vectorAt } from '../reference/index.js';
import type { PrefillDraw } from './caseDraws.js';
import { checkScalar } from './checkScalar.js';
import { checkShard } from './checkShard.js';
import { checkTilt } from './checkTilt.js';
import { drawnLayer } from './drawnLayer.js';
import { halfBits, halfValues, numbers } from './draws.js';
import { type Bench, checkExact, checkReads, readHeld } from './held.js';
import { drawPromptQueries } from './promptQueries.js';
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
  const queries = g.weighted && tokens > 0 ? drawPromptQueries(g, tokens, seed) : undefined;
  const layer = drawnLayer(g, seed);
  const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0, layer });
  try {
    if (tokens > 0) await cache.prefill(0, { ...bits, ...(queries ? { queries: queries.bits } : {}), tokens });
    const held = await readHeld(cache, 0);
    const { parts } = held;
    const { middle, window } = splitPrompt(g, tokens);
    const about = `${keys} keys, ${values} values, ${tokens} tokens`;
    for (const name of ['keys', 'values'] as const) {
      const token = (first: number) => (index: number) => tokenOf(prompt[name], first + index);
      checkExact(g, parts.sinks[name], token(0), `prefill, sink ${name} (${about})`, judge);
      checkExact(g, parts.window[name], token(tokens - window), `prefill, window ${name} (${about})`, judge);
    }
    judge.check(`prefill: middle tokens (${about})`, Math.abs(parts.middle.tokens - middle), 0);
    if (g.family === 'scalar' && isScalarParts(parts)) {
      checkScalar(g, { parts, layout: cache.layout, share: held.share }, prompt, judge);
    } else if (g.family === 'tilt' && isTiltParts(parts)) {
      // Without a middle no kernel has fitted anything.
      if (middle > 0)
        checkTilt(g, { parts, layout: cache.layout, share: held.share, tap, queries: queries! }, prompt, judge);
    } else if (g.family === 'low-rank' && !isScalarParts(parts) && !isTiltParts(parts) && tokens > 0) {
      const { slidingWindow } = layerShape(g.model, layer);
      checkShard(g, { parts, tap, queries, slidingWindow }, prompt, judge);
    }
    await checkReads(cache, [held], { query, seed }, bench);
  } finally {
    await cache.release();
  }
}

function tokenOf(tensor: ReturnType<typeof emptyTensor>, token: number): Float64Array {
  const row = new Float64Array(tensor.heads * tensor.channels);
  for (let head = 0; head < tensor.heads; head++) row.set(vectorAt(tensor, head, token), head * tensor.channels);
  return row;
}
