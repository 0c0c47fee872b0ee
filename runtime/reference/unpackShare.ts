import { getFloat16 } from '@petamoriken/float16';
import type { SequenceLayout } from '../../codegen/plan/layout.js';
import type { Geometry } from '../../dsl/geometry.js';
import type { SequenceLengths } from '../record.js';
import { readField, readSignedField } from './fields.js';
import { emptyTensor, type HeadTensor, vectorAt } from './shapes.js';
import type { ShardParts } from './shard.js';

/**
 * Reads the codes of one sequence out of its share of the cache buffer, bit by bit, so that a kernel and the float64
 * reference can be held to the same codes.
 *
 * @param share the sequence's bytes, as `KvCache.readShare` returns them
 * @param levels of the stream, as the kernels got them (float32)
 */
export function unpackShare(
  g: Geometry,
  layout: SequenceLayout,
  share: Uint8Array,
  lengths: SequenceLengths,
  levels: ArrayLike<number>,
): ShardParts {
  const part = (name: string): Uint8Array => {
    const placed = layout.parts.find((candidate) => candidate.name === name)!;
    return share.subarray(placed.offset, placed.offset + placed.bytes);
  };
  const halves = (name: string, count: number, first = 0): Float64Array => {
    const bytes = part(name);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return Float64Array.from({ length: count }, (_, i) => getFloat16(view, (first + i) * 2, true));
  };
  const exact = (name: string, tokens: number, slot: (token: number) => number): HeadTensor => {
    const tensor = emptyTensor(g.kvHeads, tokens, g.headDim);
    for (let token = 0; token < tokens; token++) {
      const row = halves(name, g.width, slot(token) * g.width);
      for (let head = 0; head < g.kvHeads; head++) {
        vectorAt(tensor, head, token).set(row.subarray(head * g.headDim, (head + 1) * g.headDim));
      }
    }
    return tensor;
  };
  const { sinkTokens, middleTokens, streamTokens, windowTokens, windowStart } = lengths;
  const sinkSlot = (token: number) => token;
  const windowSlot = (token: number) => (windowStart + token) % g.scheme.window;

  const coefficientCodes = new Int32Array(middleTokens * g.rank);
  const keyCodes = part('keyCodes');
  const groupBits: number[] = [];
  for (let group = 0; group < g.allocatedGroups; group++) {
    const firstBit = readField(part('keyWidths'), { offset: group * 32 + 4, width: 28 });
    const bits = readField(part('keyWidths'), { offset: group * 32, width: 4 });
    groupBits.push(bits);
    for (let token = 0; token < middleTokens; token++) {
      for (let i = 0; i < 16 && bits > 0; i++) {
        const offset = token * g.keyRowWords * 32 + firstBit + i * bits;
        coefficientCodes[token * g.rank + group * 16 + i] =
          readField(keyCodes, { offset, width: bits }) - 2 ** (bits - 1);
      }
    }
  }
  for (let token = 0; token < middleTokens; token++) {
    for (const { firstComponent, components, bits, firstWord } of g.keyGroups) {
      if (bits === 0) continue;
      const row = (token * g.keyRowWords + firstWord) * 32;
      for (let i = 0; i < components; i++) {
        const field = readField(keyCodes, { offset: row + i * bits, width: bits });
        coefficientCodes[token * g.rank + firstComponent + i] = field - 2 ** (bits - 1);
      }
    }
  }
  const basis = part('keyBasis');
  const basisCodes = new Int8Array(g.width * g.rank);
  for (let channel = 0; channel < g.width; channel++) {
    for (let component = 0; component < g.rank; component++) {
      const offset = (channel * g.rankWords * 4 + component) * 8;
      basisCodes[channel * g.rank + component] = readSignedField(basis, { offset, width: 8 });
    }
  }
  const vectors = g.width / g.channels;
  const valueCodes = part('valueCodes');
  const streamCodes = (name: string) => {
    const bytes = part(name);
    return Uint16Array.from({ length: streamTokens * g.width }, (_, i) => {
      const vector = Math.floor(i / g.headDim);
      const offset = vector * g.streamWords * 32 + (i % g.headDim) * g.streamBits;
      return readField(bytes, { offset, width: g.streamBits });
    });
  };
  const norms = (name: string) => {
    const rows = halves(name, streamTokens * g.normWords * 2);
    return Float64Array.from({ length: streamTokens * g.kvHeads }, (_, i) => {
      return rows[Math.floor(i / g.kvHeads) * g.normWords * 2 + (i % g.kvHeads)]!;
    });
  };
  return {
    kvHeads: g.kvHeads,
    headDim: g.headDim,
    rope: g.model.rope,
    sinks: { keys: exact('sinkKeys', sinkTokens, sinkSlot), values: exact('sinkValues', sinkTokens, sinkSlot) },
    middle: {
      tokens: middleTokens,
      firstPosition: sinkTokens,
      rank: g.rank,
      coefficientCodes,
      codeOffset: g.allocatedGroups > 0 ? 0.5 : 0,
      ...(g.allocatedGroups > 0 ? { groupBits } : {}),
      coefficientScales: halves('keyScales', g.rank),
      basisCodes,
      basisScales: halves('keyBasisScales', g.rank),
      mean: halves('keyMean', g.width),
      weights: g.weighted ? halves('keyWeights', g.width) : new Float64Array(g.width).fill(1),
      channels: g.channels,
      valueCodes: Uint16Array.from({ length: middleTokens * vectors }, (_, i) => valueCodes[i]!),
      codebook: halves('codebook', g.entries * g.channels),
      channelMax: halves('channelMax', g.width),
    },
    stream: {
      tokens: streamTokens,
      keyCodes: streamCodes('streamKeyCodes'),
      valueCodes: streamCodes('streamValueCodes'),
      keyNorms: norms('streamKeyNorms'),
      valueNorms: norms('streamValueNorms'),
      levels: Float64Array.from({ length: levels.length }, (_, i) => levels[i]!),
    },
    window: {
      keys: exact('windowKeys', windowTokens, windowSlot),
      values: exact('windowValues', windowTokens, windowSlot),
    },
  };
}
