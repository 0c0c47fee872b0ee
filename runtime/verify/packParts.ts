import type { PartName, SequenceLayout } from '../../codegen/plan/layout.js';
import type { Geometry } from '../../dsl/geometry.js';
import { type HeadTensor, type ShardParts, writeField } from '../reference/index.js';
import { halfBits } from './draws.js';

/** The parts of a sequence, and the slot of its oldest window token. */
export interface PackedInput extends ShardParts {
  readonly windowStart: number;
}

/**
 * Writes the codes of one sequence into its share of the cache buffer, bit by bit: the inverse of `unpackShare`.
 * Bytes past the rows in use stay as they are; empty window slots become NaN.
 */
export function packParts(g: Geometry, layout: SequenceLayout, parts: PackedInput, share: Uint8Array): void {
  for (const [name, bytes] of packedParts(g, parts)) {
    share.set(bytes, layout.parts.find((part) => part.name === name)!.offset);
  }
}

function* packedParts(g: Geometry, parts: PackedInput): Generator<readonly [PartName, Uint8Array]> {
  const { sinks, middle, stream, window, windowStart } = parts;
  yield ['sinkKeys', halfBytes(tokenMajor(sinks.keys))];
  yield ['sinkValues', halfBytes(tokenMajor(sinks.values))];
  yield ['windowKeys', ring(g, windowStart, tokenMajor(window.keys))];
  yield ['windowValues', ring(g, windowStart, tokenMajor(window.values))];
  const keyCodes = new Uint8Array(middle.tokens * g.keyRowWords * 4);
  for (let token = 0; token < middle.tokens; token++) {
    for (const { firstComponent, components, bits, firstWord } of g.keyGroups) {
      for (let i = 0; i < components && bits > 0; i++) {
        const code = middle.coefficientCodes[token * g.rank + firstComponent + i]!;
        const offset = (token * g.keyRowWords + firstWord) * 32 + i * bits;
        writeField(keyCodes, { offset, width: bits }, code + 2 ** (bits - 1));
      }
    }
  }
  let firstBit = 0;
  const widths = new Uint32Array(g.allocatedGroups);
  for (const [group, bits] of (middle.groupBits ?? []).entries()) {
    widths[group] = firstBit * 16 + bits;
    for (let token = 0; token < middle.tokens; token++) {
      for (let i = 0; i < 16 && bits > 0; i++) {
        const code = middle.coefficientCodes[token * g.rank + group * 16 + i]!;
        const offset = token * g.keyRowWords * 32 + firstBit + i * bits;
        writeField(keyCodes, { offset, width: bits }, code + 2 ** (bits - 1));
      }
    }
    firstBit += 16 * bits;
  }
  yield ['keyCodes', keyCodes];
  if (g.allocatedGroups > 0) yield ['keyWidths', new Uint8Array(widths.buffer)];
  if (g.weighted) yield ['keyWeights', halfBytes(middle.weights)];
  yield ['keyScales', halfBytes(middle.coefficientScales)];
  yield ['keyBasis', new Uint8Array(middle.basisCodes.buffer)];
  yield ['keyBasisScales', halfBytes(middle.basisScales)];
  yield ['keyMean', halfBytes(middle.mean)];
  yield ['valueCodes', Uint8Array.from(middle.valueCodes)];
  yield ['codebook', halfBytes(middle.codebook)];
  yield ['channelMax', halfBytes(middle.channelMax)];
  yield ['streamKeyCodes', streamRows(g, stream.keyCodes)];
  yield ['streamValueCodes', streamRows(g, stream.valueCodes)];
  yield ['streamKeyNorms', normRows(g, stream.keyNorms)];
  yield ['streamValueNorms', normRows(g, stream.valueNorms)];
}

function halfBytes(values: ArrayLike<number>): Uint8Array {
  return new Uint8Array(halfBits(values).buffer);
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

function streamRows(g: Geometry, codes: Uint16Array): Uint8Array {
  const bytes = new Uint8Array((codes.length / g.headDim) * g.streamWords * 4);
  codes.forEach((code, i) => {
    const offset = Math.floor(i / g.headDim) * g.streamWords * 32 + (i % g.headDim) * g.streamBits;
    writeField(bytes, { offset, width: g.streamBits }, code);
  });
  return bytes;
}

function normRows(g: Geometry, norms: Float64Array): Uint8Array {
  const rows = new Float64Array((norms.length / g.kvHeads) * g.normWords * 2);
  norms.forEach((norm, i) => {
    rows[Math.floor(i / g.kvHeads) * g.normWords * 2 + (i % g.kvHeads)] = norm;
  });
  return halfBytes(rows);
}
