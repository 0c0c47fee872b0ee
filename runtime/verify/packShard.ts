import type { LowRankGeometry } from '../../dsl/geometry.js';
import { type ShardMiddle, writeField } from '../reference/index.js';
import { halfBytes, type PackedPart } from './packedPart.js';

/** The middle of a Shard-compressed sequence: the inverse of `unpackShardMiddle`. */
export function* packShardMiddle(g: LowRankGeometry, middle: ShardMiddle): Generator<PackedPart> {
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
}
