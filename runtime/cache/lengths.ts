import { splitPrompt } from '../../codegen/plan/layout.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import type { SequenceLengths } from '../record.js';

/** Most evicted tokens that a record counts. */
export const mostEvicted = 2 ** 31;

export const emptyLengths: SequenceLengths = {
  sinkTokens: 0,
  middleTokens: 0,
  streamTokens: 0,
  windowTokens: 0,
  windowStart: 0,
  promptTokens: 0,
};

/** Lengths of a sequence that has just been given a prompt. */
export function promptLengths(g: Geometry, tokens: number): SequenceLengths {
  const { sinks, middle, window } = splitPrompt(g, tokens);
  return {
    sinkTokens: sinks,
    middleTokens: middle,
    streamTokens: 0,
    windowTokens: window,
    windowStart: 0,
    promptTokens: tokens,
  };
}

export function totalTokens({ sinkTokens, middleTokens, streamTokens, windowTokens }: SequenceLengths): number {
  return sinkTokens + middleTokens + streamTokens + windowTokens;
}

/** What appending depends on. */
export type GrowingLengths = Pick<SequenceLengths, 'streamTokens' | 'windowTokens'>;

/** Lengths once `tokens` more have come in through the window. */
export function grownLengths(
  g: Geometry,
  { streamTokens, windowTokens }: GrowingLengths,
  tokens: number,
): GrowingLengths {
  const { window } = g.scheme;
  return {
    streamTokens: streamTokens + Math.max(0, windowTokens + tokens - window),
    windowTokens: Math.min(window, windowTokens + tokens),
  };
}

/**
 * Lengths of all sequences once each has `tokens` more.
 *
 * @throws KvforgeError `does-not-fit` when the stream of one has no room for them
 */
export function grownWithin(
  g: Geometry,
  sequences: readonly GrowingLengths[],
  { tokens, generated }: { readonly tokens: number; readonly generated: number },
): readonly GrowingLengths[] {
  const grown = sequences.map((lengths) => grownLengths(g, lengths, tokens));
  const full = grown.findIndex(({ streamTokens }) => streamTokens > generated);
  if (full < 0) return grown;
  throw new KvforgeError('does-not-fit', {
    at: `sequence ${full}`,
    expected: `at most ${generated} tokens in the stream`,
    received: String(grown[full]!.streamTokens),
    hint: 'Open the cache with more generated tokens; nothing was appended to any sequence.',
  });
}

/**
 * Lengths of the first `tokens` tokens. The segments lie in the order of positions, so each keeps what the ones before
 * it leave; the oldest slot of the ring stays where it is, and the next token takes the slot of the first one dropped.
 */
export function croppedLengths(lengths: SequenceLengths, tokens: number): SequenceLengths {
  let left = tokens;
  const keep = (held: number): number => {
    const kept = Math.min(held, left);
    left -= kept;
    return kept;
  };
  return {
    sinkTokens: keep(lengths.sinkTokens),
    middleTokens: keep(lengths.middleTokens),
    streamTokens: keep(lengths.streamTokens),
    windowTokens: keep(lengths.windowTokens),
    windowStart: lengths.windowStart,
    promptTokens: Math.min(lengths.promptTokens, tokens),
    // An empty sequence starts anew; of any other, what was evicted came before its last token or does not matter.
    evictedTokens: tokens === 0 ? 0 : (lengths.evictedTokens ?? 0),
  };
}
