import type { LowRankGeometry } from '../../dsl/geometry.js';
import type { SequenceLengths } from '../record.js';
import { readField, readSignedField } from './fields.js';
import type { ShardMiddle } from './shard.js';
import type { ShareReader } from './shareReader.js';

/** The middle of a Shard-compressed sequence, bit by bit. */
export function unpackShardMiddle(
  g: LowRankGeometry,
  reader: ShareReader,
  { sinkTokens, middleTokens }: SequenceLengths,
): ShardMiddle {
  const coefficientCodes = new Int32Array(middleTokens * g.rank);
  const keyCodes = reader.bytes('keyCodes');
  const groupBits: number[] = [];
  for (let group = 0; group < g.allocatedGroups; group++) {
    const firstBit = readField(reader.bytes('keyWidths'), { offset: group * 32 + 4, width: 28 });
    const bits = readField(reader.bytes('keyWidths'), { offset: group * 32, width: 4 });
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
  const basis = reader.bytes('keyBasis');
  const basisCodes = new Int8Array(g.width * g.rank);
  for (let channel = 0; channel < g.width; channel++) {
    for (let component = 0; component < g.rank; component++) {
      const offset = (channel * g.rankWords * 4 + component) * 8;
      basisCodes[channel * g.rank + component] = readSignedField(basis, { offset, width: 8 });
    }
  }
  const vectors = g.width / g.channels;
  const valueCodes = reader.bytes('valueCodes');
  return {
    tokens: middleTokens,
    firstPosition: sinkTokens,
    rank: g.rank,
    coefficientCodes,
    codeOffset: g.allocatedGroups > 0 ? 0.5 : 0,
    ...(g.allocatedGroups > 0 ? { groupBits } : {}),
    coefficientScales: reader.halves('keyScales', g.rank),
    basisCodes,
    basisScales: reader.halves('keyBasisScales', g.rank),
    mean: reader.halves('keyMean', g.width),
    weights: g.weighted ? reader.halves('keyWeights', g.width) : new Float64Array(g.width).fill(1),
    channels: g.channels,
    valueCodes: Uint16Array.from({ length: middleTokens * vectors }, (_, i) => valueCodes[i]!),
    codebook: reader.halves('codebook', g.entries * g.channels),
    channelMax: reader.halves('channelMax', g.width),
  };
}
