import type { PartName } from '../../codegen/plan/layout.js';
import type { ScalarGeometry, ScalarGroups } from '../../dsl/geometry.js';
import type { ScalarCodes, ScalarMiddle } from '../reference/index.js';
import { halfBits } from './draws.js';
import { fieldRows, halfRows, type PackedPart } from './packedPart.js';

/** The middle of a sequence whose channels are coded one by one: the inverse of `unpackScalarMiddle`. */
export function* packScalarMiddle(g: ScalarGeometry, middle: ScalarMiddle): Generator<PackedPart> {
  const { keys, values, clamped, tokens } = middle;
  yield* packed(g, g.keys, keys, ['keyCodes', 'keyScales', 'keyOffsets', 'keyOutliers']);
  yield* packed(g, g.values, values, ['valueCodes', 'valueScales', 'valueOffsets', 'valueOutliers']);
  if (keys.residuals) {
    const { signs, norms } = keys.residuals;
    yield ['residualSigns', fieldRows(signs, { count: g.headDim, words: g.headDim / 32, bits: 1 })];
    yield ['residualNorms', halfRows(norms, { count: g.kvHeads, words: g.normWords })];
  }
  if (clamped && tokens > 0) {
    yield ['outlierCounts', new Uint8Array(Uint32Array.of(clamped.keys, clamped.values).buffer)];
  }
}

function* packed(
  g: ScalarGeometry,
  { bits, headWords, scaleChannels, scaleRowWords }: ScalarGroups,
  { codes, scales, offsets, outliers }: ScalarCodes,
  names: readonly [PartName, PartName, PartName, PartName],
): Generator<PackedPart> {
  const row = { count: g.width / scaleChannels, words: scaleRowWords };
  yield [names[0], fieldRows(codes, { count: g.headDim, words: headWords, bits })];
  yield [names[1], halfRows(scales, row)];
  if (offsets) yield [names[2], halfRows(offsets, row)];
  if (!outliers) return;
  const residuals = halfBits(outliers.residuals);
  const words = Uint32Array.from(outliers.channels, (channel, i) => channel + residuals[i]! * 0x10000);
  yield [names[3], new Uint8Array(words.buffer)];
}
