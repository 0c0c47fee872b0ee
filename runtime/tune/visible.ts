import type { SequenceLayout } from '../../codegen/plan/layout.js';
import { layerShape, type ModelShape } from '../../dsl/model.js';
import { usedRanges } from '../cache/contents.js';
import type { SequenceLengths } from '../record.js';
import type { ShapeClass } from './shapeClass.js';

/** What attention in layer 0 sees of a shape: of each sequence as many tokens as a sliding window leaves. */
export function seenOf(model: ModelShape, { sequences, tokens }: ShapeClass): ShapeClass {
  const { slidingWindow = tokens } = layerShape(model, 0);
  return { sequences, tokens: Math.min(tokens, slidingWindow) };
}

/** What a query of the last token sees of a prompt: its last tokens. */
export function visibleLengths(lengths: SequenceLengths, seen: number): SequenceLengths {
  const windowTokens = Math.min(lengths.windowTokens, seen);
  const middleTokens = Math.min(lengths.middleTokens, seen - windowTokens);
  return {
    ...lengths,
    windowTokens,
    middleTokens,
    sinkTokens: Math.min(lengths.sinkTokens, seen - windowTokens - middleTokens),
  };
}

/** Bytes of a share that mean something for these lengths. */
export function usedBytes(layout: SequenceLayout, lengths: SequenceLengths): number {
  return usedRanges(layout, lengths).reduce((sum, { bytes }) => sum + bytes, 0);
}
