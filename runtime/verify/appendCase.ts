import { KvCache } from '../cache.js';
import type { LoadedKernels } from '../kernels.js';
import type { Cache } from '../reference/index.js';
import { checkAppendedRecord, checkUntouchedParts } from './appended.js';
import { attendSetting } from './attendDraws.js';
import type { AppendDraw } from './caseDraws.js';
import { checkStream } from './checkStream.js';
import { drawnLayer } from './drawnLayer.js';
import { halfBits, halfValues, numbers } from './draws.js';
import { type Bench, checkExact, checkReads, type Held, readHeld } from './held.js';
import { drawPromptQueries } from './promptQueries.js';

/** Tokens in order, [kvHead][d] each. */
interface Tokens {
  readonly keys: readonly Float64Array[];
  readonly values: readonly Float64Array[];
}

/** Appends drawn tokens through the cache, then judges every token that moved, and attention over the result. */
export async function appendCase(kernels: LoadedKernels, draw: AppendDraw, bench: Bench): Promise<void> {
  const g = kernels.geometry;
  const { start, appended, kind, seed, query } = draw;
  const cache = await open(kernels, draw);
  try {
    const sequences = start === 'prompt' ? draw.prompts.length : 1;
    const before: Held[] = [];
    for (let sequence = 0; sequence < sequences; sequence++) before.push(await readHeld(cache, sequence));

    const bits = {
      keys: halfBits(numbers({ kind, seed: seed + 1 }, appended * sequences, g.width)),
      values: halfBits(numbers({ kind, seed: seed + 2 }, appended * sequences, g.width)),
    };
    const row = sequences * g.width;
    for (let token = 0; token < appended; token++) {
      const [from, to] = [token * row, (token + 1) * row];
      await cache.append(bits.keys.slice(from, to), bits.values.slice(from, to));
    }
    const exact = { keys: halfValues(bits.keys), values: halfValues(bits.values) };
    const after: Held[] = [];
    for (let sequence = 0; sequence < sequences; sequence++) {
      const held = await readHeld(cache, sequence);
      after.push(held);
      const fresh = (name: 'keys' | 'values') =>
        Array.from({ length: appended }, (_, token) => {
          const at = token * row + sequence * g.width;
          return exact[name].subarray(at, at + g.width);
        });
      const added = { keys: fresh('keys'), values: fresh('values') };
      checkAppended(cache, { before: before[sequence]!, after: held, added }, `sequence ${sequence}`, bench);
    }
    await checkReads(cache, after, { query, seed }, bench);
  } finally {
    await cache.release();
  }
}

async function open(kernels: LoadedKernels, { start, prompts, codes, appended, kind, seed }: AppendDraw) {
  const g = kernels.geometry;
  if (start === 'codes') {
    // Spare rows of the drawn sequence make room for what is appended.
    const spacious = { ...codes, sequences: codes.sequences.map((sequence) => ({ ...sequence, spare: appended })) };
    const { layout, lengths, share } = attendSetting(g, spacious).sequences[0]!;
    const { sinks, middle, window, stream } = layout.capacity;
    const tokens = sinks + middle + window;
    const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: stream, layer: drawnLayer(g, seed) });
    await cache.writeShare(0, share, lengths);
    return cache;
  }
  const tokens = start === 'prompt' ? Math.max(...prompts) : 0;
  const cache = KvCache.open(kernels, {
    sequences: start === 'prompt' ? prompts.length : 1,
    tokens,
    generated: appended,
    layer: drawnLayer(g, seed),
  });
  if (start === 'prompt') {
    for (const [sequence, count] of prompts.entries()) {
      const drawn = (salt: number) =>
        halfBits(numbers({ kind, seed: seed + 10 * sequence + salt }, count * g.kvHeads, g.headDim));
      const queries = g.weighted ? { queries: drawPromptQueries(g, count, seed).bits } : {};
      await cache.prefill(sequence, { keys: drawn(3), values: drawn(4), tokens: count, ...queries });
    }
  }
  return cache;
}

function checkAppended(
  cache: KvCache,
  { before, after, added }: { readonly before: Held; readonly after: Held; readonly added: Tokens },
  where: string,
  { judge }: Bench,
): void {
  const g = cache.geometry;
  const change = { before, after, count: added.keys.length };
  const left = checkAppendedRecord(g.scheme.window, change, where, judge);

  const all: Tokens = {
    keys: [...rowsOf(before.parts.window, 'keys'), ...added.keys],
    values: [...rowsOf(before.parts.window, 'values'), ...added.values],
  };
  for (const name of ['keys', 'values'] as const) {
    const tokenAt = (token: number) => all[name][left + token] ?? new Float64Array(g.width).fill(Number.NaN);
    checkExact(g, after.parts.window[name], tokenAt, `window ${name}: ${where}`, judge);
  }
  const first = before.lengths.streamTokens;
  const moved = { first, keys: all.keys.slice(0, left), values: all.values.slice(0, left) };
  if (after.lengths.streamTokens === first + left) checkStream(g, after.parts.stream, moved, { judge, where });
  checkUntouchedParts(cache.layout, change, where, judge);
}

function rowsOf(window: Cache, name: keyof Cache): Float64Array[] {
  const { heads, tokens, channels, data } = window[name];
  return Array.from({ length: tokens }, (_, token) => {
    const row = new Float64Array(heads * channels);
    for (let head = 0; head < heads; head++) {
      const from = (head * tokens + token) * channels;
      row.set(data.subarray(from, from + channels), head * channels);
    }
    return row;
  });
}
