import { splitPrompt } from '../../codegen/plan/layout.js';
import type { Geometry } from '../../dsl/geometry.js';
import type { SequenceLengths } from '../record.js';

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

/** Tokens in the stream once `tokens` more have come in through the window. */
export function streamAfter(g: Geometry, { streamTokens, windowTokens }: SequenceLengths, tokens: number): number {
  return streamTokens + Math.max(0, windowTokens + tokens - g.scheme.window);
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
  };
}
