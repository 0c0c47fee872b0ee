import type { SequenceLayout } from '../../codegen/plan/layout.js';
import type { Geometry } from '../../dsl/geometry.js';
import { type CodedSequence, type HeadTensor, isScalarParts, isTiltParts } from '../reference/index.js';
import { fieldRows, halfBytes, halfRows, type PackedPart } from './packedPart.js';
import { packScalarMiddle } from './packScalar.js';
import { packShardMiddle } from './packShard.js';
import { packTiltMiddle } from './packTilt.js';

/** The parts of a sequence, and the slot of its oldest window token. */
export type PackedInput = CodedSequence & { readonly windowStart: number };

/**
 * Writes the codes of one sequence into its share of the cache buffer, bit by bit: the inverse of `unpackShare`.
 * Bytes past the rows in use stay as they are; empty window slots become NaN.
 */
export function packParts(g: Geometry, layout: SequenceLayout, parts: PackedInput, share: Uint8Array): void {
  for (const [name, bytes] of packedParts(g, parts)) {
    share.set(bytes, layout.parts.find((part) => part.name === name)!.offset);
  }
}

function* packedParts(g: Geometry, parts: PackedInput): Generator<PackedPart> {
  const { sinks, stream, window, windowStart } = parts;
  yield ['sinkKeys', halfBytes(tokenMajor(sinks.keys))];
  yield ['sinkValues', halfBytes(tokenMajor(sinks.values))];
  yield ['windowKeys', ring(g, windowStart, tokenMajor(window.keys))];
  yield ['windowValues', ring(g, windowStart, tokenMajor(window.values))];
  yield* packedMiddle(g, parts);
  const vector = { count: g.headDim, words: g.streamWords, bits: g.streamBits };
  yield ['streamKeyCodes', fieldRows(stream.keyCodes, vector)];
  yield ['streamValueCodes', fieldRows(stream.valueCodes, vector)];
  const norms = { count: g.kvHeads, words: g.normWords };
  yield ['streamKeyNorms', halfRows(stream.keyNorms, norms)];
  yield ['streamValueNorms', halfRows(stream.valueNorms, norms)];
}

/** What the prompt's middle became, in the parts that its family has. */
export function packedMiddle(g: Geometry, parts: CodedSequence): Generator<PackedPart> {
  if (g.family === 'scalar' && isScalarParts(parts)) return packScalarMiddle(g, parts.middle);
  if (g.family === 'tilt' && isTiltParts(parts)) return packTiltMiddle(g, parts.middle);
  if (g.family === 'low-rank' && !isScalarParts(parts) && !isTiltParts(parts)) return packShardMiddle(g, parts.middle);
  throw new TypeError('the parts are not of the family of the geometry');
}

function tokenMajor({ heads, tokens, channels, data }: HeadTensor): Float64Array {
  return Float64Array.from(data, (_, i) => {
    const token = Math.floor(i / (heads * channels));
    const head = Math.floor(i / channels) % heads;
    return data[(head * tokens + token) * channels + (i % channels)]!;
  });
}

/** The ring of window slots, NaN where no token is. */
function ring(g: Geometry, windowStart: number, rows: Float64Array): Uint8Array {
  const slots = new Float64Array(g.scheme.window * g.width).fill(Number.NaN);
  for (let token = 0; token * g.width < rows.length; token++) {
    const slot = (windowStart + token) % g.scheme.window;
    slots.set(rows.subarray(token * g.width, (token + 1) * g.width), slot * g.width);
  }
  return halfBytes(slots);
}
